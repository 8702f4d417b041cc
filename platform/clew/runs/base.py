"""The seam of tracking: what a run tells, and to whom.

`Tracker` is also the no-op: a run that nobody records uses it as it is. The MLflow adapter is
`clew.runs.tracker`.
"""

import functools
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from clew import names
from clew.errors import Interrupted

logger = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]

_KEY = re.compile(r"[\w.\- :]+(/[\w.\- :]+)*")
MAX_KEY_CHARACTERS = 250


@functools.lru_cache(maxsize=4096)
def check_key(key: str) -> None:
    """Refuse a metric, parameter or tag key that a store would refuse much later."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_CHARACTERS or ".." in key:
        raise ValueError(
            f"key {key!r}: expected at most {MAX_KEY_CHARACTERS} letters, digits, `_-. :`, in "
            "parts separated by `/` (for example `valid/hits_at_10`, not `hits@10`)"
        )


def parameter_key(key: str) -> str:
    """Return the key under which a parameter is stored: `cfg.` before it, once."""
    key = names.PARAMETER_PREFIX + key.removeprefix(names.PARAMETER_PREFIX)
    check_key(key)
    return key


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that a store can keep, as floats: neither infinite nor NaN."""
    for key in values:
        check_key(key)
    numbers = {key: float(value) for key, value in values.items()}
    return {key: number for key, number in numbers.items() if math.isfinite(number)}


class Tracker:
    """Receives what a run tells; this base class forgets it all.

    As a context manager it ends the run: FINISHED, KILLED for an interruption, else FAILED.
    """

    @property
    def run_id(self) -> str | None:
        """Identity of the run in the store, if there is one."""
        return None

    def params(self, values: Mapping[str, object]) -> None:
        """Record parameters, once each; keys are put under `cfg.` where they are not yet."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags; a later value replaces an earlier one."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record metric values at an optimizer step.

        Those that are infinite or NaN are left out, with a warning on the run for each key.
        """

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or a folder under its own name, in `folder` of the run.

        `path` may change or go as soon as this returns.
        """

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Store the files in `path` in `folder` of the run, and as a registrable model entry.

        `path` may go as soon as this returns; its files must not be written in place after.
        """

    def dataset(self, *, name: str, fingerprint: str, source: str, context: str) -> None:
        """Record a data set as an input of the run."""

    def warn(self, message: str) -> None:
        """Log a warning and record it on the run."""
        logger.warning("%s", message)

    def flush(self) -> None:
        """Wait until the store has everything, or until it is clear that it does not answer."""

    def finish(self, status: Status) -> None:
        """Flush everything and end the run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish("FINISHED")
        elif isinstance(error, KeyboardInterrupt | Interrupted):
            self.finish("KILLED")
        else:
            self.finish("FAILED")
