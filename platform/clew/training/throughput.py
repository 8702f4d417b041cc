"""Measures the throughput of training steps, and profiles some steps.

The times do not include warm-up, compilation, evaluation and checkpoints. torch's profiler traces
some steps and writes a Chrome trace and a table.
"""

import logging
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from clew import names
from clew.layers.products import flop_formulas
from clew.runs.base import Tracker
from clew.training.hardware import find_card
from clew.training.precision import Precision
from clew.training.task import B, Task

logger = logging.getLogger(__name__)

WARM_UP_STEPS = 3
UNTRACED_STEPS = 5
"""Steps before the trace; the first steps allocate memory and are not typical of training."""
TABLE_ROWS = 40
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
    timed_units: dict[str, int] = field(default_factory=dict)
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
        for name, number in units.items():
            self.timed_units[name] = self.timed_units.get(name, 0) + number

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
        units = dict(self.timed_units) if self.timed_steps else {}
        return {f"throughput/{name}_per_second": n / seconds for name, n in units.items()}

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
        self.timed_steps, self.timed_units = 0, {}
        self.timed_seconds = self.epoch_seconds = self.waited_seconds = 0.0
        return values


class StepProfiler:
    """Traces `num_steps` steps after the first steps of a training; does nothing for 0 steps.

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
            self._begin()
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
            table = running.key_averages().table(sort_by=order, row_limit=TABLE_ROWS)
            (folder / TABLE_FILE).write_text(table, encoding="utf-8")
            for file in (TRACE_FILE, TABLE_FILE):
                self._tracker.artifact(folder / file, FOLDER)
        logger.info("profiled %d steps: artifacts %s/", self._num_steps, FOLDER)

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(activities=activities, profile_memory=True, acc_events=True)
        self._running.start()


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
