"""The read side of the tracking store, for the dashboard and the command line (no torch)."""
