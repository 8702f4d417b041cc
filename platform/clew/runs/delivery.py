"""Sends what spools hold to the store: in a thread while a run is active, later by `clew sync`.

The program writes to the spool and never waits for the store. While the store does not respond, the
thread tries less often. Nothing is lost; it only arrives late.

Sending a record twice does no harm. MLflow ignores a metric value that has the same key, step, time
and value as an earlier one. Tags, files and equal parameters replace themselves. Data sets (by
MLflow) and model entries (by this module) are looked up before they are created.

A checkpoint is stored twice. The run's artifact is the whole checkpoint, from which training can
continue. The model entry (MLflow's "logged model") can be registered; it has weights and manifest,
but no optimizer state and no pickle. In a local store, its files are hard links to the artifact's
files, so they need disk space only once. A server receives them twice, because MLflow cannot share
them.
"""

import errno
import json
import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from clew import names
from clew.errors import TrackingError, described, masked, printable
from clew.runs import base, store
from clew.runs.base import Record, Status
from clew.runs.reading.runs import get_run
from clew.runs.spool import (
    LostOriginError,
    Origin,
    Spool,
    SpoolInUseError,
    UnusableRecordError,
    groups,
    list_spools,
)

logger = logging.getLogger(__name__)

DIED = "its process ended without a word: it was killed, or the machine stopped"
"""Why a run ended whose process is gone."""
MODEL_FILES = ("model.safetensors", "manifest.json")
ROWS_PREFIX = "rows-"
"""Prefix of the files with the rows of sharded tables."""
LAST_FILE = "manifest.json"  # sent last: where it exists, the checkpoint is complete
MAX_TAG_CHARACTERS = 8000  # MLflow's limit
# MLflow accepts up to 1000 metrics, 100 parameters or 100 tags and a million bytes of JSON in one
# request; one character of JSON can take six bytes.
METRICS_PER_REQUEST = 500
TEXTS_PER_REQUEST = 20
# Errors after which a new attempt is useless; after any other error, the next one may succeed.
REFUSALS = store.MISSING | {"BAD_REQUEST", "INVALID_STATE", "RESOURCE_ALREADY_EXISTS"}


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


log_formatter = _LogFormatter("%(asctime)s %(levelname)-7s %(message)s")
"""Formats the lines of a run's log."""


@dataclass
class Delivery:
    """Sends a spool's records to the store that it belongs to."""

    client: MlflowClient
    spool: Spool

    @property
    def run_id(self) -> str:
        return self.spool.origin.run_id

    def send_waiting(self) -> int:
        """Send all unsent records and return their number.

        A record that the store refuses permanently is kept aside, with the reason.

        Raises:
            RunGoneError: The run was deleted; its unsent records stay in the spool.
            Exception: The store could not accept a record; try again later.
        """
        count = 0
        for group in groups(self.spool.waiting()):
            refused = self._send_or_refuse([entry.record for entry in group])
            self.spool.mark_sent(group[-1], keep_files=refused)
            count += len(group)
        return count

    def _send_or_refuse(self, records: Sequence[Record]) -> bool:
        """Send records together; if the store refuses them, send each one to find the bad ones."""
        try:
            self.send(records)
        except (MlflowException, UnusableRecordError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
                raise  # a full disk or a lost connection can be fixed, so try again later
            if isinstance(error, MlflowException):
                if error.error_code not in REFUSALS:
                    raise
                kept = f"{self.spool.folder} has unsent files (delete it if they are of no use): "
                get_run(self.client, self.run_id, kept)
            if len(records) > 1:
                return any([self._send_or_refuse([record]) for record in records])
            logger.warning("the store refuses a record permanently: %s", described(error))
            self.spool.refuse(records[0], masked(str(error)))
            return True
        return False

    def end_dead(self) -> None:
        """End the run if its process died before it could, and keep the log and the reason."""
        last = deque(self.spool.waiting(0), maxlen=1)
        if last and isinstance(last[0].record, base.Finish):
            return
        try:
            # `mlflow run` may have ended the run already, but does not know why.
            if self.client.get_run(self.run_id).info.status not in {"RUNNING", "FAILED"}:
                return
        except MlflowException as error:
            if error.error_code in store.MISSING and not self.spool.length:
                return  # nothing is lost
            raise
        log = self.spool.log
        lines = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        end_run(self.client, self.run_id, "FAILED", DIED, lines)

    def send(self, records: Sequence[Record]) -> None:
        """Send a group of records; they need not be in the spool.

        Raises:
            Exception: The store could not accept the records.
        """
        match records[0]:
            case base.Artifact() as record:
                path = str(self.spool.staged_path(record))
                self.client.log_artifact(self.run_id, path, record.folder or None)
            case base.Checkpoint() as record:
                self._send_checkpoint(record)
            case base.DataSet() as record:
                self.client.log_inputs(self.run_id, [_dataset_input(record)])
            case base.Finish(status=status, time_ms=time_ms):
                self.client.set_terminated(self.run_id, status, time_ms)
            case base.Unreadable(reason=reason):
                raise UnusableRecordError(f"a line of the journal is not a record ({reason})")
            case _:
                self._send_values(records)

    def _send_values(self, records: Sequence[Record]) -> None:
        metrics: list[entities.Metric] = []
        params: dict[tuple[str, str], None] = {}
        tags: dict[str, str] = {}
        for record in records:
            match record:
                case base.Metrics(values=found, step=step, time_ms=time_ms):
                    metrics += [entities.Metric(k, v, time_ms, step) for k, v in found.items()]
                case base.Params(values=texts):
                    # Keep both values of a parameter, so that the store refuses the second one.
                    params |= dict.fromkeys(texts.items())
                case base.Tags(values=texts):
                    tags |= texts
        if names.TAG_NOTE in tags and names.TAG_NOTE in self.client.get_run(self.run_id).data.tags:
            del tags[names.TAG_NOTE]  # a person wrote one meanwhile
        batches: list[tuple[str, list[Any], int]] = [
            ("params", [entities.Param(*pair) for pair in params], TEXTS_PER_REQUEST),
            ("tags", [entities.RunTag(*pair) for pair in tags.items()], TEXTS_PER_REQUEST),
            ("metrics", metrics, METRICS_PER_REQUEST),
        ]
        for kind, values, size in batches:
            for i in range(0, len(values), size):
                some = {kind: values[i : i + size]}
                self.client.log_batch(self.run_id, **some, synchronous=True)

    def _send_checkpoint(self, record: base.Checkpoint) -> None:
        folder = self.spool.staged_path(record)
        files = sorted(folder.iterdir(), key=lambda path: (path.name == LAST_FILE, path.name))
        for path in files:
            self.client.log_artifact(self.run_id, str(path), record.folder)
        model = self._model_entry(record)
        if model.status == entities.LoggedModelStatus.READY:
            return
        for path in files:
            if path.name in MODEL_FILES or path.name.startswith(ROWS_PREFIX):
                self._put_model_file(model, path, record.folder)
        self._link_to_run(model, record)
        self.client.finalize_logged_model(model.model_id, entities.LoggedModelStatus.READY)

    def _model_entry(self, record: base.Checkpoint) -> entities.LoggedModel:
        experiment_id = self.spool.origin.experiment_id
        tags = {names.TAG_MODEL_FOLDER: record.folder, names.TAG_MODEL_STEP: str(record.step)}
        conditions = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        wanted = " AND ".join([f"source_run_id = '{self.run_id}'", *conditions])
        if found := self.client.search_logged_models([experiment_id], wanted, max_results=1):
            return found[0]
        name = record.folder.rpartition("/")[2].replace(".", "-")
        return self.client.create_logged_model(
            experiment_id, name, self.run_id, tags=tags, model_type="checkpoint"
        )

    def _put_model_file(self, model: entities.LoggedModel, path: Path, folder: str) -> None:
        target = store.local_path(model.artifact_location)
        run_root = store.local_path(self.client.get_run(self.run_id).info.artifact_uri)
        if target is not None and run_root is not None:
            target.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # a file system without hard links: copy the file below
                (target / path.name).unlink(missing_ok=True)
                os.link(run_root / folder / path.name, target / path.name)
                return
        self.client.log_model_artifact(model.model_id, str(path))

    def _link_to_run(self, model: entities.LoggedModel, record: base.Checkpoint) -> None:
        made, step = model.model_id, record.step
        outputs = self.client.get_run(self.run_id).outputs
        if not outputs or made not in {output.model_id for output in outputs.model_outputs}:
            self.client.log_outputs(self.run_id, [entities.LoggedModelOutput(made, step)])
        points = [(k, v, record.metric_times_ms[k], step) for k, v in record.metrics.items()]
        metrics = [entities.Metric(*point, model_id=made) for point in points]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics, synchronous=True)


def _dataset_input(record: base.DataSet) -> entities.DatasetInput:
    columns = [{"name": k, "type": v, "required": True} for k, v in record.columns.items()]
    dataset = entities.Dataset(
        name=record.name,
        digest=record.fingerprint[:36],  # MLflow's limit
        source_type="local",
        source=json.dumps({"uri": record.source}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"fingerprint": record.fingerprint, "sizes": record.sizes}),
    )
    purpose = entities.InputTag(MLFLOW_DATASET_CONTEXT, record.context)
    return entities.DatasetInput(dataset, [purpose])


def shortened(text: str, limit: int = MAX_TAG_CHARACTERS) -> str:
    """Return a text as a tag or a parameter can hold it: valid, short and without secrets."""
    text = masked(text.encode(errors="replace").decode())  # the bytes of a path may not be text
    note = f"… ({len(text)} characters in all)"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def end_run(client: MlflowClient, run_id: str, status: Status, reason: str, log: str = "") -> None:
    """End a run that has no tracker, and keep the reason: as a tag, and in its log.

    A log is stored with the reason as its last line; without one, a log that is stored stays.
    """
    client.set_tag(run_id, names.TAG_STOPPED_BECAUSE, shortened(reason))
    client.set_tag(run_id, names.TAG_ENDED_AS, status)
    client.set_terminated(run_id, status)
    if log or names.ARTIFACT_LOG not in [info.path for info in client.list_artifacts(run_id)]:
        last = logging.LogRecord("clew", logging.ERROR, "", 0, reason, None, None)
        client.log_text(run_id, f"{log}{log_formatter.format(last)}\n", names.ARTIFACT_LOG)


@dataclass(frozen=True)
class SyncResult:
    """The result of sending one run's spool."""

    folder: Path
    run_id: str
    num_sent: int = 0
    num_refused: int = 0
    problem: str | None = None
    """Why the spool was not removed; None if it was."""
    is_alive: bool = False
    """Whether a running process still writes to the spool; that process will send it."""


def sync_spool(root: Path | None = None) -> list[SyncResult]:
    """Send all spools that belong to the store in use, and end runs whose process has died.

    A spool is removed after it was sent, and left alone while its process is running. A spool of
    another store stays until that store is in use, because the address in it is not trusted.
    """
    return [_sync_one(folder) for folder in list_spools(root or store.spool_root())]


def end_dead_runs(client: MlflowClient, kind: str) -> None:
    """Send the spools that dead processes left on this machine, and end their runs of a kind."""
    for folder in list_spools(store.spool_root(str(client.tracking_uri))):
        try:
            tags = client.get_run(folder.name).data.tags
        except Exception as error:  # of another store, or deleted
            logger.debug("%s: %s", folder, described(error))
            continue
        if tags.get(names.TAG_KIND) == kind and _sync_one(folder).problem is None:
            logger.info("run %s was ended because its process had died", folder.name)


def open_spool(folder: Path) -> Spool:
    """Open a spool; if its `run.json` was lost, write it again for the run in the store in use."""
    try:
        return Spool.open(folder)
    except LostOriginError as error:
        lost = f"{str(error).partition(';')[0]}; "
    uri, journal, experiment_id = store.tracking_uri(), folder / "journal.jsonl", "none"
    if journal.exists() and journal.stat().st_size:
        experiment_id = get_run(store.connect(uri), folder.name, lost).info.experiment_id
    return Spool.create(folder.parent, Origin(store.address(uri), folder.name, experiment_id))


def _sync_one(folder: Path) -> SyncResult:
    try:
        spool = open_spool(folder)
    except TrackingError as error:
        is_alive = isinstance(error, SpoolInUseError)
        return SyncResult(folder, folder.name, problem=str(error), is_alive=is_alive)
    uri, wanted, sent, problem = store.tracking_uri(), spool.origin.tracking_uri, 0, None
    if store.address(wanted) != store.address(uri):
        problem = (
            f"it belongs to {printable(masked(wanted))}, but the store in use is "
            f"{masked(uri)}; set MLFLOW_TRACKING_URI to the first and run `clew sync` again"
        )
    else:
        try:
            delivery = Delivery(store.connect(uri), spool)
            sent = delivery.send_waiting()
            delivery.end_dead()
        except Exception as error:
            problem = store.reason_of(error)
            logger.info("%s: %s", folder, problem)
    refused = spool.num_refused
    if refused and problem is None:
        problem = f"the store refused {refused} records; see {folder / 'refused.jsonl'}"
    spool.close(keep=problem is not None)
    return SyncResult(folder, spool.origin.run_id, sent, refused, problem)
