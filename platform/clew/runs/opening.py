"""Opens the store and the run: everything that must work before training starts.

What cannot be used is one `TrackingError` within seconds, and no run is left behind.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags

from clew.errors import TrackingError
from clew.runs import store
from clew.runs.hardware import git_commit

# What `mlflow run` calls a run that nobody named: adjective-animal-number.
_INVENTED_NAME = re.compile(r"[a-z]+-[a-z]+-\d+")


def connect(uri: str) -> MlflowClient:
    """Return a client of a store that answers and, if it is a file, can be written.

    Raises:
        TrackingError: The store cannot be used.
    """
    store.check_answers(uri)
    store.check_writable(uri)
    with store.using("opening it", uri), store.creation_lock(uri):
        if store.is_missing(uri):
            _create_database(uri)
        return MlflowClient(uri)


def preload_databases() -> None:
    """Import what MLflow needs for a store in a database, which it does at the first connection."""
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def open_run(
    client: MlflowClient,
    *,
    experiment: str,
    run_name: str | None,
    tags: Mapping[str, str],
    run_id: str | None,
) -> Run:
    """Go on with the run `run_id`, adopt the one that `mlflow run` opened, or create one.

    `MLFLOW_RUN_ID` is taken out of the environment when it is adopted, as MLflow itself does, so
    that a second run of this process is a separate run.

    Raises:
        TrackingError: The run or the experiment cannot be used.
    """
    adopted = os.environ.get("MLFLOW_RUN_ID")
    with store.using("opening the run"):
        if run_id is not None:
            return _continue_run(client, run_id, "run", run_name, tags)
        if adopted:
            run = _continue_run(client, adopted, "MLFLOW_RUN_ID", run_name, tags)
            del os.environ["MLFLOW_RUN_ID"]
            return run
        return client.create_run(
            find_experiment(client, experiment).experiment_id,
            run_name=run_name,
            tags=_source_tags() | dict(tags),
        )


def find_experiment(client: MlflowClient, name: str) -> Experiment:
    """Find the experiment or create it.

    Raises:
        TrackingError: The name is empty, or the experiment is deleted.
    """
    if not name.strip():
        raise TrackingError("tracking.experiment is empty; expected the name of an experiment")
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment = _create_experiment(client, name)
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"experiment {name!r} is deleted; bring it back with `mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or set tracking.experiment to another "
            "name"
        )
    return experiment


def _create_database(uri: str) -> None:
    """Make a new sqlite store, with artifacts beside it; it gets its name when it is whole.

    A dashboard that looks for it meanwhile finds no store rather than half a store, and a process
    that is killed here leaves nothing that the next one would take for a store.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path, artifacts = store.database_path(uri), store.artifact_root(uri)
    assert path is not None
    assert artifacts is not None
    prefix = f"{path.name}.new-"
    for left in path.parent.iterdir():  # by a process that was killed
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent) as work:
        new = Path(work) / path.name
        made = SqlAlchemyStore(f"{store.SQLITE_PREFIX}{quote(str(new))}", artifacts)  # type: ignore[no-untyped-call]
        made.engine.dispose()
        new.replace(path)


def _create_experiment(client: MlflowClient, name: str) -> Experiment:
    artifacts = store.artifact_root(client.tracking_uri)
    location = None if artifacts is None else f"{artifacts}/{store.folder_name(name)}"
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        # Another process may have been a moment earlier.
        experiment = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
            raise
        return experiment


def _continue_run(
    client: MlflowClient, run_id: str, what: str, run_name: str | None, tags: Mapping[str, str]
) -> Run:
    """Make an existing run this process's own; a name that a person gave it stays."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in store.MISSING:
            raise
        raise TrackingError(
            f"{what} {run_id}: no such run in {store.shown(client.tracking_uri)}; take the id of a "
            "run that is there, or set MLFLOW_TRACKING_URI to its store"
        ) from None
    if run.info.lifecycle_stage != "active":
        raise TrackingError(
            f"{what} {run_id} is deleted; bring it back with `mlflow runs restore --run-id "
            f"{run_id}`"
        )
    is_named = run.info.run_name and not _INVENTED_NAME.fullmatch(run.info.run_name)
    client.update_run(run_id, status="RUNNING", name=None if is_named else run_name)
    client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()], synchronous=True)
    return client.get_run(run_id)


def _source_tags() -> dict[str, str]:
    """Say who started the run, with what, as MLflow does it."""
    tags = {
        mlflow_tags.MLFLOW_USER: store.acting_person(),
        mlflow_tags.MLFLOW_SOURCE_NAME: Path(sys.argv[0]).name or "python",
        mlflow_tags.MLFLOW_SOURCE_TYPE: "LOCAL",
    }
    if commit := git_commit():
        tags[mlflow_tags.MLFLOW_GIT_COMMIT] = commit
    return tags
