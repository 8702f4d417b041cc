"""The same tests for every tracker: no-op, in memory, and MLflow on a real database."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.errors import Interrupted
from clew.runs.base import DataSet, Tracker
from clew.runs.tracker import MlflowTracker
from tests.memory_tracker import MemoryTracker
from tests.runs.kept import Kept, read_memory, read_mlflow


class Case:
    """A tracker, and a function that reads its records; the no-op tracker has none."""

    def __init__(self, tracker: Tracker, read: Callable[[Tracker], Kept] | None) -> None:
        self.tracker = tracker
        self._read = read

    def check(self, **expected: object) -> None:
        if self._read is None:
            return
        kept = self._read(self.tracker)
        for name, value in expected.items():
            found = getattr(kept, name)
            assert found == value or (isinstance(value, set) and value <= found), name


@pytest.fixture(params=["none", "memory", "mlflow"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "none":
        return Case(Tracker(), None)
    if request.param == "memory":
        return Case(MemoryTracker(), read_memory)
    open_run: Callable[[], MlflowTracker] = request.getfixturevalue("open_run")
    return Case(open_run(), read_mlflow)


def test_parameters_are_kept_under_their_prefix_once(case: Case) -> None:
    case.tracker.params({"training.seed": 3, "cfg.training.device": "cpu", "data.valid": None})
    case.tracker.params({"optimizations.torch_compile": True, "training.seed": 3})
    case.check(
        params={
            "cfg.training.seed": "3",
            "cfg.training.device": "cpu",
            "cfg.data.valid": "null",
            "cfg.optimizations.torch_compile": "true",
        }
    )


def test_a_hundred_and_fifty_parameters_are_kept(case: Case) -> None:
    values = {f"section.key_{i}": i for i in range(150)}
    case.tracker.params(values)
    case.check(params={f"cfg.{key}": str(value) for key, value in values.items()})


def test_a_later_tag_replaces_an_earlier_one(case: Case) -> None:
    case.tracker.tags({"clew.unit": "K", "clew.variant": "fp32"})
    case.tracker.tags({"clew.unit": "m/s"})
    if isinstance(case.tracker, MemoryTracker):
        assert case.tracker.tag_values == {"clew.unit": "m/s", "clew.variant": "fp32"}
    if isinstance(case.tracker, MlflowTracker):
        tags = read_mlflow(case.tracker).tags
        assert (tags["clew.unit"], tags["clew.variant"]) == ("m/s", "fp32")


def test_metrics_keep_their_order_and_steps(case: Case) -> None:
    for step in range(50):
        case.tracker.metrics({"train/loss": 1.0 / (step + 1)}, step)
    case.check(metrics={"train/loss": [(1.0 / (step + 1), step) for step in range(50)]})


def test_more_metrics_than_one_request_holds_are_kept(case: Case) -> None:
    for step in range(3):
        case.tracker.metrics({f"part/{i:04}": float(step) for i in range(1100)}, step)
    case.check(
        metrics={f"part/{i:04}": [(float(step), step) for step in range(3)] for i in range(1100)}
    )


def test_numbers_of_every_kind_become_floats(case: Case) -> None:
    import numpy as np
    import torch

    case.tracker.metrics({"a": np.float32(0.5), "b": torch.tensor(2.0), "c": 3}, 0)
    case.check(metrics={"a": [(0.5, 0)], "b": [(2.0, 0)], "c": [(3.0, 0)]})


def test_values_that_are_not_finite_are_left_out_and_told_once(case: Case) -> None:
    for step, value in enumerate([math.nan, math.inf, -math.inf, 0.5]):
        case.tracker.metrics({"train/loss": value, "train/epoch": 1.0}, step)
    case.check(
        metrics={"train/loss": [(0.5, 3)], "train/epoch": [(1.0, step) for step in range(4)]},
        warnings=["train/loss was nan at step 0; values that are not finite are not recorded"],
    )


@pytest.mark.parametrize("key", ["hits@10", "", "/loss", "loss/", "a//b", "../loss", "x" * 251])
def test_a_key_that_the_store_would_refuse_is_refused_at_once(case: Case, key: str) -> None:
    if type(case.tracker) is Tracker:
        return
    with pytest.raises(ValueError, match="expected at most 250 letters"):
        case.tracker.metrics({key: 1.0}, 0)


def test_artifacts_may_go_as_soon_as_they_were_told(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "vocabulary"
    (folder / "inner").mkdir(parents=True)
    (folder / "entities.txt").write_text("a")
    (folder / "inner" / "deep.txt").write_text("b")
    (tmp_path / "config.yaml").write_text("data: {}")
    case.tracker.artifact(tmp_path / "config.yaml")
    case.tracker.artifact(tmp_path / "config.yaml", "copies/first")
    case.tracker.artifact(folder)
    (tmp_path / "config.yaml").unlink()
    shutil.rmtree(folder)
    case.check(artifacts={"config.yaml", "copies/first/config.yaml", "vocabulary"})
    if isinstance(case.tracker, MlflowTracker):
        case.check(artifacts={"vocabulary/entities.txt", "vocabulary/inner/deep.txt"})


def test_checkpoints_are_kept_with_their_metrics(case: Case, checkpoint_folder: Path) -> None:
    for epoch, quality in ((5, 0.25), (10, 0.5)):
        case.tracker.metrics({"valid/mrr": quality}, epoch)
        case.tracker.checkpoint(
            checkpoint_folder,
            folder=f"checkpoints/epoch-{epoch:04}",
            step=epoch,
            metrics={"valid/mrr": quality},
        )
    shutil.rmtree(checkpoint_folder)
    case.check(
        checkpoints=[
            ("checkpoints/epoch-0005", 5, {"valid/mrr": 0.25}),
            ("checkpoints/epoch-0010", 10, {"valid/mrr": 0.5}),
        ],
        metrics={"valid/mrr": [(0.25, 5), (0.5, 10)]},
    )


def test_data_sets_are_inputs(case: Case) -> None:
    case.tracker.dataset(DataSet("umls", "f" * 64, "umls", "training"))
    case.check(datasets=[("umls", "f" * 64, "umls", "training")])


def test_warnings_are_logged_and_kept(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.tracker.warn("float16 is slow here; bfloat16 is used instead")
    case.tracker.warn("second")
    assert caplog.messages[:2] == ["float16 is slow here; bfloat16 is used instead", "second"]
    case.check(warnings=["float16 is slow here; bfloat16 is used instead", "second"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (ValueError("no"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (Interrupted("stopped"), "KILLED"),
    ],
)
def test_leaving_the_block_ends_the_run(
    case: Case, error: BaseException | None, status: str
) -> None:
    if error is None:
        with case.tracker:
            pass
    else:
        with pytest.raises(type(error)), case.tracker:
            raise error
    case.check(status=status)


def test_flush_is_always_allowed(case: Case) -> None:
    case.tracker.flush()
    case.check(metrics={})


def test_only_a_recorded_run_has_an_identity(case: Case) -> None:
    assert (case.tracker.run_id is not None) == isinstance(case.tracker, MlflowTracker)
