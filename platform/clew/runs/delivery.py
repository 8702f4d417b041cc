"""Puts a run's messages into an MLflow store, in order; every one may be repeated without harm.

MLflow drops a metric value that it has with the same key, step, time and value; tags, files and
equal parameters replace themselves; data sets and model entries are looked up before they are made.

A checkpoint becomes two things. The run's artifact is the whole checkpoint, from which training
can go on. The model entry ("logged model") is what can be registered: weights and manifest, no
optimizer state, no pickle. In a local store its files are hard links to the artifact's, so they
lie on the disk once; a server gets them twice, as MLflow has no way to share them.
"""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
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
from clew.runs.batching import Batch, grouped
from clew.runs.messages import (
    Artifact,
    Checkpoint,
    DataSet,
    Finish,
    Message,
)
from clew.runs.spool import Spool

logger = logging.getLogger(__name__)

MODEL_FILES = ("model.safetensors", "manifest.json")
LAST_FILE = "manifest.json"  # whoever sees it sees a whole checkpoint

# The store understood and said no; after any other error, the next attempt may succeed.
REFUSALS = frozenset(
    {
        "BAD_REQUEST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
    }
)


class RunGoneError(Exception):
    """The run is deleted in the store; what waits for it stays in the spool."""


@dataclass
class Delivery:
    """Sends a spool's messages to the store that it belongs to."""

    client: MlflowClient
    spool: Spool

    @property
    def run_id(self) -> str:
        """The run that the messages are for."""
        return self.spool.origin.run_id

    def send_waiting(self) -> int:
        """Send all that waits and return how many messages that were.

        A message that the store refuses for good is put aside with the reason.

        Raises:
            RunGoneError: the run was deleted.
            Exception: whatever else kept the store from taking a message; try again later.
        """
        count = 0
        for item, last in grouped(self.spool.waiting()):
            messages = item.messages if isinstance(item, Batch) else [item]
            try:
                self._send(item)
            except (MlflowException, FileNotFoundError) as error:
                self._after_refusal(messages, error)
            self.spool.mark_sent(last)
            count += len(messages)
        return count

    def beat(self, key: str, value: str) -> None:
        """Set a tag at once, past the queue."""
        self.client.set_tag(self.run_id, key, value)

    def end_abandoned(self) -> None:
        """End a run that is still RUNNING although the process that wrote it is gone."""
        if self.client.get_run(self.run_id).info.status == "RUNNING":
            self.client.set_terminated(self.run_id, "FAILED")

    def _after_refusal(self, messages: list[Message], error: Exception) -> None:
        """Find the messages that the store will never take; raise if there may be none."""
        if isinstance(error, MlflowException) and error.error_code not in REFUSALS:
            raise error
        self._check_run()
        if len(messages) == 1:
            logger.warning("the store refuses a message for good: %s", error)
            self.spool.refuse(messages[0], str(error))
            return
        for message in messages:
            batch = Batch()
            batch.add(message)  # type: ignore[arg-type]
            try:
                self._send(batch)
            except MlflowException as single:
                self._after_refusal([message], single)

    def _check_run(self) -> None:
        try:
            run = self.client.get_run(self.run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise RunGoneError(f"run {self.run_id} does not exist any more") from None
            raise
        if run.info.lifecycle_stage != "active":
            raise RunGoneError(
                f"run {self.run_id} was deleted; bring it back with `mlflow runs restore --run-id "
                f"{self.run_id}`"
            )

    def _send(self, item: Batch | Message) -> None:
        match item:
            case Batch():
                self._send_batch(item)
            case Artifact():
                self.client.log_artifact(self.run_id, self._staged(item), item.folder or None)
            case Checkpoint():
                self._send_checkpoint(item)
            case DataSet():
                self.client.log_inputs(self.run_id, [_dataset_input(item)])
            case Finish(status, time_ms):
                self.client.set_terminated(self.run_id, status, time_ms)

    def _send_batch(self, batch: Batch) -> None:
        self.client.log_batch(
            self.run_id,
            metrics=batch.metrics,
            params=[Param(key, value) for key, value in batch.params.items()],
            tags=[RunTag(key, value) for key, value in batch.tags.items()],
            synchronous=True,
        )

    def _staged(self, message: Artifact | Checkpoint) -> str:
        path = self.spool.folder / message.staged
        if not path.exists():
            raise FileNotFoundError(f"{path}: no longer in the spool")
        return str(path)

    def _send_checkpoint(self, message: Checkpoint) -> None:
        folder = Path(self._staged(message))
        files = sorted(folder.iterdir(), key=lambda path: (path.name == LAST_FILE, path.name))
        for path in files:
            self.client.log_artifact(self.run_id, str(path), message.folder)
        model = self._model_entry(message)
        if model.status == LoggedModelStatus.READY:
            return
        for path in files:
            if path.name in MODEL_FILES:
                self._put_model_file(model, path, message.folder)
        self._link_to_run(model, message)
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)

    def _model_entry(self, message: Checkpoint) -> LoggedModel:
        """Find the checkpoint's model entry, or make it."""
        found = self.client.search_logged_models(
            [self.spool.origin.experiment_id],
            filter_string=f"source_run_id = '{self.run_id}' "
            f"AND tags.`{names.TAG_MODEL_FOLDER}` = '{message.folder}' "
            f"AND tags.`{names.TAG_MODEL_STEP}` = '{message.step}'",
            max_results=1,
        )
        if found:
            return found[0]
        return self.client.create_logged_model(
            self.spool.origin.experiment_id,
            name=message.folder.rpartition("/")[2].replace(".", "-"),
            source_run_id=self.run_id,
            tags={names.TAG_MODEL_FOLDER: message.folder, names.TAG_MODEL_STEP: str(message.step)},
            model_type="checkpoint",
        )

    def _put_model_file(self, model: LoggedModel, path: Path, folder: str) -> None:
        target = _local_path(model.artifact_location)
        run_root = _local_path(self.client.get_run(self.run_id).info.artifact_uri)
        if target is not None and run_root is not None:
            try:
                _link(run_root / folder / path.name, target / path.name)
            except OSError:  # no hard links here; a copy then
                pass
            else:
                return
        self.client.log_model_artifact(model.model_id, str(path))

    def _link_to_run(self, model: LoggedModel, message: Checkpoint) -> None:
        """Make the model entry an output of the run and give it its metrics."""
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


def _dataset_input(message: DataSet) -> DatasetInput:
    dataset = Dataset(
        name=message.name,
        digest=message.fingerprint[:36],  # MLflow's limit
        source_type="local",
        source=json.dumps({"uri": message.source}),
        profile=json.dumps({"fingerprint": message.fingerprint}),
    )
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, message.context)])


def _local_path(uri: str) -> Path | None:
    """Return the folder that an artifact URI names on this machine, if it names one."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in {"", "file"} else None


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.replace(target)
