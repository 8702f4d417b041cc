"""Times of steps: the counted parts, and the time of waiting for batches."""

import pytest
import torch

from clew import names
from clew.training import progress as module
from clew.training.progress import WARM_UP_STEPS, Throughput


class Clock:
    """A clock that changes only when a test moves it."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_waiting_for_data_is_a_part_of_the_timed_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)

    throughput = Throughput(torch.device("cpu"))
    throughput.start()
    for step in range(WARM_UP_STEPS + 4):
        waited = 0.25 if step >= WARM_UP_STEPS else 10.0
        throughput.waited_seconds += waited
        clock.seconds += waited + 0.75
        throughput.step_done({"examples": 8})
    throughput.pause()
    values = throughput.close_epoch()
    assert values[names.TIME_STEP_MILLISECONDS] == pytest.approx(1000.0)
    assert values[names.TIME_DATA_MILLISECONDS] == pytest.approx(250.0), "warm-up does not count"
    assert values[names.EXAMPLES_PER_SECOND] == pytest.approx(8.0)
    assert throughput.waited_seconds == 0.0, "an epoch starts from zero"
