"""The interval that decides a promotion: equal models win rarely, better ones nearly always."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.signal import lfilter

from clew import names
from clew.errors import TrackingError
from clew.image_sequences.errors import RegressionResult
from clew.link_prediction.rank_metrics import RankingResult
from clew.runs.reading.metrics import HELD_OUT, best_of_runs
from clew.runs.reading.runs import RunRecord
from clew.training.task import ExampleValues
from clew.workflows.gate import Improvement

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Draws the values of some models on the same examples, `(model, example)`."""
TRIES = 500


def ranks(number: int, *, gain: float = 0.0) -> Draw:
    """Reciprocal ranks of triples of different difficulty; the last model is better by `gain`."""

    def draw(random: np.random.Generator, models: int) -> np.ndarray:
        difficulty = random.normal(1, 1, number)
        noise = random.normal(0, 0.5, (models, number))
        noise[-1] -= gain
        return 1.0 / np.ceil(np.exp(difficulty + noise))

    return draw


def rare_changes(number: int, share: float) -> Draw:
    """Models that answer alike except for a few examples."""

    def draw(random: np.random.Generator, models: int) -> np.ndarray:
        common = random.integers(1, 20, number)
        changed = random.random((models, number)) < share
        return 1.0 / np.where(changed, random.integers(1, 20, (models, number)), common)

    return draw


def neighbours(number: int) -> Draw:
    """Errors on overlapping windows: each is 0.9 of its neighbour's and something new."""

    def draw(random: np.random.Generator, models: int) -> np.ndarray:
        new = random.normal(size=(models, number + 50))
        return np.abs(lfilter([np.sqrt(1 - 0.81)], [1, -0.9], new)[:, 50:])

    return draw


def share_promoted(draw: Draw, *, in_sequence: bool = False, candidates: int = 1) -> float:
    """Return how often the best of some candidates replaces a champion."""
    random, promoted = np.random.default_rng(0), 0
    for _ in range(TRIES):
        champion, *others = draw(random, 1 + candidates)
        best = max(others, key=lambda values: float(values.mean()))
        ours, theirs = (ExampleValues(v, "triples", in_sequence) for v in (best, champion))
        promoted += Improvement.of(ours, theirs, maximize=True, tries=candidates).is_certain
    return promoted / TRIES


@pytest.mark.parametrize("number", [1, 2, 5, 6, 8, 15, 652])
def test_equal_models_rarely_replace_each_other(number: int) -> None:
    assert share_promoted(ranks(number)) < 0.05


@pytest.mark.parametrize("share", [0.003, 0.01, 0.1])
def test_a_few_changed_answers_rarely_decide(share: float) -> None:
    assert share_promoted(rare_changes(652, share)) < 0.05


@pytest.mark.parametrize("number", [10, 120, 400, 1500])
def test_neighbours_that_resemble_each_other_do_not_count_twice(number: int) -> None:
    assert share_promoted(neighbours(number), in_sequence=True) < 0.05


def test_the_best_of_many_equal_runs_rarely_wins() -> None:
    assert share_promoted(ranks(652), candidates=10) < 0.05


def test_a_better_model_wins() -> None:
    assert share_promoted(ranks(652, gain=0.2)) > 0.9


def test_a_smaller_value_can_be_the_better_one() -> None:
    ours = ExampleValues(np.arange(20.0), "windows")
    theirs = ExampleValues(np.arange(20.0) + np.linspace(1, 2, 20), "windows")
    found = Improvement.of(ours, theirs, maximize=False)
    assert 0 < found.low < found.mean < found.high
    assert found.mean == pytest.approx(1.5)
    assert not Improvement.of(ours, theirs, maximize=True).is_certain


def test_the_same_answers_are_no_improvement() -> None:
    same = ExampleValues(np.linspace(0, 1, 50), "triples")
    assert not Improvement.of(same, same, maximize=True).is_certain


def test_the_values_of_triples_have_the_metric_as_their_mean() -> None:
    random = np.random.default_rng(0)
    found = RankingResult(np.zeros(50, int), *random.integers(1, 40, (2, 50)).astype(float))
    for key, value in found.metrics("valid").items():
        values = found.by_triple(key.removeprefix("valid/"))
        assert values is not None
        assert values.mean() == pytest.approx(value)
    assert found.by_triple("perplexity") is None


def test_the_values_of_windows_have_the_metric_as_their_mean() -> None:
    prediction, target = np.random.default_rng(0).normal(size=(2, 30))
    found = RegressionResult(prediction, target, np.full(30, "a"), np.arange(30))
    for name in (names.MAE, names.R2):
        values = found.by_window(name)
        assert values is not None
        assert values.mean() == pytest.approx(found.metrics("valid")[f"valid/{name}"])
    assert found.by_window(names.RMSE) is None


def test_a_run_whose_validation_is_its_test_group_is_not_chosen() -> None:
    runs = [
        RunRecord(
            run_id=str(number),
            experiment_id="1",
            name="",
            status="FINISHED",
            started_ms=0,
            ended_ms=0,
            tags={},
            params={HELD_OUT: held_out},
            metrics={"valid/mae": float(number)},
        )
        for number, held_out in ((1, "False"), (2, "True"), (3, "True"))
    ]
    best, tries = best_of_runs(runs, "valid/mae")
    assert (best.run_id, tries) == ("2", 2)
    with pytest.raises(TrackingError):
        best_of_runs(runs[:1], "valid/mae")
