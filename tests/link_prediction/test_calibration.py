"""The fitted temperature recovers the true one, scales with the scores, and changes no rank."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clew.errors import CheckpointError
from clew.link_prediction.calibration import (
    Calibration,
    expected_calibration_error,
    first_answers,
    fit_temperature,
    log_likelihood,
)

HeldOut = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def drawn_from(temperature: float, *, num_queries: int = 4000, batch: int = 700) -> HeldOut:
    """Return answers drawn by softmax(scores / temperature), with some entities excluded."""
    generator = torch.Generator().manual_seed(3)
    scores = 3 * torch.randn(num_queries, 25, generator=generator)
    scores[:, :3] = -torch.inf
    probabilities = torch.softmax(scores / temperature, dim=1)
    answers = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(scores.split(batch), answers.split(batch), strict=True)

    return batches


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_fit_recovers_the_temperature_that_answers_were_drawn_with(temperature: float) -> None:
    fitted = fit_temperature(drawn_from(temperature))
    assert fitted is not None
    assert fitted.temperature == pytest.approx(temperature, rel=0.06)
    assert fitted.num_queries == 4000
    assert fitted.nll_after <= fitted.nll_before + 1e-9
    assert fitted.ece_after < 0.03
    assert fitted.not_fitted_because == "" or temperature == 1.0
    if temperature != 1.0:
        assert fitted.ece_after < fitted.ece_before


def test_fit_is_the_minimum_over_a_grid() -> None:
    held_out = drawn_from(2.0)
    fitted = fit_temperature(held_out)
    assert fitted is not None
    everything = [torch.cat(part) for part in zip(*held_out(), strict=True)]
    for temperature in np.geomspace(0.05, 50, 200):
        nll = -float(log_likelihood(everything[0], everything[1], temperature).mean())
        assert fitted.nll_after <= nll + 1e-6


def test_scaled_scores_scale_the_temperature() -> None:
    held_out = drawn_from(1.5)

    def scaled() -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((8 * scores, answers) for scores, answers in held_out())

    one, other = fit_temperature(held_out), fit_temperature(scaled)
    assert one is not None
    assert other is not None
    assert other.temperature == pytest.approx(8 * one.temperature, rel=2e-3)


def test_size_of_batches_does_not_matter() -> None:
    one = fit_temperature(drawn_from(1.5, num_queries=1000, batch=1000))
    other = fit_temperature(drawn_from(1.5, num_queries=1000, batch=7))
    assert one is not None
    assert other is not None
    assert other.temperature == pytest.approx(one.temperature, rel=1e-3)
    assert other.ece_after == pytest.approx(one.ece_after, abs=1e-3)


def repeated(scores: list[float], answers: list[int]) -> HeldOut:
    """Return the same scores for each of the answers."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.tensor([scores] * len(answers)), torch.tensor(answers)

    return batches


def test_a_fit_that_makes_the_error_worse_is_not_used() -> None:
    # At temperature 1 the first answer has probability 0.88 and is right in 88 of 100. The others
    # are so unlikely that their likelihood alone would need a far higher temperature.
    fitted = fit_temperature(repeated([2.0, 0.0, -30.0], [0] * 88 + [2] * 12))
    assert fitted is not None
    assert fitted.temperature == 1.0
    assert fitted.ece_after == fitted.ece_before < 0.01
    assert fitted.nll_after == fitted.nll_before
    assert "calibration error" in fitted.not_fitted_because


@pytest.mark.parametrize(
    ("scores", "answer", "bound"),
    [([0.002, 0.0, -0.001], 0, "0.001"), ([2000.0, 0.0, -1000.0], 2, "1e+03")],
)
def test_a_temperature_at_its_bound_is_noticed_and_not_used(
    scores: list[float], answer: int, bound: str
) -> None:
    fitted = fit_temperature(repeated(scores, [answer] * 50))
    assert fitted is not None
    assert fitted.temperature == 1.0
    assert bound in fitted.not_fitted_because


def test_log_likelihood_equals_the_plain_formula() -> None:
    scores = torch.tensor([[1.0, -2.0, 0.5, -torch.inf]], dtype=torch.float64)
    plain = np.exp(np.array([1.0, -2.0, 0.5]) / 0.7)
    expected = np.log(plain[2] / plain.sum())
    found = log_likelihood(scores, torch.tensor([2]), 0.7)
    assert float(found) == pytest.approx(expected, abs=1e-12)
    confidence, correct = first_answers(scores, torch.tensor([2]), 0.7)
    assert float(confidence) == pytest.approx(plain[0] / plain.sum())
    assert not bool(correct)


def test_calibration_error_of_a_hand_made_case() -> None:
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.1], dtype=torch.float64)
    correct = torch.tensor([True, True, True, False, False])
    # Bin of 0.9: accuracy 0.75, gap 0.15, 4 of 5 queries; bin of 0.1: gap 0.1, 1 of 5.
    assert expected_calibration_error(confidence, correct) == pytest.approx(0.14)


def test_nothing_held_out_fits_nothing() -> None:
    assert fit_temperature(lambda: iter(())) is None


def test_file_round_trip(tmp_path: Path) -> None:
    written = Calibration(1.25, 10, 2.0, 1.5, 0.2, 0.1)
    written.write(tmp_path / "calibration.json")
    assert Calibration.read(tmp_path / "calibration.json") == written


@pytest.mark.parametrize("text", ["{", "[]", '{"temperature": 1}', "null"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"calibration\.json"):
        Calibration.read(path)


def test_a_temperature_of_zero_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    Calibration(0.0, 10, 2.0, 1.5, 0.2, 0.1).write(path)
    with pytest.raises(CheckpointError):
        Calibration.read(path)
