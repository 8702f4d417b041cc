"""The progress and the remaining time of a run, from curves of `train/epoch`."""

import pandas as pd
import pytest

from clew.runs.reading.metrics import EpochProgress, progress_of
from clew.runs.reading.runs import RunRecord


def run(kind: str = "train", **training: str) -> RunRecord:
    params = {f"cfg.training.{key}": value for key, value in training.items()}
    return RunRecord("id", "", "1", "RUNNING", 0, None, {"clew.kind": kind}, params, {})


def curve(*points: tuple[int, float, float]) -> pd.DataFrame:
    return pd.DataFrame(points, columns=["step", "seconds", "value"])


TEN = {"num_epochs": "10", "max_steps": "null"}


def test_the_rest_takes_as_long_as_the_later_half_of_what_is_done() -> None:
    found = progress_of(
        run(**TEN), curve((10, 60, 1.0), (20, 70, 2.0), (30, 80, 3.0), (40, 90, 4.0))
    )
    assert found == EpochProgress(4.0, 10.0, 60.0)
    assert found.share == 0.4


def test_what_a_resumed_run_takes_over_is_not_its_pace() -> None:
    taken_over = [(step, 2.0, step / 10) for step in range(1, 81)]
    found = progress_of(run(**TEN), curve(*taken_over, (82, 12.0, 8.2), (84, 22.0, 8.4)))
    assert found is not None
    assert found.share == pytest.approx(0.84)
    assert found.seconds_left == pytest.approx(80.0)


def test_a_limit_of_steps_ends_training_before_its_epochs() -> None:
    training = {"num_epochs": "1000", "max_steps": "200"}
    found = progress_of(run(**training), curve((50, 0.0, 0.5), (100, 10.0, 1.0)))
    assert found is not None
    assert (found.total_epochs, found.share) == (2.0, 0.5)


def test_before_the_first_value_nothing_is_done() -> None:
    assert progress_of(run(**TEN), curve()) == EpochProgress(0.0, 10.0, None)
    assert progress_of(run(**TEN), curve((10, 60, 1.0))) == EpochProgress(1.0, 10.0, None)


def test_only_training_has_epochs() -> None:
    assert progress_of(run("compare", **TEN), curve()) is None
    assert progress_of(run(), curve()) is None
