"""Records runs in the tracking store: `clew.runs.base` is the interface, MLflow the adapter."""

from clew.runs.store import prepare_client_environment

# Before mlflow is imported anywhere in this folder.
prepare_client_environment()
