"""The store and experiment of `mlflow run`: those of the project, whatever the working folder is.

Without an experiment name, MLflow would use `Default`, with artifacts in `mlruns` of the folder in
which it was started. It asks this class first, which it finds through the entry point
`mlflow.default_experiment_provider` of the installed project.
"""

import atexit
import inspect
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

# MLflow loads this module during its own import, so no other part of it can be imported here.
from mlflow.tracking.default_experiment.abstract_context import DefaultExperimentProvider

from clew import names
from clew.runs import store

if TYPE_CHECKING:
    from mlflow import MlflowClient


class ProjectExperiment(DefaultExperimentProvider):
    """Provides the experiment for `mlflow run` of a Clew project, and in the root of one."""

    def in_context(self) -> bool:
        return _project() is not None

    def get_experiment_id(self) -> str:
        """Return the id of the experiment; create the experiment if it does not exist.

        This also makes the store's address absolute, because MLflow starts the command in another
        folder. If no store is named, it is the project's own.
        """
        import mlflow

        from clew.runs.mlflow_store import find_experiment

        project = _project()
        assert project is not None
        uri = store.absolute(os.environ.get("MLFLOW_TRACKING_URI") or store.own_uri(project))
        if uri != mlflow.get_tracking_uri():
            mlflow.set_tracking_uri(uri)
        client = store.connect(uri)
        experiment_id = str(find_experiment(client, names.EXPERIMENT, project).experiment_id)
        if _given_project() is not None:
            atexit.register(_restore_status, client, experiment_id, int(time.time() * 1000))
        return experiment_id


def _restore_status(client: "MlflowClient", experiment_id: str, since_ms: int) -> None:
    stopped = (
        f"attributes.status = 'FAILED' AND attributes.start_time >= {since_ms} "
        f"AND tags.`{names.TAG_ENDED_AS}` = 'KILLED'"
    )
    for run in client.search_runs([experiment_id], stopped):
        client.set_terminated(run.info.run_id, "KILLED", run.info.end_time)


def _given_project() -> str | None:
    """Return the address that `mlflow run` was given; None if this is not `mlflow run`."""
    from mlflow import projects

    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not projects.run.__code__:
        frame = frame.f_back
    return None if frame is None else str(frame.f_locals["uri"])


def _project() -> Path | None:
    """Return the Clew project that `mlflow run` was given, else that of the working folder."""
    path, _, inner = (_given_project() or ".").removeprefix("file://").partition("#")
    folder = Path(os.path.abspath(path), inner)
    try:
        lines = (folder / store.PROJECT_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return folder if f"name: {names.EXPERIMENT}" in lines else None
