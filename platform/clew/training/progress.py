"""The progress of a training: its metrics and counters, which a resume needs, and what stops it."""

import itertools
import logging
import math
import signal
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from clew.errors import CheckpointError, described
from clew.runs.base import Tracker


@dataclass(frozen=True)
class MetricValue:
    """One value of one metric."""

    key: str
    value: float
    step: int
    epoch: int
    elapsed_seconds: float


@dataclass
class History:
    """Records metric values and sends them to the tracker.

    `elapsed_seconds` counts from the start of training and continues after a resume.
    """

    tracker: Tracker
    entries: list[MetricValue] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def record(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        elapsed = self.elapsed_seconds
        self.entries.extend(
            MetricValue(key, float(value), step, epoch, elapsed) for key, value in values.items()
        )
        self.tracker.metrics(values, step)

    def start(self) -> None:
        """Start the clock; after a resume, it continues from the last recorded time."""
        before = self.entries[-1].elapsed_seconds if self.entries else 0.0
        self.started = time.perf_counter() - before

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since training started, including the time before a resume."""
        return time.perf_counter() - self.started

    def restore(self, entries: Sequence[MetricValue]) -> None:
        """Restore saved entries and send them again, so that a resumed run has complete curves."""
        self.entries = list(entries)
        together = itertools.groupby(self.entries, key=lambda e: (e.step, e.elapsed_seconds))
        for (step, _), same in together:
            self.tracker.metrics({entry.key: entry.value for entry in same}, step)

    def write(self, path: Path) -> None:
        """Write all entries as Parquet: key, value, step, epoch, elapsed_seconds."""
        columns = {
            name: [getattr(entry, name) for entry in self.entries]
            for name in MetricValue.__dataclass_fields__
        }
        schema = pa.schema(
            [
                ("key", pa.string()),
                ("value", pa.float64()),
                ("step", pa.int64()),
                ("epoch", pa.int64()),
                ("elapsed_seconds", pa.float64()),
            ]
        )
        pq.write_table(pa.table(columns, schema=schema), path)


def last_step(path: Path) -> int:
    """Return the last optimizer step of a finished run, which its last checkpoint has too.

    Raises:
        CheckpointError: The file is not a history file.
    """
    try:
        steps = pq.read_table(path, columns=["step"])["step"].cast(pa.int64())
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a run's history ({described(error)}); copy it here again"
        ) from None
    return int(pc.max(steps).as_py() or 0)


Count = Annotated[int, Field(strict=True, ge=0)]
Weight = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Number = int | float


@dataclass
class Progress:
    """The progress of training: counters, weights and the best metric."""

    step: Count = 0
    """Optimizer steps taken."""
    epoch: Count = 0
    """Epochs completed."""
    cursor: Count = 0
    """Microbatches of the current epoch already consumed."""
    closed_step: int = -1
    """Step at which an epoch, or the part of an epoch that `max_steps` allows, was last closed."""
    checkpoint_step: Count = 0
    """Step of the newest checkpoint; 0 before the first."""
    previous_step: Count | None = 0
    """Step that the learning-rate weight counts from."""
    learning_rate_weight: Weight = 0.0
    """Sum over steps since `previous_step` of rate / count / (1 - momentum).

    The sum restarts at the first step after a checkpoint, not at the checkpoint itself. So a
    checkpoint that is written twice at the same step, for example by a resumed run, has the same
    weight both times."""
    best_metric: float = math.nan
    """Best validation metric so far."""
    best_step: int = -1
    """Step of the best metric."""
    stale_evaluations: Count = 0
    """Evaluations since the best one."""
    interval_loss: float = 0.0
    """Summed loss since the last logged value."""
    interval_count: float = 0.0
    """The number that `interval_loss` is divided by."""
    skipped_steps: Count = 0
    """Total number of float16 steps skipped because of an overflow."""
    skipped_in_a_row: Count = 0
    """Number of skipped steps since the last step that was taken."""

    def count_step(self, *, rate: float, count: float, momentum: float) -> None:
        """Count an optimizer step and add its rate to the learning-rate weight."""
        if self.step == self.checkpoint_step:
            self.previous_step = self.step
            self.learning_rate_weight = 0.0
        self.step += 1
        self.skipped_in_a_row = 0
        self.learning_rate_weight += rate / count / (1.0 - momentum)


class TrainingValues(BaseModel):
    """What a checkpoint stores besides tensors; it is validated when it is read."""

    model_config = ConfigDict(frozen=True)

    progress: Progress = Field(default_factory=Progress)
    generators: dict[str, list[Number | None]] = {}
    """The parts of the random generators' states that are not tensors."""
    schedule: dict[str, Number] = {}
    scaler: dict[str, Number] = {}
    """State of the float16 loss scaler; empty for other precisions."""
    history: list[MetricValue] = []
    world_size: Annotated[int, Field(ge=1)] = 1
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """None if an older version of Clew did not record it."""


logger = logging.getLogger(__name__)


STEP_SECONDS = 5.0
"""Steps that last longer than this are undone if a signal arrives, instead of finished."""


@dataclass
class StopRequest:
    """Whether this process has received SIGINT or SIGTERM."""

    requested: bool = False
    at_once: bool = False
    """Whether a signal interrupts what runs now, because nothing is lost by that."""
    can_undo: bool = False
    """Whether a step can be interrupted, if it still runs `STEP_SECONDS` after the signal."""

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
            if self.at_once:
                raise KeyboardInterrupt
            logger.warning("stopping after this step")
            signal.setitimer(signal.ITIMER_REAL, STEP_SECONDS, 1.0)

        def undo(signum: int, frame: types.FrameType | None) -> None:
            if self.can_undo:
                raise KeyboardInterrupt

        previous = {s: signal.signal(s, request) for s in (signal.SIGINT, signal.SIGTERM)}
        previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, undo)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
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
