"""The thread that sends a run's records while the run is active, and the pace at which it does."""

import logging
import threading
import time
from dataclasses import dataclass

from clew import names
from clew.errors import described
from clew.runs import store
from clew.runs.delivery import Delivery, RunGoneError
from clew.runs.records import Record

logger = logging.getLogger(__name__)


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
            seconds = self._pace.flush_seconds
            if self._num_failures:
                doubled = self._pace.first_retry_seconds * 2.0 ** min(self._num_failures - 1, 16)
                seconds = min(doubled, self._pace.longest_retry_seconds)
            self._closing.wait(seconds)

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
                logger.warning(
                    "run %s is still shown as running in the store (%s); the next command of this "
                    "kind or `clew sync` will end it",
                    self._delivery.run_id,
                    described(error),
                )
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
                    logger.warning(
                        "%s; unsent records are kept in %s", problem, self._delivery.spool.folder
                    )
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
