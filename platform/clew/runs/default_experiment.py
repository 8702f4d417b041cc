"""The store and experiment of `mlflow run`: those of the project, whatever the working folder is.

Without an experiment name, MLflow would use `Default`, with artifacts in `mlruns` of the folder in
which it was started. It asks this class first, which it finds through the entry point
`mlflow.default_experiment_provider` of the installed project.
"""

import inspect
import os
from pathlib import Path

# MLflow loads this module during its own import, so no other part of it can be imported here.
from mlflow.tracking.default_experiment.abstract_context import DefaultExperimentProvider

from clew import names
from clew.runs import store


class ProjectExperiment(DefaultExperimentProvider):
    """Provides the experiment for `mlflow run` of a Clew project, and in the root of one."""

    def in_context(self) -> bool:
        """Return whether this class provides the default experiment here."""
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
        return str(find_experiment(store.connect(uri), names.EXPERIMENT, project).experiment_id)


def _project() -> Path | None:
    """Return the Clew project that `mlflow run` was given, else that of the working folder."""
    from mlflow import projects

    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not projects.run.__code__:
        frame = frame.f_back
    given = "." if frame is None else str(frame.f_locals["uri"])
    path, _, inner = given.removeprefix("file://").partition("#")
    folder = Path(os.path.abspath(path), inner)
    try:
        lines = (folder / store.PROJECT_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return folder if f"name: {names.EXPERIMENT}" in lines else None
