"""What can stop training early: SIGINT, SIGTERM, or a hyperparameter search that watches it."""

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
    """Whether this process has received SIGINT or SIGTERM."""

    requested: bool = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the first signal inside this context; a second signal interrupts immediately.

        Only the main thread of a process can handle signals. In other threads, this does nothing.
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
    """Watches a training and can stop it early, as a search does; this base class does nothing.

    Each method except `started` can raise `Interrupted`, which stops the training immediately. Its
    run then has the status KILLED, and no further checkpoint is written.
    """

    def started(self, tracker: Tracker) -> None:
        """Receive the run's tracker before training starts."""

    def before_step(self) -> None:
        """Receive a call before every optimizer step."""

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """Receive the result of a validation.

        Args:
            value: The value of `evaluation.metric`.
            epoch: Number of epochs done, including an epoch that `max_steps` ended early.
            is_last: Whether training ends after this validation in any case.
        """
