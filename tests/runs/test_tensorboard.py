"""TensorBoard files have the same metrics as the run."""

from pathlib import Path

from clew.runs.tracker import write_events
from tests.memory_tracker import MemoryTracker


def test_metrics_are_written_to_both(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = MemoryTracker()
    write_events(tracker, tmp_path)
    with tracker:
        tracker.params({"cfg.a": 1})
        tracker.tags({"clew.kind": "train"})
        for step in range(3):
            tracker.metrics({"train/loss": 3.0 - step, "train/bad": float("nan")}, step)
    events = EventAccumulator(str(next(tmp_path.iterdir())))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(0, 3), (1, 2), (2, 1)]
    assert events.Tags()["scalars"] == ["train/loss"]
    assert tracker.parameters == {"cfg.a": 1}
    assert tracker.tag_values == {"clew.kind": "train"}
    assert [value for key, value, _ in tracker.metric_values if key == "train/loss"] == [3, 2, 1]
    assert tracker.status == "FINISHED"
