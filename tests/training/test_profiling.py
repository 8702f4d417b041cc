"""Tracing a few steps: the stored files, the time of storing, and an unchanged training."""

import gzip
import json
from pathlib import Path
from typing import Any

import torch

from clew.training.progress import StepProfiler
from tests.memory_tracker import MemoryTracker


class Kept(MemoryTracker):
    """Reads artifacts before they are deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, bytes] = {}

    def artifact(self, path: Path, folder: str = "") -> None:
        super().artifact(path, folder)
        self.contents[self.artifacts[-1]] = path.read_bytes()


def run(num_steps: int, steps_taken: int) -> Kept:
    tracker = Kept()
    profiler = StepProfiler(num_steps, tracker, torch.device("cpu"))
    for _ in range(steps_taken):
        torch.ones(8, 8) @ torch.ones(8, 8)
        profiler.step_done()
    profiler.close()
    return tracker


def test_the_trace_holds_the_steps_after_the_warm_up():
    stored = run(3, 20).contents
    events = json.loads(gzip.decompress(stored["profile/trace.json.gz"]))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) == 3
    assert b"aten::mm" in stored["profile/operators.txt"]


def test_a_training_that_ends_early_stores_what_there_was():
    events = json.loads(gzip.decompress(run(50, 7).contents["profile/trace.json.gz"]))
    assert sum(event.get("name") == "aten::mm" for event in events["traceEvents"]) == 2


def test_too_few_steps_are_said_and_none_are_not():
    tracker = run(3, 2)
    assert tracker.artifacts == []
    assert "training took 2 steps" in tracker.warnings[0]
    assert run(0, 9).artifacts == run(0, 9).warnings == []


def test_a_profiled_training_is_the_same_training(make_trainer: Any):
    plain, traced = make_trainer(), make_trainer(tracking__profile_steps=2)
    plain.train()
    traced.train()
    stored = set(traced.history.tracker.artifacts) - set(plain.history.tracker.artifacts)
    assert stored == {"profile/trace.json.gz", "profile/operators.txt"}
    assert plain.task.losses == traced.task.losses
