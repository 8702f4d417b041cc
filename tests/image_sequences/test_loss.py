"""Losses of a scalar regression against their formulas."""

import pytest
import torch
from torch.nn import functional as F

from clew.config.loss import HuberLoss, MaeLoss, MseLoss
from clew.image_sequences.task import regression_losses

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


def test_gradients_are_finite_at_zero() -> None:
    errors = torch.zeros(3, requires_grad=True)
    for config in (MaeLoss(), HuberLoss()):
        (gradient,) = torch.autograd.grad(regression_losses(errors, config).sum(), errors)
        assert torch.equal(gradient, torch.zeros(3))


def test_half_precision_errors_become_float32() -> None:
    assert regression_losses(ERRORS.bfloat16() * 1e4, MseLoss()).dtype == torch.float32
