"""Closed-form rates: equal to torch's OneCycleLR where both are defined, and defined elsewhere."""

import math
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from clew.config.training import PlateauSchedule
from clew.training.optimizer import Exponential, Plateau, WarmupCosine, is_better


def one_cycle_rates(total: int, fraction: float, peak: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = OneCycleLR(
        optimizer,
        max_lr=peak,
        total_steps=total,
        pct_start=fraction,
        anneal_strategy="cos",
        cycle_momentum=False,
    )
    rates = []
    for step in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < total:
            schedule.step()
    return rates


@pytest.mark.parametrize(("total", "fraction"), [(10, 0.3), (100, 0.1), (37, 0.5), (1000, 0.05)])
def test_warmup_cosine_equals_one_cycle(total: int, fraction: float) -> None:
    schedule = WarmupCosine(total, fraction, 25.0, 1e4)
    ours = [3e-3 * schedule.factor(step=step, epoch=0) for step in range(total)]
    assert ours == pytest.approx(one_cycle_rates(total, fraction, 3e-3), rel=1e-12)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2])
def test_a_warmup_of_at_most_one_step_starts_at_the_peak(fraction: float) -> None:
    schedule = WarmupCosine(5, fraction, 25.0, 1e4)
    factors = [schedule.factor(step=step, epoch=0) for step in range(5)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)


def test_past_its_end_the_final_rate_stays() -> None:
    schedule = WarmupCosine(10, 0.3, 25.0, 1e4)
    assert schedule.factor(step=500, epoch=9) == schedule.factor(step=9, epoch=0) == 1 / 25 / 1e4


def test_a_run_of_one_step_has_a_rate() -> None:
    assert WarmupCosine(1, 0.3, 25.0, 1e4).factor(step=0, epoch=0) == 1.0


def test_exponential_follows_the_epoch() -> None:
    assert Exponential(0.9).factor(step=12345, epoch=3) == pytest.approx(0.729)


def test_plateau_equals_torch() -> None:
    metrics = [0.1, 0.2, 0.2, 0.19, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=2, threshold=0.0)
    ours = Plateau(PlateauSchedule(factor=0.5, patience=2, minimum_factor=1e-9), maximize=True)
    for metric in metrics:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference.step(metric)
        ours.observe(metric)
        assert ours.factor(step=0, epoch=0) == optimizer.param_groups[0]["lr"]
    assert ours.current < 1.0


def test_plateau_state_survives() -> None:
    first = Plateau(PlateauSchedule(factor=0.5, patience=0), maximize=False)
    for metric in (1.0, 2.0, 2.0):
        first.observe(metric)
    second = Plateau(first.config, maximize=False)
    second.restore(first.state())
    assert second == first
    assert second.current == 0.25


@pytest.mark.parametrize(
    ("value", "best", "maximize", "expected"),
    [
        (0.5, math.nan, True, True),
        (math.nan, math.nan, True, False),
        (math.nan, 0.1, True, False),
        (0.5, 0.5, True, False),
        (0.6, 0.5, True, True),
        (0.6, 0.5, False, False),
        (0.4, 0.5, False, True),
    ],
)
def test_is_better(value: float, best: float, maximize: bool, expected: bool) -> None:
    assert is_better(value, best, maximize=maximize) is expected
