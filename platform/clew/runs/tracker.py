"""Records a run in MLflow without waiting for it, except at the end of the run.

The tracker writes records to the run's folder (`clew.runs.spool`), and the `Forwarder` thread sends
them through `Delivery`, which calls MLflow. A second thread samples the machine.
"""

import atexit
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import described, extra, masked
from clew.runs import base, store
from clew.runs.base import OPEN, Record, Status, Tracker, finite
from clew.runs.delivery import Delivery, log_formatter, shortened
from clew.runs.hardware import sample_machine
from clew.runs.reading.runs import RunGoneError
from clew.runs.spool import Spool

logger = logging.getLogger(__name__)

VALIDATION = names.metric("valid", "")
"""Prefix of the metrics that are also recorded with a checkpoint."""
MAX_PARAM_CHARACTERS = 6000  # MLflow's limits


class RunLog(logging.FileHandler):
    """Writes Clew's log messages during a run to a file, which is stored when the run ends.

    The errors of a database, with MLflow's tracebacks, are there too.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setFormatter(log_formatter)
        self._sources = [logging.getLogger(name) for name in ("clew", "mlflow.store.db")]
        for source in self._sources:
            source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # On a full disk, or if the folder was removed, other records report the problem.
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore a problem of the disk, instead of printing a traceback."""

    def end(self, reason: str = "") -> None:
        """Stop collecting messages; add a last line that says why the run ended, if not empty."""
        for source in self._sources:
            source.removeHandler(self)
        if reason:
            self.handle(logging.LogRecord("clew", logging.ERROR, "", 0, reason, None, None))
        self.close()


@dataclass(frozen=True)
class Pace:
    """Time intervals of the forwarder, in seconds."""

    flush_seconds: float = 5.0
    """Longest time before a metric value is sent while the store responds."""
    heartbeat_seconds: float = 15.0
    """Time between two heartbeats of the run."""
    first_retry_seconds: float = 1.0
    """Wait after the first failed attempt; doubled after each further failure."""
    longest_retry_seconds: float = 30.0
    """Longest wait between two attempts."""
    patience_seconds: float = 10.0
    """How long the end of a run waits for a store that does not respond."""


class Forwarder(threading.Thread):
    """Sends the unsent records of a spool, and regular heartbeats.

    This thread sends the heartbeats, so that a run does not look dead during a long evaluation
    between two metric values.
    """

    def __init__(self, delivery: Delivery, pace: Pace) -> None:
        super().__init__(name="clew-forwarder", daemon=True)
        self.problem: str | None = None
        """Why the last attempt failed; None if it succeeded."""
        self._delivery = delivery
        self._pace = pace
        self._attempting = threading.Lock()
        self._closing = threading.Event()
        self._num_failures = 0
        self._run_is_gone = False
        self._next_beat = 0.0

    def run(self) -> None:
        """Send records at intervals until the thread is closed; wait longer after each failure."""
        while not self._closing.is_set():
            self.flush()
            pace, doubled = self._pace, 2.0 ** min(self._num_failures - 1, 16)
            later = min(pace.first_retry_seconds * doubled, pace.longest_retry_seconds)
            self._closing.wait(later if self._num_failures else pace.flush_seconds)

    def close(self) -> None:
        """End the thread and send the rest; give up after a while if the store does not respond."""
        self._closing.set()
        self.join()
        spool = self._delivery.spool
        give_up = time.monotonic() + self._pace.patience_seconds
        while spool.num_waiting_bytes:
            sent = spool.sent
            self.flush()
            if spool.sent > sent:
                give_up = time.monotonic() + self._pace.patience_seconds
            elif self._run_is_gone or time.monotonic() >= give_up:
                return
            elif self.problem:
                time.sleep(min(self._pace.first_retry_seconds, 1.0))

    def send_now(self, record: Record) -> bool:
        """Send a record without the spool; return whether the store accepted it."""
        with self._attempting:
            try:
                self._delivery.send([record])
            except Exception as error:
                problem = "run %s is still shown as running in the store (%s); the next command of "
                problem += "this kind or `clew sync` will end it"
                logger.warning(problem, self._delivery.run_id, described(error))
                return False
        return True

    def flush(self) -> None:
        """Send all unsent records; keep the reason of a failure, and log the first in a row."""
        with self._attempting:
            try:
                self._attempt()
            except Exception as error:
                self._num_failures += 1
                self._run_is_gone = isinstance(error, RunGoneError)
                problem = store.reason_of(error)
                if not self._run_is_gone:
                    problem = f"the tracking store does not accept the records ({problem})"
                if self.problem is None:
                    folder = self._delivery.spool.folder
                    logger.warning("%s; unsent records are kept in %s", problem, folder)
                self.problem = problem
            else:
                if self.problem is not None:
                    logger.warning("the tracking store responds again; all records were sent")
                self._num_failures, self._run_is_gone, self.problem = 0, False, None

    def _attempt(self) -> None:
        client = self._delivery.client
        if store.is_missing(str(client.tracking_uri)):
            raise ConnectionError(f"{client.tracking_uri} is gone")
        # MLflow's client would wait for half a minute; a probe fails within seconds.
        if self.problem and (reason := store.probe(str(client.tracking_uri))):
            raise ConnectionError(reason)
        self._delivery.send_waiting()
        if time.monotonic() >= self._next_beat and not self._closing.is_set():
            client.set_tag(self._delivery.run_id, names.TAG_HEARTBEAT, str(int(time.time())))
            self._next_beat = time.monotonic() + self._pace.heartbeat_seconds


class MlflowTracker(Tracker):
    """Records a run in MLflow; `clew sync` later sends what could not be sent at its end."""

    def __init__(
        self, client: MlflowClient, run: Run, spool: Spool, tracking: TrackingConfig, pace: Pace
    ) -> None:
        self.run_id: str = run.info.run_id
        self._client = client
        self._spool = spool
        self._log_checkpoints = tracking.log_checkpoints
        self._left_out: set[str] = set()
        """Metrics that had a value that was not finite."""
        self._lock = threading.Lock()
        self._recorded: dict[tuple[str, int], tuple[float, int]] = {}
        """Value and time in milliseconds of the validation metrics, by key and step."""
        self._ended = False
        self._warnings: list[str] = run.data.tags.get(names.TAG_WARNINGS, "").splitlines()
        self._process_id = os.getpid()
        self._log = RunLog(spool.log)
        self._reason = ""
        """Why the run did not finish."""
        self._forwarder = Forwarder(Delivery(client, spool), pace)
        self._forwarder.start()
        self._is_ending = threading.Event()
        self._sampling: threading.Thread | None = None
        if tracking.log_system_metrics:
            sampled = (self._record, self._is_ending)
            self._sampling = threading.Thread(
                target=sample_machine, args=sampled, name="clew-system-metrics", daemon=True
            )
            self._sampling.start()
        atexit.register(self._end_with_process)
        OPEN.add(self)

    def params(self, values: Mapping[str, object]) -> None:
        texts = {base.parameter_key(key): _text(value) for key, value in values.items()}
        self._write(base.Params({k: shortened(v, MAX_PARAM_CHARACTERS) for k, v in texts.items()}))

    def tags(self, values: Mapping[str, str]) -> None:
        for key in values:
            base.check_key(key)
        self._reason = values.get(names.TAG_STOPPED_BECAUSE, self._reason)
        self._write(base.Tags({k: shortened(v) for k, v in values.items()}))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record metric values; they are sent every few seconds, many at once."""
        super().metrics(values, step)
        self._record(values, step)

    def _record(self, values: Mapping[str, float], step: int) -> None:
        kept = finite(values)
        new = {k: v for k, v in kept.items() if self._recorded_at(k, v, step) is None}
        if new:
            now = _now_ms()
            self._write(base.Metrics(new, step, now))
            checks = {(k, step): (v, now) for k, v in new.items() if k.startswith(VALIDATION)}
            self._recorded |= checks
        for key in [key for key in values if key not in kept and key not in self._left_out]:
            self._left_out.add(key)
            found = f"{key} was {float(values[key])} at step {step}"
            self.warn(f"{found}; values that are not finite are not recorded")

    def artifact(self, path: Path, folder: str = "") -> None:
        with self._lock:
            self._append(base.Artifact(self._spool.stage(path), folder))

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Store a checkpoint as an artifact and as a model entry with its metrics."""
        if not self._log_checkpoints:
            return
        kept = finite(metrics)
        times = {k: self._recorded_at(k, v, step) or _now_ms() for k, v in kept.items()}
        with self._lock:
            staged = self._spool.stage(path, link=True)
            self._append(base.Checkpoint(staged, folder, step, kept, times))

    def dataset(self, data: base.DataSet) -> None:
        self._write(replace(data, name=masked(data.name), source=masked(data.source)))

    def warn(self, message: str) -> None:
        """Log a warning and add it to the run's tag `clew.warnings`, one per line."""
        super().warn(message)
        self._warnings.append(" ".join(message.split()))
        self.tags({names.TAG_WARNINGS: "\n".join(self._warnings)})

    def recall(self) -> None:
        """Read the recorded validation metrics, because a resumed run measures some again."""
        self.flush()  # an earlier process may have left validation metrics in the spool
        with store.using(f"the validations of run {self.run_id}"):
            for key in self._client.get_run(self.run_id).data.metrics:
                if key.startswith(VALIDATION):
                    self._recorded |= {
                        (key, point.step): (point.value, point.timestamp)
                        for point in self._client.get_metric_history(self.run_id, key)
                    }

    def flush(self) -> None:
        """Wait until the store has everything, or until an attempt to send it has failed."""
        super().flush()
        self._forwarder.flush()

    def finish(self, status: Status) -> None:
        """Send the remaining records and end the run; a second call does nothing.

        Ctrl-C during this method shortens the sending; the run still gets its status.
        """
        if self._ended:
            return
        OPEN.discard(self)
        super().finish(status)
        try:
            self._is_ending.set()
            if self._sampling is not None:
                self._sampling.join()
            self._keep_log()
            self._forwarder.flush()
            if refused := self._spool.num_refused:
                self.warn(f"the store refused {refused} records; see {self._spool.folder}")
        finally:
            self._end(base.Finish(status, _now_ms()))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._ended:
            reason = base.outcome_of(error)[1]
            self._log.end(reason)
            self._reason = self._reason or reason
        super().__exit__(kind, error, trace)

    def _keep_log(self) -> None:
        """Store the log as an artifact; a full disk must not change the status of the run."""
        self._log.end()
        if not self._spool.log.exists():
            return
        try:
            with self._lock:
                self._append(base.Artifact(self._spool.stage(self._spool.log, link=True), ""))
        except OSError as error:
            logger.warning("the log of run %s could not be stored (%s)", self.run_id, error)

    def _end(self, end: base.Finish) -> None:
        last: list[Record] = [end]
        if self._reason:
            reason = {names.TAG_STOPPED_BECAUSE: shortened(self._reason)}
            last.insert(0, base.Tags(reason | {names.TAG_ENDED_AS: end.status}))
        is_told = False
        try:
            for message in last:
                self._write(message)
            is_told = True
        except OSError as error:
            problem = "the end of run %s cannot be written to its folder (%s)"
            logger.warning(problem, self.run_id, error)
        self._ended = True
        try:
            self._forwarder.close()
            is_told = is_told or all([self._forwarder.send_now(message) for message in last])
        finally:
            self._spool.close(keep=not is_told)
            atexit.unregister(self._end_with_process)
            if self._spool.num_waiting_bytes:
                problem = "run %s has ended, but some records were not sent (%s); run `clew sync` "
                problem += "to send the rest from %s"
                why, folder = self._forwarder.problem, self._spool.folder
                logger.warning(problem, self.run_id, why, folder)

    def _write(self, record: Record) -> None:
        with self._lock:
            self._append(record)

    def _append(self, record: Record) -> None:
        if self._ended:
            raise RuntimeError(f"run {self.run_id} has ended; {record.kind} cannot be recorded")
        self._spool.append(record)

    def _recorded_at(self, key: str, value: float, step: int) -> int | None:
        """Return when the run recorded this value, so that a repetition adds no second point."""
        before, time_ms = self._recorded.get((key, step), (None, 0))
        return time_ms if before == value else None

    def _end_with_process(self) -> None:
        if os.getpid() == self._process_id:
            self._reason = self._reason or "the program ended without ending this run"
            self._log.end(self._reason)
            self.finish("FAILED")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def write_events(tracker: Tracker, folder: Path) -> None:
    """Write a tracker's metrics to TensorBoard's event files too, in a folder for each run."""
    with extra("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

    name = tracker.run_id or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    tracker.events = SummaryWriter(log_dir=str(folder / name))
