"""The search for settings: its trials, what is recorded, and the report."""
