"""Finds a run and reads its records: state, tags, parameters, configuration, artifacts.

`keep_folder` adds a folder to the artifacts of a run that has ended.
"""

import functools
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from clew import names
from clew.config.files import read_yaml
from clew.errors import TrackingError, described, masked, refusing
from clew.files import working_folder
from clew.runs import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

HEARTBEAT_LIMIT_SECONDS = 120.0
"""A running run whose heartbeats stopped counts as stuck after this time; they come every 15 s."""


class RunGoneError(TrackingError):
    """The store has no such run, or it was deleted."""


Model = TypeVar("Model", bound=BaseModel)
State = Literal["running", "stuck", "finished", "failed", "stopped", "scheduled"]


@dataclass(frozen=True)
class RunRecord:
    """The data of a run in the store."""

    run_id: str
    name: str
    experiment_id: str
    status: str
    started_ms: int
    ended_ms: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    """The configuration, with the key prefix `cfg.`. The command-line options that `mlflow run`
    records in addition are left out: most are empty, and the configuration contains the others. For
    a run of another tool, all its parameters."""
    metrics: Mapping[str, float]
    """The last value of each metric."""
    artifact_uri: str = ""
    """Address of the run's artifacts in the store."""
    last_metric_ms: int = 0
    """Time of the newest value of a metric, while the run is running."""


def client() -> "MlflowClient":
    """Return a client of the store in use, without creating a store."""
    uri = store.tracking_uri()
    store.check_answers(uri)
    if store.is_missing(uri):
        advice = "train a first run (`clew train`), or set MLFLOW_TRACKING_URI to a store's address"
        raise TrackingError(f"no tracking store at {store.database_path(uri)}; {advice}")
    with store.using("opening it"), store.creation_lock(uri):
        return _client(uri)


@functools.lru_cache(maxsize=8)
def _client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(uri)


def database_of(connected: "MlflowClient") -> Any | None:
    """Return MLflow's database store, or None for a tracking server.

    MLflow's client cannot count runs or list the values of a tag, and it needs one call for each
    curve of each run. A database needs one query for each of these tasks.
    """
    tracking = connected._tracking_client.store
    return tracking if hasattr(tracking, "ManagedSessionMaker") else None


def find_run(run_id: str) -> RunRecord:
    return record_of(get_run(client(), run_id))


def record_of(run: "Run") -> RunRecord:
    """Convert an MLflow run to a `RunRecord`."""
    prefix = names.PARAMETER_PREFIX if names.TAG_KIND in run.data.tags else ""
    # The times of the last values are only in the message that the server would send.
    newest = run.data.to_proto().metrics if run.info.status == "RUNNING" else ()
    return RunRecord(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        experiment_id=run.info.experiment_id,
        status=run.info.status,
        started_ms=run.info.start_time or 0,
        ended_ms=run.info.end_time,
        tags=dict(run.data.tags),
        params={k: value for k, value in run.data.params.items() if k.startswith(prefix)},
        metrics={key: stored_number(value) for key, value in run.data.metrics.items()},
        artifact_uri=run.info.artifact_uri or "",
        last_metric_ms=max((metric.timestamp for metric in newest), default=0),
    )


def stored_number(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def state_of(run: RunRecord, now: float | None = None) -> State:
    """Return the state of a run; a running run is `stuck` if its heartbeats have stopped.

    Other tools send no heartbeats, so a run without them is never stuck.
    """
    # `mlflow run` replaces the status KILLED by FAILED until it exits.
    is_failed = run.status == "FAILED"
    if (run.tags.get(names.TAG_ENDED_AS) if is_failed else run.status) == "KILLED":
        return "stopped"
    if run.status != "RUNNING":
        return run.status.lower()  # type: ignore[return-value]
    silent = (time.time() if now is None else now) - last_sign_of_life(run)
    is_stuck = last_heartbeat(run) is not None and silent > HEARTBEAT_LIMIT_SECONDS
    return "stuck" if is_stuck else "running"


def last_heartbeat(run: RunRecord) -> float | None:
    """Return the time of the run's last heartbeat in Unix seconds; None without a heartbeat."""
    try:
        seconds = float(run.tags[names.TAG_HEARTBEAT])
    except (KeyError, ValueError):
        return None
    return seconds if math.isfinite(seconds) else None


def last_sign_of_life(run: RunRecord) -> float:
    """Return the time of the newest heartbeat or metric, or else of the start, in Unix seconds."""
    newest = max(run.last_metric_ms / 1000, last_heartbeat(run) or 0.0)
    return newest or run.started_ms / 1000


def read_config(run_id: str) -> dict[str, object]:
    """Return the run's resolved configuration."""
    with fetched(run_id, names.ARTIFACT_CONFIG_YAML) as path:
        return read_yaml(path)


def started_in(run_id: str) -> str:
    """Return the working folder in which a training run was started.

    Relative paths in the run's configuration start from this folder. The result is empty if the
    checkpoints do not record the folder.
    """
    path = f"{names.ARTIFACT_BEST}/{names.CHECKPOINT_MANIFEST}"
    if names.ARTIFACT_BEST not in list_artifact_folders(run_id):
        kept = list_artifact_folders(run_id, names.ARTIFACT_CHECKPOINTS)
        if not kept:
            return ""
        path = f"{names.ARTIFACT_CHECKPOINTS}/{kept[0]}/{names.CHECKPOINT_MANIFEST}"
    with fetched(run_id, path) as manifest:
        try:
            said = json.loads(manifest.read_bytes())
        except (ValueError, RecursionError):
            return ""
    return str(said.get("folder", "")) if isinstance(said, dict) else ""


def list_artifacts(run_id: str, path: str = "") -> list[str]:
    """Return the names of files and folders directly under `path` of the run's artifacts."""
    return [name for name, _ in _entries(run_id, path)]


def list_artifact_folders(run_id: str, path: str = "") -> list[str]:
    """Return the names of the folders directly under `path` of the run's artifacts."""
    return [name for name, is_folder in _entries(run_id, path) if is_folder]


@contextmanager
def fetched(run_id: str, path: str) -> Iterator[Path]:
    """Provide a temporary copy of a file or folder of the run's artifacts."""
    with working_folder("artifact", holds=f"run {run_id}") as folder:
        yield download_artifact(run_id, path, folder)


def read_record(run_id: str, path: str, kind: type[Model], what: str) -> Model:
    """Return a JSON file of the run's artifacts as a record; `what` it is, is for the message."""
    reading = refusing(
        f"run {run_id}: {path} is not {what}", OSError, ValidationError, error=TrackingError
    )
    with fetched(run_id, path) as file, reading:
        return kind.model_validate_json(file.read_bytes())


def download_artifact(run_id: str, path: str, folder: Path) -> Path:
    """Copy a file or folder of the run's artifacts to `folder / path`, and return that path."""
    here = _here(run_id, path)
    folder.mkdir(parents=True, exist_ok=True)
    # MLflow's layout of a download depends on the store; moving it makes the path the same.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
        if here is None:
            found = _downloaded(run_id, path, temporary)
        else:
            copy = shutil.copytree if here.is_dir() else shutil.copyfile
            found = Path(copy(here, Path(temporary, here.name)))
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        return found.rename(target)


def _downloaded(run_id: str, path: str, folder: str) -> Path:
    from mlflow.exceptions import MlflowException

    connected = client()
    get_run(connected, run_id)
    try:
        return Path(connected.download_artifacts(run_id, path, folder))
    except (MlflowException, OSError) as error:
        parent, _, name = path.rpartition("/")
        present = list_artifacts(run_id, parent)
        if name in present:
            problem = f"run {run_id}: artifact {path} cannot be read ({described(error)})"
            advice = "is its artifact store reachable from here?"
            raise TrackingError(f"{problem}; {advice}") from None
        there = f"{parent or 'it'} has {', '.join(present) or 'none'}"
        raise TrackingError(f"run {run_id} has no artifact {path}; {there}") from None


def keep_folder(run_id: str, folder: Path, place: str) -> None:
    """Copy a folder to `place` in the artifacts of a run, and overwrite existing files."""
    with store.using(f"keeping {place} with run {run_id}"):
        client().log_artifacts(run_id, str(folder), place)


def _entries(run_id: str, path: str) -> list[tuple[str, bool]]:
    """Return the names directly under `path`, and whether each is a folder."""
    if (here := _here(run_id, path)) is not None and here.is_dir():
        return [(entry.name, entry.is_dir()) for entry in sorted(here.iterdir())]
    connected = client()
    get_run(connected, run_id)
    with store.using(f"artifacts of run {run_id} under {path or 'its root'}"):
        infos = connected.list_artifacts(run_id, path or None)
    return [(Path(info.path).name, info.is_dir) for info in infos]


def _here(run_id: str, path: str) -> Path | None:
    """Return a file or folder of the run's artifacts if the store keeps it on this machine.

    MLflow finds the same one; importing MLflow takes longer than reading a small model.
    """
    root = store.local_artifacts(run_id)
    if root is None or Path(path).is_absolute() or ".." in Path(path).parts:
        return None
    return root / path if (root / path).exists() else None


def get_run(connected: "MlflowClient", run_id: str, named_by: str = "") -> "Run":
    """Return a run as an MLflow object.

    `named_by` begins a message and says where the id comes from, such as `MLFLOW_RUN_ID: `.

    Raises:
        RunGoneError: The store has no such run, or it was deleted.
    """
    from mlflow.exceptions import MlflowException

    with store.using(f"run {run_id}"):
        try:
            run = connected.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in store.MISSING:
                raise
            problem = f"{named_by}no run {run_id} in {masked(connected.tracking_uri)}"
            advice = "give an existing run's id, or set MLFLOW_TRACKING_URI to this run's store"
            raise RunGoneError(f"{problem}; {advice}") from None
    if run.info.lifecycle_stage != "active":
        advice = f"bring it back with `mlflow runs restore --run-id {run_id}`"
        raise RunGoneError(f"{named_by}run {run_id} is deleted; {advice}")
    return run
