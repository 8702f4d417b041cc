"""The log of a run: what the program said while the run lasted, kept among its artifacts."""

import logging
from collections import deque

MAX_LINES = 5000
"""The first and the last lines matter; of a longer log the last ones stay."""
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class RunLog(logging.Handler):
    """Keeps in memory what Clew logs, until it is taken off again."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._source = logging.getLogger("clew")
        self._source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self._lines.append(self.format(record))

    def end(self, error: BaseException | None = None) -> None:
        """Take no further messages; the last line says what ended the run, if anything did."""
        self._source.removeHandler(self)
        if error is not None:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            record = logging.LogRecord("clew", logging.ERROR, "", 0, said, None, None)
            self.emit(record)

    def text(self) -> str:
        """Return all lines; empty if nothing was said."""
        return "".join(f"{line}\n" for line in self._lines)
