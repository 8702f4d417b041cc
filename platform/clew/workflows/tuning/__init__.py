"""The search for the best settings: its trials, its run and its output files."""
