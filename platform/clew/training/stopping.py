"""What may end a training early: a signal of a person or a scheduler, or a search that watches."""

import logging
import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from clew.runs.base import Tracker

logger = logging.getLogger(__name__)


@dataclass
class StopRequest:
    """Whether SIGINT or SIGTERM has come."""

    requested: bool = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note the first signal within the context; a second one interrupts immediately.

        Only a process's main thread may handle signals; in another one this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def request(signum: int, frame: types.FrameType | None) -> None:
            self.requested = True
            signal.signal(signum, signal.default_int_handler)
            logger.warning("stopping after this step")

        previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)


class Watch:
    """Follows a training, and may end it early, as a search does; this base class only looks on.

    Each method but the first may raise `Interrupted`, which ends the training at once; its run is
    then KILLED, and no further checkpoint is written.
    """

    def started(self, tracker: Tracker) -> None:
        """Receive the run's tracker, before anything is trained."""

    def before_step(self) -> None:
        """See that another optimizer step comes."""

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """See the validation metric.

        Args:
            value: Of `evaluation.metric`.
            epoch: Epochs done; one that steps cut short counts too.
            is_last: Whether training ends here in any case.
        """
