"""Opens a run in MLflow: all that must work before training starts.

A problem raises one `TrackingError` within seconds and leaves no run behind. The module
`clew.runs.tracker` then records the run.
"""

import hashlib
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import TrackingError, masked
from clew.processes import typed_command
from clew.runs import store
from clew.runs.base import Status, outcome_of
from clew.runs.delivery import end_dead_runs, end_run, shortened
from clew.runs.hardware import git_commit
from clew.runs.reading.runs import get_run
from clew.runs.spool import Origin, Spool, make_root
from clew.runs.tracker import MlflowTracker, Pace

# The name that `mlflow run` gives to a run without a name: adjective-animal-number.
_INVENTED_NAME = re.compile(r"[a-z]+-[a-z]+-\d+")


def open_tracker(
    tracking: TrackingConfig,
    *,
    kind: str,
    run_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent_run_id: str | None = None,
    run_id: str | None = None,
    pace: Pace | None = None,
) -> MlflowTracker:
    """Open a run of the given kind (`train`, `trace`, ...) and return its tracker.

    With `run_id`, continue that run, and first send what an earlier process left in its spool.
    Otherwise adopt the run that `mlflow run` opened (once per process), or create a run. Runs of
    this kind whose process died on this machine are ended first, except training runs.
    """
    uri = store.tracking_uri()
    all_tags = {names.TAG_KIND: kind} | dict(tags or {})
    if parent_run_id is not None:
        all_tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = parent_run_id
    if run_id is None and (typed := typed_command.get()):
        all_tags[names.TAG_COMMAND] = typed

    client = store.connect(uri)
    make_root(store.spool_root(uri))
    if run_id is None and kind != names.KIND_TRAIN:  # a dead training can be resumed
        end_dead_runs(client, kind)
    name = masked(tracking.run_name or run_name or "") or None
    all_tags = {key: shortened(value) for key, value in all_tags.items()}
    adopted = os.environ.get("MLFLOW_RUN_ID") if run_id is None else None
    with store.using("opening the run"):
        if given := run_id or adopted:
            named_by = "MLFLOW_RUN_ID: " if adopted else ""
            run = _continue_run(client, given, named_by, name, all_tags)
        else:
            run = _create_run(client, tracking.experiment, name, all_tags)
    if adopted:  # as MLflow itself does, so that a second run of this process is a separate run
        del os.environ["MLFLOW_RUN_ID"]
    spool = None
    try:
        origin = Origin(store.address(uri), run.info.run_id, run.info.experiment_id)
        spool = Spool.create(store.spool_root(uri), origin)
        tracker = MlflowTracker(client, run, spool, tracking, pace or Pace())
    except BaseException as error:
        if spool is not None:
            spool.close()
        if run_id is None:
            end_run(client, run.info.run_id, *outcome_of(error))
        raise
    if run_id is not None:
        tracker.recall()
    database, place = store.database_path(uri), store.local_path(run.info.artifact_uri)
    if database and place and not place.resolve().is_relative_to(database.parent.resolve()):
        tracker.warn(
            f"the files of this run go to {place}, because MLflow made the run's experiment; leave "
            "out --experiment-name and MLFLOW_EXPERIMENT_NAME, or let `clew train "
            "tracking.experiment=NAME` make the experiment first"
        )
    return tracker


def end_unused_run(run_id: str, status: Status, reason: str) -> None:
    """End the run that `mlflow run` opened for a command that failed before it used the run."""
    client = store.connect(store.tracking_uri())
    if client.get_run(run_id).info.status == "RUNNING":
        if typed := typed_command.get():
            client.set_tag(run_id, names.TAG_COMMAND, masked(typed))
        end_run(client, run_id, status, reason)


def _create_run(
    client: MlflowClient, experiment: str, run_name: str | None, tags: Mapping[str, str]
) -> Run:
    if experiment == names.EXPERIMENT:  # the default; the environment can name another one
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment
    experiment_id = find_experiment(client, experiment).experiment_id
    commit = git_commit()
    made_by = {
        mlflow_tags.MLFLOW_USER: store.acting_person(),
        mlflow_tags.MLFLOW_SOURCE_NAME: Path(sys.argv[0]).name or "python",
        mlflow_tags.MLFLOW_SOURCE_TYPE: "LOCAL",
        **({mlflow_tags.MLFLOW_GIT_COMMIT: commit} if commit else {}),
    }
    # A run whose process dies before the next heartbeat then counts as stuck.
    beat = {names.TAG_HEARTBEAT: str(int(time.time()))}
    return client.create_run(experiment_id, run_name=run_name, tags=made_by | dict(tags) | beat)


def find_experiment(client: MlflowClient, name: str, project: Path | None = None) -> Experiment:
    """Find an experiment by its name, or create it."""
    if not name.strip():
        raise TrackingError("tracking.experiment is empty; expected the name of an experiment")
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        artifacts = store.artifact_root(client.tracking_uri, project)
        location = None if artifacts is None else f"{artifacts}/{_folder_name(name)}"
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException as error:  # another process may have been a moment earlier
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
    if experiment.lifecycle_stage != "active":
        raise TrackingError(
            f"experiment {name!r} is deleted; bring it back with `mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or set tracking.experiment to another "
            "name"
        )
    return experiment


def _folder_name(name: str) -> str:
    """Return a folder name with only characters that are the same in a path and in a URI.

    MLflow interprets a path that contains `%20` as a URI, and then looks in another folder.
    """
    plain = re.sub(r"[^A-Za-z0-9_.\-]", "_", name).strip(".")
    if plain == name and len(name) <= 100:
        return name
    return f"{plain[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _continue_run(
    client: MlflowClient, run_id: str, named_by: str, run_name: str | None, tags: Mapping[str, str]
) -> Run:
    run = get_run(client, run_id, named_by)
    # `mlflow run` records the address that it was given.
    tags = {k: safe for k, v in run.data.tags.items() if (safe := masked(v)) != v} | dict(tags)
    is_named = run.info.run_name and not _INVENTED_NAME.fullmatch(run.info.run_name)
    client.update_run(run_id, status="RUNNING", name=None if is_named else run_name)
    client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()], synchronous=True)
    return client.get_run(run_id)


def preload_databases() -> None:
    """Import MLflow's modules for database stores before the first connection does so."""
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
