"""Opens the store and the run: everything that must work before training starts.

What cannot be used is one `TrackingError` within seconds, and no run is left behind.
"""

import fcntl
import getpass
import hashlib
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags
from sqlalchemy.exc import SQLAlchemyError

from clew import names
from clew.runs import store
from clew.errors import TrackingError
from clew.runs.hardware import git_commit

# What `mlflow run` calls a run that nobody named: adjective-animal-number.
_INVENTED_NAME = re.compile(r"[a-z]+-[a-z]+-\d+")


@dataclass(frozen=True)
class RunRequest:
    """The run that is wanted."""

    experiment: str
    run_name: str | None
    tags: Mapping[str, str]
    run_id: str | None = None
    parent_run_id: str | None = None


def connect(uri: str) -> MlflowClient:
    """Return a client of a store that answers and, if it is a file, can be written.

    Raises:
        TrackingError: it cannot be used.
    """
    store.check_answers(uri)
    store.check_writable(uri)
    with refusing(uri):
        _create_tables(uri)
        return MlflowClient(uri)


def open_run(client: MlflowClient, request: RunRequest) -> Run:
    """Go on with a run, adopt the one that `mlflow run` opened, or create one.

    `MLFLOW_RUN_ID` is taken out of the environment when it is adopted, as MLflow itself does, so
    that a second run of this process is a run of its own.

    Raises:
        TrackingError: the run or the experiment cannot be used.
    """
    with refusing(client.tracking_uri):
        if request.run_id is not None:
            return _take_up(client, request.run_id, request, "run")
        if adopted := os.environ.get("MLFLOW_RUN_ID"):
            run = _take_up(client, adopted, request, "MLFLOW_RUN_ID")
            del os.environ["MLFLOW_RUN_ID"]
            return run
        return client.create_run(
            find_experiment(client, request.experiment).experiment_id,
            run_name=request.run_name,
            tags=_creation_tags(request),
        )


@contextmanager
def refusing(uri: str) -> Iterator[None]:
    """Turn what MLflow or the database raises into one line that names the store."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        raise store.unusable(uri, error) from None


def _create_tables(uri: str) -> None:
    """Create a new sqlite store's tables, one process at a time, with artifacts beside it."""
    path, artifacts = store.database_path(uri), store.artifact_root(uri)
    if path is None or artifacts is None:
        return
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    with Path(tempfile.gettempdir(), f"clew-store-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with closing(sqlite3.connect(path, timeout=60)) as base:
            query = "SELECT 1 FROM sqlite_master WHERE name = 'experiments'"
            exists = base.execute(query).fetchone() is not None
        if not exists:
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            SqlAlchemyStore(uri, artifacts.as_uri())  # type: ignore[no-untyped-call]


def find_experiment(client: MlflowClient, name: str) -> Experiment:
    """Find the experiment or create it.

    Raises:
        TrackingError: the name is empty, or the experiment is deleted.
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


def _create_experiment(client: MlflowClient, name: str) -> Experiment:
    artifacts = store.artifact_root(client.tracking_uri)
    location = None if artifacts is None else (artifacts / quote(name, safe="")).as_uri()
    try:
        return client.get_experiment(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        # Another process may have been a moment earlier.
        experiment = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
            raise
        return experiment


def _take_up(client: MlflowClient, run_id: str, request: RunRequest, what: str) -> Run:
    """Make an existing run this process's own."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
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
    client.update_run(run_id, status="RUNNING", name=_better_name(run, request))
    tags = dict(request.tags)
    if request.parent_run_id is not None:
        tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = request.parent_run_id
    client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()], synchronous=True)
    return client.get_run(run_id)


def _better_name(run: Run, request: RunRequest) -> str | None:
    """Return the name wanted, unless a person has named the run already."""
    invented = _INVENTED_NAME.fullmatch(run.info.run_name or "")
    return request.run_name if invented or not run.info.run_name else None


def _creation_tags(request: RunRequest) -> dict[str, str]:
    tags = {
        mlflow_tags.MLFLOW_USER: _user(),
        mlflow_tags.MLFLOW_SOURCE_NAME: Path(sys.argv[0]).name or "python",
        mlflow_tags.MLFLOW_SOURCE_TYPE: "LOCAL",
    }
    if commit := git_commit():
        tags[mlflow_tags.MLFLOW_GIT_COMMIT] = commit
    if request.parent_run_id is not None:
        tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = request.parent_run_id
    return tags | dict(request.tags)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


def experiment_name(wanted: str) -> str:
    """Return the experiment: the one configured, else the environment's, else `clew`."""
    if wanted != names.EXPERIMENT:
        return wanted
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or wanted
