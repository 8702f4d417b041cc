"""The read side of the tracking store, for the dashboard and the command line (no torch)."""

from clew.runs.store import prepare_client_environment

# Before mlflow is imported anywhere in this folder.
prepare_client_environment()
