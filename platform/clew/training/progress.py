"""The progress of a run: its metrics and counters, which a resume needs, and what stops it.

The measured throughput does not include warm-up, compilation, evaluation and checkpoints. torch's
profiler traces some steps and writes a Chrome trace and a table.
"""

import itertools
import logging
import math
import signal
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.profiler import profile

from clew import names
from clew.errors import CheckpointError, refusing
from clew.layers.products import flop_formulas
from clew.runs.base import Tracker
from clew.training.hardware import find_card
from clew.training.precision import Precision
from clew.training.task import B, Task


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
        arrow = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        schema = pa.schema(
            [(name, arrow[kind]) for name, kind in get_type_hints(MetricValue).items()]
        )
        pq.write_table(pa.Table.from_pylist(list(map(vars, self.entries)), schema), path)


def last_step(path: Path) -> int:
    """Return the last optimizer step of a finished run, which its last checkpoint has too."""
    what, kinds = f"{path}: not a run's history", (pa.ArrowException, KeyError, OSError)
    with refusing(what, *kinds, advice="; copy it here again", error=CheckpointError):
        steps = pq.read_table(path, columns=["step"])["step"].cast(pa.int64())
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
    """Watches a training run and can stop it early, as a search does; this base class does nothing.

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


WARM_UP_STEPS = 3
UNTRACED_STEPS = 5
"""Steps before the trace; the first steps allocate memory and are not typical of training."""
FOLDER = "profile"
TRACE_FILE, TABLE_FILE = "trace.json.gz", "operators.txt"


@dataclass
class Throughput:
    """Times the steps of an epoch; the first `WARM_UP_STEPS` steps of a run do not count."""

    device: torch.device
    flops_per_example: float = 0.0
    peak_flops_per_second: float = 0.0
    steps_seen: int = 0
    timed_steps: int = 0
    timed_units: Counter[str] = field(default_factory=Counter)
    timed_seconds: float = 0.0
    epoch_seconds: float = 0.0
    waited_seconds: float = 0.0
    """Part of the timed seconds that was spent waiting for batches."""
    _mark: float = 0.0

    def start(self) -> None:
        """Start timing; call this after anything that does not count."""
        self._synchronize()
        self._mark = time.perf_counter()

    def step_done(self, units: dict[str, int]) -> None:
        """Count one optimizer step and the `examples`, `tokens` or `frames` it processed."""
        self.steps_seen += 1
        if self.steps_seen <= WARM_UP_STEPS:
            self._synchronize()
            self._close_interval(timed=False)
            self.waited_seconds = 0.0
            return
        self.timed_steps += 1
        self.timed_units.update(units)

    def pause(self) -> None:
        """Stop timing; call this before anything that does not count."""
        self._synchronize()
        self._close_interval(timed=True)

    def _close_interval(self, *, timed: bool) -> None:
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        self.epoch_seconds += seconds
        if timed:
            self.timed_seconds += seconds

    def rates(self) -> dict[str, float]:
        """Return the throughput metrics of the epoch so far; empty if no step was timed."""
        seconds = self.timed_seconds + time.perf_counter() - self._mark
        units = self.timed_units.items()
        return {f"throughput/{name}_per_second": n / seconds for name, n in units}

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close_epoch(self) -> dict[str, float]:
        """Return the epoch's metrics and reset the counters."""
        values = {names.TIME_EPOCH_SECONDS: self.epoch_seconds}
        if self.timed_steps and self.timed_seconds > 0:
            values[names.TIME_STEP_MILLISECONDS] = 1e3 * self.timed_seconds / self.timed_steps
            values[names.TIME_DATA_MILLISECONDS] = 1e3 * self.waited_seconds / self.timed_steps
            for name, number in self.timed_units.items():
                values[f"throughput/{name}_per_second"] = number / self.timed_seconds
            if self.flops_per_example and self.peak_flops_per_second:
                flops = self.flops_per_example * self.timed_units.get("examples", 0)
                values[names.MFU] = flops / self.timed_seconds / self.peak_flops_per_second
        self.timed_steps, self.timed_units = 0, Counter()
        self.timed_seconds = self.epoch_seconds = self.waited_seconds = 0.0
        return values


class StepProfiler:
    """Traces `num_steps` steps after the first steps of a run; does nothing for 0 steps.

    Artifacts: `profile/trace.json.gz`, for https://ui.perfetto.dev or chrome://tracing, and
    `profile/operators.txt`, a table of operators sorted by self time. Traced steps are slower, so
    the throughput of their epoch is lower.
    """

    def __init__(self, num_steps: int, tracker: Tracker, device: torch.device) -> None:
        self._num_steps, self._tracker, self._device = num_steps, tracker, device
        self._seen = 0
        self._running: profile | None = None

    def step_done(self) -> None:
        """Count a step, and start or stop the trace when it is due."""
        if not self._num_steps:
            return
        self._seen += 1
        if self._seen == UNTRACED_STEPS:
            self._running = profile(profile_memory=True, acc_events=True)  # of all devices
            self._running.start()
        elif self._seen == UNTRACED_STEPS + self._num_steps:
            self.close()

    def close(self) -> None:
        """Stop a running trace and store it, even if training ended before all its steps."""
        if self._running is None:
            if self._num_steps and self._seen < UNTRACED_STEPS:
                self._tracker.warn(
                    f"nothing was profiled: training took {self._seen} steps, but the trace begins "
                    f"after {UNTRACED_STEPS}"
                )
                self._num_steps = 0
            return
        running, self._running = self._running, None
        running.stop()
        on_gpu = self._device.type == "cuda"
        order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            running.export_chrome_trace(str(folder / TRACE_FILE))
            table = running.key_averages().table(sort_by=order, row_limit=40)
            (folder / TABLE_FILE).write_text(table, encoding="utf-8")
            for file in (TRACE_FILE, TABLE_FILE):
                self._tracker.artifact(folder / file, FOLDER)
        logger.info("profiled %d steps: artifacts %s/", self._num_steps, FOLDER)


def count_flops(task: Task[B], precision: Precision, batch: B) -> float:
    """Count the floating-point operations of forward and backward for one example.

    Matrix products and convolutions are counted. Elementwise operations are not counted, nor is
    the recomputation of gradient checkpointing. The pass uses fake tensors without data, because
    torch's counter would keep every activation of a real pass, even those that checkpointing frees.
    They lie on the processor: on a GPU, Triton's kernels would read them.
    """
    # Imported here because these modules import Triton if it is installed, which takes 60 MiB.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    cpu = torch.device("cpu")
    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    with FakeTensorMode(allow_non_fake_inputs=True), counter:
        with torch.device(cpu):
            model = task.build_model().train()
        with torch.autocast(cpu.type, torch.bfloat16, enabled=precision.dtype is not None):
            loss = task.loss(model, batch.to(cpu))
        (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / batch.num_examples


def peak_flops_per_second(precision: Precision, *, tf32: bool) -> float | None:
    """Return the peak rate of matrix products on a GPU by its data sheet; None if it is unknown."""
    if precision.device.type != "cuda":
        return None
    card = find_card(torch.cuda.get_device_name(precision.device))
    if card is None or card.tflops is None:
        return None
    half, tf32_rate, single = card.tflops
    return 1e12 * (half if precision.dtype else (tf32_rate if tf32 else single))
