"""Losses of a scalar regression against their formulas."""

import pytest
import torch
from torch.nn import functional as F

from clew.config.loss import HuberLoss, MaeLoss, MseLoss, WeightedHuberMaeLoss
from clew.image_sequences.task import huber, regression_losses

ERRORS = torch.tensor([-3.0, -0.5, 0.0, 0.25, 2.0])


def test_plain_losses() -> None:
    assert torch.equal(regression_losses(ERRORS, MaeLoss()), ERRORS.abs())
    assert torch.equal(regression_losses(ERRORS, MseLoss()), ERRORS**2)


@pytest.mark.parametrize("delta", [0.3, 1.0])
def test_huber_is_torchs_in_value_and_gradient(delta: float) -> None:
    ours, theirs = (ERRORS.double().requires_grad_() for _ in range(2))
    expected = F.huber_loss(theirs, torch.zeros_like(theirs), delta=delta, reduction="none")
    found = regression_losses(ours, HuberLoss(delta=delta))
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_mixture_weighs_predictions_that_are_too_low() -> None:
    config = WeightedHuberMaeLoss(alpha=0.6, delta=1.0, under_weight=2.0, gamma=1.5)
    found = regression_losses(ERRORS, config)
    for error, value in zip(ERRORS.tolist(), found.tolist(), strict=True):
        own = float(huber(torch.tensor([error]), 1.0))
        weight = 2.0 if error < 0 else 1.0
        assert value == pytest.approx(0.6 * own * weight + 0.4 * abs(error) ** 1.5, rel=1e-6)


def test_gradients_are_finite_at_zero() -> None:
    errors = torch.zeros(3, requires_grad=True)
    for config in (MaeLoss(), HuberLoss(), WeightedHuberMaeLoss(gamma=1.5), WeightedHuberMaeLoss()):
        (gradient,) = torch.autograd.grad(regression_losses(errors, config).sum(), errors)
        assert torch.equal(gradient, torch.zeros(3))


def test_half_precision_errors_become_float32() -> None:
    assert regression_losses(ERRORS.bfloat16() * 1e4, MseLoss()).dtype == torch.float32
