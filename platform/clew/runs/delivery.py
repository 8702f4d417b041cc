"""Sends a run's messages to an MLflow store in order; every message can be sent twice.

Sending a message twice does no harm. MLflow ignores a metric value that has the same key, step,
time and value as an earlier one. Tags, files and equal parameters replace themselves. Data sets (by
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModel,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

from clew import names
from clew.runs.base import Status
from clew.runs.journal import Journal, JournalEntry, UnusableMessageError
from clew.runs.messages import (
    Artifact,
    Checkpoint,
    DataSet,
    Finish,
    Message,
    Metrics,
    Params,
    Tags,
    Unreadable,
)
from clew.runs.store import first_line

logger = logging.getLogger(__name__)

MODEL_FILES = ("model.safetensors", "manifest.json")
ROWS_PREFIX = "rows-"
"""Prefix of the files with the rows of sharded tables."""
LAST_FILE = "manifest.json"  # sent last: where it exists, the checkpoint is complete

MAX_TAG_CHARACTERS = 8000  # MLflow's limit
VALUES_PER_GROUP = 1000
# MLflow accepts up to 1000 metrics, 100 parameters or 100 tags and a million bytes of JSON in one
# request; one character of JSON can take six bytes.
METRICS_PER_REQUEST = 500
TEXTS_PER_REQUEST = 20

# Errors after which a new attempt is useless; after any other error, the next one may succeed.
REFUSALS = frozenset(
    {
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)

Value = TypeVar("Value")

log_formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
"""Formats the lines of a run's log."""


class RunGoneError(Exception):
    """The run was deleted in the store; its unsent messages stay in the journal."""


@dataclass
class Delivery:
    """Sends a journal's messages to the store that it belongs to."""

    client: MlflowClient
    journal: Journal

    @property
    def run_id(self) -> str:
        return self.journal.origin.run_id

    def send_waiting(self) -> int:
        """Send all unsent messages and return their number.

        A message that the store refuses permanently is put aside, with the reason.

        Raises:
            RunGoneError: The run was deleted.
            Exception: The store could not accept a message; try again later.
        """
        count = 0
        for group in groups(self.journal.waiting()):
            self._send_or_refuse([entry.message for entry in group])
            self.journal.mark_sent(group[-1])
            count += len(group)
        return count

    def _send_or_refuse(self, messages: Sequence[Message]) -> None:
        """Send messages together; if the store refuses them, send each one to find the bad ones."""
        try:
            self.send(messages)
        except (MlflowException, UnusableMessageError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
                raise  # a full disk or a lost connection can be fixed, so try again later
            if isinstance(error, MlflowException):
                if error.error_code not in REFUSALS:
                    raise
                self._require_run()
            if len(messages) > 1:
                for message in messages:
                    self._send_or_refuse([message])
            else:
                logger.warning("the store refuses a message permanently: %s", first_line(error))
                self.journal.refuse(messages[0], str(error))

    def _require_run(self) -> None:
        try:
            run = self.client.get_run(self.run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise RunGoneError(f"run {self.run_id} no longer exists") from None
            raise
        if run.info.lifecycle_stage != "active":
            raise RunGoneError(
                f"run {self.run_id} was deleted; bring it back with `mlflow runs restore --run-id "
                f"{self.run_id}`"
            )

    def send(self, messages: Sequence[Message]) -> None:
        """Send a group of messages; they need not be in the journal.

        Raises:
            Exception: The store could not accept the messages.
        """
        match messages[0]:
            case Artifact() as message:
                path = str(self.journal.staged_path(message))
                self.client.log_artifact(self.run_id, path, message.folder or None)
            case Checkpoint() as message:
                self._send_checkpoint(message)
            case DataSet() as message:
                self.client.log_inputs(self.run_id, [_dataset_input(message)])
            case Finish(status=status, time_ms=time_ms):
                self.client.set_terminated(self.run_id, status, time_ms)
            case Unreadable(reason=reason):
                raise UnusableMessageError(f"a line of the journal is not a message ({reason})")
            case _:
                self._send_values(messages)

    def _send_values(self, messages: Sequence[Message]) -> None:
        metrics: list[Metric] = []
        params: dict[tuple[str, str], None] = {}
        tags: dict[str, str] = {}
        for message in messages:
            match message:
                case Metrics(values=values, step=step, time_ms=time_ms):
                    metrics += [Metric(key, value, time_ms, step) for key, value in values.items()]
                case Params(values=texts):
                    # Keep both values of a parameter, so that the store refuses the second one.
                    params |= dict.fromkeys(texts.items())
                case Tags(values=texts):
                    tags |= texts
        for some_params in _parts([Param(*pair) for pair in params], TEXTS_PER_REQUEST):
            self.client.log_batch(self.run_id, params=some_params, synchronous=True)
        for some_tags in _parts([RunTag(*pair) for pair in tags.items()], TEXTS_PER_REQUEST):
            self.client.log_batch(self.run_id, tags=some_tags, synchronous=True)
        for some_metrics in _parts(metrics, METRICS_PER_REQUEST):
            self.client.log_batch(self.run_id, metrics=some_metrics, synchronous=True)

    def _send_checkpoint(self, message: Checkpoint) -> None:
        folder = self.journal.staged_path(message)
        files = sorted(folder.iterdir(), key=lambda path: (path.name == LAST_FILE, path.name))
        for path in files:
            self.client.log_artifact(self.run_id, str(path), message.folder)
        model = self._model_entry(message)
        if model.status == LoggedModelStatus.READY:
            return
        for path in files:
            if path.name in MODEL_FILES or path.name.startswith(ROWS_PREFIX):
                self._put_model_file(model, path, message.folder)
        self._link_to_run(model, message)
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    def _model_entry(self, message: Checkpoint) -> LoggedModel:
        experiment_id = self.journal.origin.experiment_id
        found = self.client.search_logged_models(
            [experiment_id],
            filter_string=f"source_run_id = '{self.run_id}' "
            f"AND tags.`{names.TAG_MODEL_FOLDER}` = '{message.folder}' "
            f"AND tags.`{names.TAG_MODEL_STEP}` = '{message.step}'",
            max_results=1,
        )
        if found:
            return found[0]
        return self.client.create_logged_model(
            experiment_id,
            name=message.folder.rpartition("/")[2].replace(".", "-"),
            source_run_id=self.run_id,
            tags={names.TAG_MODEL_FOLDER: message.folder, names.TAG_MODEL_STEP: str(message.step)},
            model_type="checkpoint",
        )

    def _put_model_file(self, model: LoggedModel, path: Path, folder: str) -> None:
        target = local_path(model.artifact_location)
        run_root = local_path(self.client.get_run(self.run_id).info.artifact_uri)
        if target is not None and run_root is not None:
            target.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # a file system without hard links: copy the file below
                (target / path.name).unlink(missing_ok=True)
                os.link(run_root / folder / path.name, target / path.name)
                return
        self.client.log_model_artifact(model.model_id, str(path))

    def _link_to_run(self, model: LoggedModel, message: Checkpoint) -> None:
        outputs = self.client.get_run(self.run_id).outputs
        known = {output.model_id for output in outputs.model_outputs} if outputs else set()
        if model.model_id not in known:
            self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, message.step)])
        metrics = [
            Metric(key, value, time_ms, message.step, model_id=model.model_id)
            for key, value in message.metrics.items()
            if (time_ms := message.metric_times_ms[key])
        ]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics, synchronous=True)


def groups(entries: Iterable[JournalEntry]) -> Iterator[list[JournalEntry]]:
    """Yield groups of consecutive metrics, parameters and tags; other messages are alone."""
    group: list[JournalEntry] = []
    num_values = 0
    for entry in entries:
        size = len(getattr(entry.message, "values", ())) or VALUES_PER_GROUP
        if group and num_values + size > VALUES_PER_GROUP:
            yield group
            group, num_values = [], 0
        group.append(entry)
        num_values += size
    if group:
        yield group


def _parts(values: Sequence[Value], size: int) -> Iterator[Sequence[Value]]:
    return (values[i : i + size] for i in range(0, len(values), size))


def _dataset_input(message: DataSet) -> DatasetInput:
    dataset = Dataset(
        name=message.name,
        digest=message.fingerprint[:36],  # MLflow's limit
        source_type="local",
        source=json.dumps({"uri": message.source}),
        profile=json.dumps({"fingerprint": message.fingerprint}),
    )
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, message.context)])


def local_path(uri: str) -> Path | None:
    """Return the local folder of an artifact URI; None if the URI is not local."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in {"", "file"} else None


def shortened(text: str, limit: int) -> str:
    text = text.encode(errors="replace").decode()  # the bytes of a path may not be valid text
    note = f"… ({len(text)} characters in all)"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def end_run(client: MlflowClient, run_id: str, status: Status, reason: str) -> None:
    """End a run that has no tracker, and keep the reason: as a tag, and as log if it has none."""
    client.set_tag(run_id, names.TAG_STOPPED_BECAUSE, shortened(reason, MAX_TAG_CHARACTERS))
    client.set_tag(run_id, names.TAG_ENDED_AS, status)
    client.set_terminated(run_id, status)
    if names.ARTIFACT_LOG not in [info.path for info in client.list_artifacts(run_id)]:
        line = logging.LogRecord("clew", logging.ERROR, "", 0, reason, None, None)
        client.log_text(run_id, f"{log_formatter.format(line)}\n", names.ARTIFACT_LOG)
