"""Losses of a scalar regression, one value for each example."""

from jaxtyping import Float
from torch import Tensor, where

from clew.config.loss import (
    HuberLoss,
    MaeLoss,
    MseLoss,
    RegressionLoss,
    WeightedHuberMaeLoss,
)

Errors = Float[Tensor, "example"]


def regression_losses(errors: Errors, config: RegressionLoss) -> Errors:
    """Return the loss of each example, in float32 or the precision of `errors` if that is higher.

    Args:
        errors: Prediction minus target, in standard deviations of the training targets.
        config: Settings of the loss.
    """
    errors = errors.float() if errors.dtype.itemsize < 4 else errors
    match config:
        case MaeLoss():
            return errors.abs()
        case MseLoss():
            return errors.square()
        case HuberLoss():
            return huber(errors, config.delta)
        case WeightedHuberMaeLoss():
            heavy = huber(errors, config.delta)
            heavy = heavy * where(errors < 0, config.under_weight, 1.0)
            return config.alpha * heavy + (1.0 - config.alpha) * errors.abs().pow(config.gamma)


def huber(errors: Errors, delta: float) -> Errors:
    """Return e^2 / 2 up to |e| = delta, and delta (|e| - delta / 2) beyond (Huber, 1964)."""
    size = errors.abs()
    return where(size <= delta, 0.5 * errors.square(), delta * (size - 0.5 * delta))
