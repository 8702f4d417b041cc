"""The default experiment of `mlflow run`: `clew`, as on the command line.

Without an experiment name, MLflow would use `Default`, with artifacts in `mlruns`. It asks this
class first, which it finds through the entry point `mlflow.default_experiment_provider` of the
installed project.
"""

from pathlib import Path

# MLflow loads this module during its own import, so no other part of it can be imported here.
from mlflow.tracking.default_experiment.abstract_context import DefaultExperimentProvider

from clew import names
from clew.runs import store


class ProjectExperiment(DefaultExperimentProvider):
    """Provides the experiment if the working folder is the root folder of a project."""

    def in_context(self) -> bool:
        return Path(store.PROJECT_FILE).is_file()

    def get_experiment_id(self) -> str:
        """Return the id of the experiment; create the experiment if it does not exist."""
        from mlflow import get_tracking_uri

        from clew.runs.mlflow_store import find_experiment

        return str(
            find_experiment(store.connect(get_tracking_uri()), names.EXPERIMENT).experiment_id
        )
