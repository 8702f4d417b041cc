"""The thread that empties a run's spool into the store while the program works on.

The program never waits for the store: it appends to the spool, the sender sends. While the store
does not answer, attempts become rarer; nothing is lost, only late.
"""

import logging
import threading
import time
from dataclasses import dataclass

from clew import names
from clew.runs import store
from clew.runs.delivery import Delivery, RunGoneError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often the sender does what, in seconds."""

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


class Sender(threading.Thread):
    """Sends what waits in a spool, and a sign of life now and then.

    The sign of life says that the process lives; it comes from this thread, so that a long
    evaluation between two metric values does not look like a dead run.
    """

    def __init__(self, delivery: Delivery, pace: Pace) -> None:
        super().__init__(name="clew-sender", daemon=True)
        self.problem: str | None = None
        self._delivery = delivery
        self._pace = pace
        self._state = threading.Condition()
        self._closing = False
        self._gone = False
        self._rounds_asked = 0
        self._rounds_done = 0
        self._failures = 0
        self._last_beat = float("-inf")
        self._waiting_since: float | None = None

    def nudge(self) -> None:
        """Send soon."""
        with self._state:
            self._rounds_asked += 1
            self._state.notify_all()

    def flush(self) -> bool:
        """Wait until all that waits now is sent, or an attempt at it has failed."""
        with self._state:
            self._rounds_asked += 1
            asked = self._rounds_asked
            self._state.notify_all()
            self._state.wait_for(
                lambda: self._rounds_done >= asked or self._gone or not self.is_alive()
            )
        return self.problem is None

    def close(self) -> None:
        """Send the rest, as far as the store answers, and end the thread."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        self.join()

    def run(self) -> None:
        """Send, wait, and again, until closed and done."""
        while not self._gone:
            with self._state:
                asked, closing, sent = self._rounds_asked, self._closing, self._delivery.spool.sent
            self._attempt()
            with self._state:
                self._rounds_done = asked
                self._state.notify_all()
            if closing and self._is_done(made_progress=self._delivery.spool.sent > sent):
                return
            self._wait(asked)

    def _is_done(self, *, made_progress: bool) -> bool:
        """Return whether all is sent, or the store has not taken anything for too long."""
        if self._failures == 0:
            return self._delivery.spool.num_waiting_bytes == 0
        if made_progress or self._waiting_since is None:
            self._waiting_since = time.monotonic()
        return time.monotonic() - self._waiting_since >= self._pace.patience_seconds

    def _attempt(self) -> None:
        """Send what waits; a failure is remembered, and told when it begins."""
        try:
            if self._failures and (reason := store.probe(self._delivery.spool.origin.tracking_uri)):
                raise ConnectionError(reason)
            self._delivery.send_waiting()
            self._beat()
        except RunGoneError as error:
            self._gone = True
            self._failures += 1
            self._tell(str(error))
        except Exception as error:
            self._failures += 1
            self._tell(f"the tracking store does not take what it is sent ({_one_line(error)})")
        else:
            if self._failures:
                logger.warning("the tracking store answers again; everything waiting was sent")
            self._failures = 0
            self.problem = None

    def _tell(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("%s; it is kept in %s", problem, self._delivery.spool.folder)
        self.problem = problem

    def _beat(self) -> None:
        now = time.time()
        if now - self._last_beat >= self._pace.heartbeat_seconds and not self._closing:
            self._delivery.beat(names.TAG_HEARTBEAT, str(int(now)))
            self._last_beat = now

    def _wait(self, asked: int) -> None:
        """Wait for the next turn: the flush interval, or longer after failures."""
        pace, seconds = self._pace, self._pace.flush_seconds
        if self._failures:
            doubled = pace.first_retry_seconds * 2.0 ** min(self._failures - 1, 16)
            seconds = min(doubled, pace.longest_retry_seconds)
        with self._state:
            if self._closing and self._failures:
                self._state.wait(min(seconds, 1.0))
            else:
                self._state.wait_for(lambda: self._closing or self._rounds_asked > asked, seconds)


def _one_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
