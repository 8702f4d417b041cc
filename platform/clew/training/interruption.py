"""Stops training between two steps when a person or a scheduler asks for it."""

import logging
import signal
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
            logger.warning("stopping after this step; a checkpoint will be written")

        previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)
