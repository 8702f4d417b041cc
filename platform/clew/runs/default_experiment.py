"""The experiment of an `mlflow run` that names none: `clew`, as for the command line.

MLflow would take `Default`, with artifacts in `mlruns`. It asks this class first, which it finds
through the entry point `mlflow.default_experiment_provider` of the installed project.
"""

from pathlib import Path

# MLflow loads this module while it is imported itself: nothing more of it can be imported here.
from mlflow.tracking.default_experiment.abstract_context import DefaultExperimentProvider

from clew import names
from clew.runs import store


class ProjectExperiment(DefaultExperimentProvider):
    """Answers where the working folder is the root of a project."""

    def in_context(self) -> bool:
        """Return whether runs that name no experiment are the project's own."""
        return Path(store.PROJECT_FILE).is_file()

    def get_experiment_id(self) -> str:
        """Return the identity of the experiment, which is created if it is missing."""
        from mlflow import get_tracking_uri

        from clew.runs.mlflow_store import find_experiment

        return str(
            find_experiment(store.connect(get_tracking_uri()), names.EXPERIMENT).experiment_id
        )
