"""Records a run in MLflow: opens or adopts it, spools what it tells, sends it in the background.

From the outside in: `MlflowTracker` makes messages, `Spool` keeps them on the disk, `Sender` is
the thread that empties it, `Delivery` speaks MLflow.
"""

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Run

from clew import names
from clew.runs import store
from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs.base import FiniteFilter, Status, Tracker, check_key, parameter_key
from clew.runs.batching import MAX_METRICS
from clew.runs.delivery import Delivery
from clew.runs.messages import (
    Artifact,
    Checkpoint,
    DataSet,
    Finish,
    Message,
    Metrics,
    Params,
    Tags,
)
from clew.runs.opening import RunRequest, connect, experiment_name, open_run
from clew.runs.sender import Pace, Sender
from clew.runs.spool import Origin, Spool
from clew.runs.system_metrics import SystemMetrics, available_samplers

V = TypeVar("V")

logger = logging.getLogger(__name__)

MAX_PARAM_CHARACTERS = 6000  # MLflow's limits
MAX_TAG_CHARACTERS = 8000
KEYS_PER_MESSAGE = 40


def open_tracker(
    tracking: TrackingConfig,
    *,
    kind: str,
    run_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent_run_id: str | None = None,
    run_id: str | None = None,
    pace: Pace | None = None,
) -> "MlflowTracker":
    """Open a run of some kind (`train`, `trace`, ...) and return its tracker.

    With `run_id`, go on with that run, and first send what an earlier process of it left in the
    spool. Otherwise adopt the run that `mlflow run` opened, once a process, or create one.

    Raises:
        TrackingError: the store, the experiment, the run or the spool folder cannot be used.
    """
    uri = store.tracking_uri()
    client = connect(uri)
    request = RunRequest(
        experiment=experiment_name(tracking.experiment),
        run_name=tracking.run_name or run_name,
        tags=_texts({names.TAG_KIND: kind} | dict(tags or {}), MAX_TAG_CHARACTERS),
        run_id=run_id,
        parent_run_id=parent_run_id,
    )
    run = open_run(client, request)
    try:
        origin = Origin(uri, run.info.run_id, run.info.experiment_id)
        spool = Spool.create(store.spool_root(uri), origin)
    except TrackingError:
        if run_id is None:
            client.set_terminated(run.info.run_id, "FAILED")
        raise
    tracker = MlflowTracker(
        client, run, spool, log_checkpoints=tracking.log_checkpoints, pace=pace or Pace()
    )
    if tracking.log_system_metrics:
        tracker.start_system_metrics()
    return tracker


class MlflowTracker(Tracker):
    """Writes a run to MLflow without ever waiting for it, except at the end.

    What `flush` and `finish` could not send stays in the spool for `sync_spool`.
    """

    def __init__(
        self,
        client: MlflowClient,
        run: Run,
        spool: Spool,
        *,
        log_checkpoints: bool = True,
        pace: Pace,
    ) -> None:
        self._run = run
        self._spool = spool
        self._log_checkpoints = log_checkpoints
        self._finite = FiniteFilter()
        self._lock = threading.Lock()
        self._told: dict[str, Metrics] = {}
        self._num_buffered = 0
        self._ended = False
        earlier = run.data.tags.get(names.TAG_WARNINGS, "")
        self._warnings: list[str] = earlier.splitlines()
        self._system_metrics: SystemMetrics | None = None
        self._process_id = os.getpid()
        self._sender = Sender(Delivery(client, spool), pace)
        self._sender.start()
        atexit.register(self._end_with_process)

    @property
    def run_id(self) -> str:
        """Identity of the run in MLflow."""
        return str(self._run.info.run_id)

    @property
    def experiment_id(self) -> str:
        """Identity of its experiment."""
        return str(self._run.info.experiment_id)

    def params(self, values: Mapping[str, object]) -> None:
        """Record parameters; a value that MLflow would cut ends with a note on its length."""
        texts = {parameter_key(key): _text(value) for key, value in values.items()}
        for part in _parts(_texts(texts, MAX_PARAM_CHARACTERS), KEYS_PER_MESSAGE):
            self._put(Params(part))

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags."""
        for part in _parts(_texts(values, MAX_TAG_CHARACTERS), KEYS_PER_MESSAGE):
            self._put(Tags(part))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record metric values; they are sent every few seconds, many at once."""
        finite, warnings = self._finite(values, step)
        now = _now_ms()
        for part in _parts(finite, MAX_METRICS):
            message = Metrics(part, step, now)
            self._put(message)
            self._told |= dict.fromkeys(part, message)
            self._num_buffered += len(part)
        for warning in warnings:
            self.warn(warning)
        if self._num_buffered >= MAX_METRICS:
            self._num_buffered = 0
            self._sender.nudge()

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or a folder under its own name, in `folder` of the run."""
        with self._lock:
            self._append(Artifact(self._spool.stage(path), folder))
        self._sender.nudge()

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Store a checkpoint as an artifact and as a model entry with its metrics."""
        if not self._log_checkpoints:
            return
        finite, _ = self._finite(metrics, step)
        times = {key: self._time_of(key, value, step) for key, value in finite.items()}
        with self._lock:
            staged = self._spool.stage(path, link=True)
            self._append(Checkpoint(staged, folder, step, finite, times))
        self._sender.nudge()

    def dataset(self, *, name: str, fingerprint: str, source: str, context: str) -> None:
        """Record a data set as an input of the run."""
        self._put(DataSet(name, fingerprint, source, context))

    def warn(self, message: str) -> None:
        """Log a warning and add it to the run's tag `clew.warnings`, one a line."""
        super().warn(message)
        self._warnings.append(" ".join(message.split()))
        self.tags({names.TAG_WARNINGS: "\n".join(self._warnings)})

    def start_system_metrics(self) -> None:
        """Sample the machine from now on; what cannot be sampled is a warning, not an error."""
        samplers, warnings = available_samplers()
        for message in warnings:
            self.warn(message)
        if samplers:
            self._system_metrics = SystemMetrics(samplers, self.metrics)
            self._system_metrics.start()

    def flush(self) -> None:
        """Wait until the store has everything, or until an attempt at it has failed."""
        self._sender.flush()

    def finish(self, status: Status) -> None:
        """Send the rest and end the run; a second call does nothing."""
        if self._ended:
            return
        if self._system_metrics is not None:
            self._system_metrics.stop()
        self._sender.flush()
        if refused := self._spool.num_refused:
            self.warn(f"the store refused {refused} messages; see {self._spool.folder}")
        self._put(Finish(status, _now_ms()))
        self._ended = True
        self._sender.close()
        self._spool.close()
        atexit.unregister(self._end_with_process)
        if self._spool.num_waiting_bytes:
            logger.warning(
                "run %s has ended but not all of it was sent (%s); send the rest from %s with "
                "`clew sync`",
                self.run_id,
                self._sender.problem,
                self._spool.folder,
            )

    def _put(self, message: Message) -> None:
        with self._lock:
            self._append(message)

    def _append(self, message: Message) -> None:
        if self._ended:
            raise RuntimeError(f"run {self.run_id} has ended; {message.kind} comes too late")
        for key in getattr(message, "values", {}):
            check_key(key)
        self._spool.append(message)

    def _time_of(self, key: str, value: float, step: int) -> int:
        """Return when the run was told this value: told again with that time, it stays one."""
        told = self._told.get(key)
        same = told is not None and told.step == step and told.values[key] == value
        return told.time_ms if told is not None and same else _now_ms()

    def _end_with_process(self) -> None:
        if os.getpid() == self._process_id:
            self.finish("FAILED")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _texts(values: Mapping[str, str], limit: int) -> dict[str, str]:
    """Shorten values that are longer than MLflow keeps, and say so in them."""
    shortened = {}
    for key, value in values.items():
        note = f"… ({len(value)} characters in all)"
        shortened[key] = value if len(value) <= limit else value[: limit - len(note)] + note
    return shortened


def _parts(values: Mapping[str, V], size: int) -> Iterator[dict[str, V]]:
    items = iter(values.items())
    while part := dict(islice(items, size)):
        yield part
