"""Times of steps: what counts, and how long batches are waited for."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from clew import names
from clew.training import throughput as module
from clew.training.throughput import WARM_UP_STEPS, Throughput


class Clock:
    """Stands still except when it is moved."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_waiting_for_data_is_a_part_of_the_timed_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)

    def batches() -> Iterator[int]:
        for batch in range(WARM_UP_STEPS + 4):
            clock.seconds += 0.25 if batch >= WARM_UP_STEPS else 10.0
            yield batch

    throughput = Throughput(torch.device("cpu"))
    throughput.start()
    seen = []
    for batch in throughput.waiting_for(batches()):
        seen.append(batch)
        clock.seconds += 0.75
        throughput.step_done({"examples": 8})
    throughput.pause()
    values = throughput.close_epoch()
    assert seen == list(range(WARM_UP_STEPS + 4))
    assert values[names.TIME_STEP_MILLISECONDS] == pytest.approx(1000.0)
    assert values[names.TIME_DATA_MILLISECONDS] == pytest.approx(250.0), "warm-up does not count"
    assert values[names.EXAMPLES_PER_SECOND] == pytest.approx(8.0)
    for _ in itertools.islice(throughput.waiting_for(iter(range(9))), 2):
        clock.seconds += 1.0
    assert throughput.waited_seconds == 0.0, "an epoch starts from zero"
