"""Sends journals to the store: in a thread while the run is active, with `clew sync` afterwards.

The program writes to the journal and never waits for the store; the thread sends the messages.
While the store does not respond, the thread tries less often. Nothing is lost; it only arrives
late.
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
from clew.runs.delivery import Delivery, RunGoneError, end_run
from clew.runs.journal import Journal, JournalInUseError, list_journals
from clew.runs.messages import Message

logger = logging.getLogger(__name__)

DIED = "its process ended without a word: it was killed, or the machine stopped"
"""Why a run ended whose process is gone."""


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
    """Sends the unsent messages of a journal, and regular heartbeats.

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
        """Send messages at intervals until the thread is closed; wait longer after each failure."""
        while not self._closing.is_set():
            self.flush()
            seconds = self._pace.flush_seconds
            if self._num_failures:
                doubled = self._pace.first_retry_seconds * 2.0 ** min(self._num_failures - 1, 16)
                seconds = min(doubled, self._pace.longest_retry_seconds)
            self._closing.wait(seconds)

    def close(self) -> None:
        """End the thread and send the rest; give up after a while if the store does not respond."""
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
        """Send a message without the journal; return whether the store accepted it."""
        with self._attempting:
            try:
                self._delivery.send([message])
            except Exception as error:
                logger.warning(
                    "run %s is still shown as running in the store (%s); the next command of this "
                    "kind or `clew sync` will end it",
                    self._delivery.run_id,
                    store.first_line(error),
                )
                return False
        return True

    def flush(self) -> None:
        """Send all unsent messages; keep the reason of a failure, and log the first in a row."""
        with self._attempting:
            try:
                self._attempt()
            except Exception as error:
                self._num_failures += 1
                self._run_is_gone = isinstance(error, RunGoneError)
                problem = store.first_line(error)
                if not self._run_is_gone:
                    problem = f"the tracking store does not accept the records ({problem})"
                if self.problem is None:
                    logger.warning(
                        "%s; unsent records are kept in %s", problem, self._delivery.journal.folder
                    )
                self.problem = problem
            else:
                if self.problem is not None:
                    logger.warning("the tracking store responds again; all records were sent")
                self._num_failures, self._run_is_gone, self.problem = 0, False, None

    def _attempt(self) -> None:
        client = self._delivery.client
        # MLflow's client would wait for half a minute; a probe fails within seconds.
        if self.problem and (reason := store.probe(str(client.tracking_uri))):
            raise ConnectionError(reason)
        self._delivery.send_waiting()
        if time.monotonic() >= self._next_beat and not self._closing.is_set():
            client.set_tag(self._delivery.run_id, names.TAG_HEARTBEAT, str(int(time.time())))
            self._next_beat = time.monotonic() + self._pace.heartbeat_seconds


@dataclass(frozen=True)
class SyncResult:
    """The result of sending one run's journal."""

    folder: Path
    run_id: str
    num_sent: int = 0
    num_refused: int = 0
    problem: str | None = None
    """Why the journal was not removed; None if it was."""
    is_alive: bool = False
    """Whether a running process still writes to the journal; that process will send it."""


def sync_spool(root: Path | None = None) -> list[SyncResult]:
    """Send all journals that belong to the store in use, and end runs whose process has died.

    A journal is removed after it was sent, and left alone while its process is running. A journal
    of another store stays until that store is in use, because the address in the journal is not
    trusted.
    """
    return [_sync_one(folder) for folder in list_journals(root or store.spool_root())]


def end_dead_runs(client: MlflowClient, kind: str) -> None:
    """Send the journals that dead processes left on this machine, and end their runs of a kind."""
    for folder in list_journals(store.spool_root(str(client.tracking_uri))):
        try:
            tags = client.get_run(folder.name).data.tags
        except Exception as error:  # of another store, or deleted
            logger.debug("%s: %s", folder, store.first_line(error))
            continue
        if tags.get(names.TAG_KIND) == kind and _sync_one(folder).problem is None:
            logger.info("run %s was ended because its process had died", folder.name)


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
            f"it belongs to {printable(store.shown(wanted))}, but the store in use is "
            f"{store.shown(uri)}; set MLFLOW_TRACKING_URI to the first and run `clew sync` again"
        )
    else:
        try:
            delivery = Delivery(store.connect(uri), journal)
            sent = delivery.send_waiting()
            run = delivery.client.get_run(delivery.run_id)
            # `mlflow run` may have ended the run of the dead process, but does not know why.
            is_silent = names.TAG_STOPPED_BECAUSE not in run.data.tags
            if run.info.status == "RUNNING" or (run.info.status == "FAILED" and is_silent):
                end_run(delivery.client, delivery.run_id, "FAILED", DIED)
        except Exception as error:
            problem = store.first_line(error)
            logger.info("%s: %s", folder, problem)
    refused = journal.num_refused
    if refused and problem is None:
        problem = f"the store refused {refused} messages; see {folder / 'refused.jsonl'}"
    journal.close(keep=problem is not None)
    return SyncResult(folder, journal.origin.run_id, sent, refused, problem)
