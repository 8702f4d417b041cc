"""Forwards journals to the store: by a thread while the run lives, by `clew sync` afterwards.

The program never waits for the store: it writes to the journal, the thread sends. While the store
does not answer, attempts become rarer; nothing is lost, only late.
"""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient

from clew import names
from clew.errors import TrackingError, printable
from clew.runs import store
from clew.runs.delivery import Delivery, RunGoneError
from clew.runs.journal import Journal, JournalInUseError, list_journals
from clew.runs.messages import Message

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often the forwarder does what, in seconds."""

    flush_seconds: float = 5.0
    """Longest wait of a metric value while the store answers."""
    heartbeat_seconds: float = 15.0
    """Between two signs of life on the run."""
    first_retry_seconds: float = 1.0
    """Wait after the first attempt that failed; doubled after each further one."""
    longest_retry_seconds: float = 30.0
    """Longest wait between two attempts."""
    patience_seconds: float = 10.0
    """How long the end of a run waits for a store that does not answer."""


class Forwarder(threading.Thread):
    """Sends what waits in a journal, and a sign of life now and then.

    The sign of life comes from this thread, so that a long evaluation between two metric values
    does not look like a dead run.
    """

    def __init__(self, delivery: Delivery, pace: Pace) -> None:
        super().__init__(name="clew-forwarder", daemon=True)
        self.problem: str | None = None
        """Why the last attempt failed, if it did."""
        self._delivery = delivery
        self._pace = pace
        self._attempting = threading.Lock()
        self._closing = threading.Event()
        self._num_failures = 0
        self._run_is_gone = False
        self._next_beat = 0.0

    def run(self) -> None:
        """Send and wait, until closed; wait longer after each failure."""
        while not self._closing.is_set():
            self.flush()
            seconds = self._pace.flush_seconds
            if self._num_failures:
                doubled = self._pace.first_retry_seconds * 2.0 ** min(self._num_failures - 1, 16)
                seconds = min(doubled, self._pace.longest_retry_seconds)
            self._closing.wait(seconds)

    def close(self) -> None:
        """End the thread and send the rest, with some patience for a store that does not answer."""
        self._closing.set()
        self.join()
        journal = self._delivery.journal
        give_up = time.monotonic() + self._pace.patience_seconds
        while journal.num_waiting_bytes:
            sent = journal.sent
            self.flush()
            if journal.sent > sent:
                give_up = time.monotonic() + self._pace.patience_seconds
            elif self._run_is_gone or time.monotonic() >= give_up:
                return
            elif self.problem:
                time.sleep(min(self._pace.first_retry_seconds, 1.0))

    def send_now(self, message: Message) -> bool:
        """Send a message that the journal cannot take; return whether the store has it."""
        with self._attempting:
            try:
                self._delivery.send([message])
            except Exception as error:
                logger.warning(
                    "run %s still looks alive in the store (%s); the next command like this one, "
                    "or `clew sync`, ends it",
                    self._delivery.run_id,
                    store.first_line(error),
                )
                return False
        return True

    def flush(self) -> None:
        """Send all that waits; a failure is remembered, and logged when it begins."""
        with self._attempting:
            try:
                self._attempt()
            except Exception as error:
                self._num_failures += 1
                self._run_is_gone = isinstance(error, RunGoneError)
                problem = store.first_line(error)
                if not self._run_is_gone:
                    problem = f"the tracking store does not take what it is sent ({problem})"
                if self.problem is None:
                    logger.warning("%s; it is kept in %s", problem, self._delivery.journal.folder)
                self.problem = problem
            else:
                if self.problem is not None:
                    logger.warning("the tracking store answers again; everything waiting was sent")
                self._num_failures, self._run_is_gone, self.problem = 0, False, None

    def _attempt(self) -> None:
        client = self._delivery.client
        # Where MLflow's client would wait for half a minute, a probe fails within seconds.
        if self.problem and (reason := store.probe(str(client.tracking_uri))):
            raise ConnectionError(reason)
        self._delivery.send_waiting()
        if time.monotonic() >= self._next_beat and not self._closing.is_set():
            client.set_tag(self._delivery.run_id, names.TAG_HEARTBEAT, str(int(time.time())))
            self._next_beat = time.monotonic() + self._pace.heartbeat_seconds


@dataclass(frozen=True)
class SyncResult:
    """What became of one run's journal."""

    folder: Path
    run_id: str
    num_sent: int = 0
    num_refused: int = 0
    problem: str | None = None
    """Why the journal is still there, if it is."""
    is_alive: bool = False
    """Whether that is because a running process writes it, and will send it itself."""


def sync_spool(root: Path | None = None) -> list[SyncResult]:
    """Send what waits in every journal of the store in use, and end runs whose process died.

    A journal that is sent is removed; one whose process is alive is left alone. A journal of
    another store waits until that store is in use: the address in a file is not trusted.
    """
    return [_sync_one(folder) for folder in list_journals(root or store.spool_root())]


def end_dead_runs(client: MlflowClient, kind: str) -> None:
    """Send what dead processes of this machine left of runs of a kind, and end those runs."""
    for folder in list_journals(store.spool_root(str(client.tracking_uri))):
        try:
            tags = client.get_run(folder.name).data.tags
        except Exception as error:  # of another store, or deleted
            logger.debug("%s: %s", folder, store.first_line(error))
            continue
        if tags.get(names.TAG_KIND) == kind and _sync_one(folder).problem is None:
            logger.info("run %s is ended: its process died", folder.name)


def _sync_one(folder: Path) -> SyncResult:
    try:
        journal = Journal.open(folder)
    except TrackingError as error:
        is_alive = isinstance(error, JournalInUseError)
        return SyncResult(folder, folder.name, problem=str(error), is_alive=is_alive)
    uri = store.tracking_uri()
    wanted = journal.origin.tracking_uri
    sent, problem = 0, None
    if store.address(wanted) != store.address(uri):
        problem = (
            f"it belongs to {printable(store.shown(wanted))}, the store in use is "
            f"{store.shown(uri)}; set MLFLOW_TRACKING_URI to the first and run `clew sync` again"
        )
    else:
        try:
            delivery = Delivery(store.connect(uri), journal)
            sent = delivery.send_waiting()
            if delivery.client.get_run(delivery.run_id).info.status == "RUNNING":
                delivery.client.set_terminated(delivery.run_id, "FAILED")  # its process is gone
        except Exception as error:
            problem = store.first_line(error)
            logger.info("%s: %s", folder, problem)
    refused = journal.num_refused
    if refused and problem is None:
        problem = f"the store refused {refused} messages; see {folder / 'refused.jsonl'}"
    journal.close(keep=problem is not None)
    return SyncResult(folder, journal.origin.run_id, sent, refused, problem)
