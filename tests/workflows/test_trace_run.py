"""Every run of kind `trace` records its memory, whatever it explains."""

from collections.abc import Callable

import pytest
import torch

from clew import names
from clew.runs.reading.runs import find_run
from clew.workflows import training_run
from clew.workflows.explaining.tracin import tracin
from tests.recorded import Recorded
from tests.workflows.trained import TrainedStore

GPU_PEAKS = {names.GPU_PEAK_ALLOCATED_GIB: 1.5, names.GPU_PEAK_RESERVED_GIB: 2.0}


@pytest.mark.parametrize("name", ["trace", "trace batch", "trace text", "trace frames"])
def test_process_memory_is_recorded(
    recorded: Recorded, use: Callable[[str], None], name: str
) -> None:
    use(recorded.uri)
    metrics = find_run(recorded.runs[name]).metrics
    assert metrics[names.PROCESS_PEAK_GIB] > metrics[names.PROCESS_GROWTH_GIB] >= 0
    assert set(GPU_PEAKS).isdisjoint(metrics), "these explanations were computed on the CPU"


def test_gpu_memory_is_recorded_from_the_beginning_of_the_run(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset: list[torch.device] = []
    monkeypatch.setattr(training_run, "reset_gpu_peaks", reset.append)
    monkeypatch.setattr(training_run, "gpu_peaks", lambda device: GPU_PEAKS)
    result = tracin(trained.weak, "steroid,interacts_with,eicosanoid", {})
    assert result.run_id is not None
    assert find_run(result.run_id).metrics.items() >= GPU_PEAKS.items()
    assert reset == [torch.device("cpu")]
