"""A look inside a few optimizer steps: torch's profiler, as a Chrome trace and as a table."""

import logging
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from clew.runs.base import Tracker

logger = logging.getLogger(__name__)

WARM_UP_STEPS = 5
"""Steps before the trace: first steps allocate, and are not what training is made of."""
TABLE_ROWS = 40
FOLDER = "profile"
TRACE_FILE, TABLE_FILE = "trace.json.gz", "operators.txt"


class StepProfiler:
    """Traces the steps after the warm-up, once a training; does nothing for 0 steps.

    Artifacts: `profile/trace.json.gz`, for https://ui.perfetto.dev or chrome://tracing, and
    `profile/operators.txt`, operators by their own time. Traced steps are slower, so throughput
    of the epoch in which they lie is too.
    """

    def __init__(self, num_steps: int, tracker: Tracker, device: torch.device) -> None:
        self._num_steps, self._tracker, self._device = num_steps, tracker, device
        self._seen = 0
        self._running: profile | None = None

    def step_done(self) -> None:
        """Count a step; begin and end the trace where its turn has come."""
        if not self._num_steps:
            return
        self._seen += 1
        if self._seen == WARM_UP_STEPS:
            self._begin()
        elif self._seen == WARM_UP_STEPS + self._num_steps:
            self.close()

    def close(self) -> None:
        """End a running trace and store it, also if training ended before its last step."""
        if self._running is None:
            if self._num_steps and self._seen < WARM_UP_STEPS:
                self._tracker.warn(
                    f"nothing was profiled: training took {self._seen} steps, the trace begins "
                    f"after {WARM_UP_STEPS}"
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
