"""The write side of the tracking store; `clew.tracking.base` is the seam, MLflow the adapter."""

from clew.store import prepare_client_environment

# Before mlflow is imported anywhere in this room.
prepare_client_environment()
