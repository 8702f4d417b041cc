"""TensorBoard files have the same metrics, and everything else is passed on."""

from pathlib import Path

from clew.runs.tracker import TensorBoardTracker
from tests.memory_tracker import MemoryTracker


def test_metrics_are_written_and_everything_is_passed_on(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    inner = MemoryTracker()
    with TensorBoardTracker(inner, tmp_path) as tracker:
        tracker.params({"cfg.a": 1})
        tracker.tags({"clew.kind": "train"})
        for step in range(3):
            tracker.metrics({"train/loss": 3.0 - step, "train/bad": float("nan")}, step)
    events = EventAccumulator(str(tracker.folder))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(0, 3), (1, 2), (2, 1)]
    assert events.Tags()["scalars"] == ["train/loss"]
    assert inner.parameters == {"cfg.a": 1}
    assert inner.tag_values == {"clew.kind": "train"}
    assert [value for key, value, _ in inner.metric_values if key == "train/loss"] == [3, 2, 1]
    assert inner.status == "FINISHED"
