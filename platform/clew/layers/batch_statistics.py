"""What batch normalisation adds to its running statistics, seen from outside and differentiable.

A step of training moves a layer's running mean and variance by the statistics of its batch. torch
writes them past autograd; whoever differentiates through training needs them as functions of the
parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from clew.layers.recompute import BatchNorm

Statistics = dict[nn.Module, tuple[Tensor, Tensor]]
"""Mean and unbiased variance of the batch of each layer, both `(channel,)`."""

_observer: ContextVar[Statistics | None] = ContextVar("batch statistics", default=None)


def report_statistics(norm: nn.Module, mean: Tensor, variance: Tensor) -> None:
    """Tell an observer, if there is one, the statistics of a batch; for fused layers."""
    statistics = _observer.get()
    if statistics is not None:
        statistics[norm] = mean, variance


@contextmanager
def observed_statistics(model: nn.Module) -> Iterator[Statistics]:
    """Yield what batch normalisation layers see of their batches while the context lasts."""
    statistics: Statistics = {}

    def look(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        if norm.training:
            values = inputs[0].transpose(0, 1).flatten(1)
            statistics[norm] = values.mean(dim=1), values.var(dim=1)

    layers = [module for module in model.modules() if isinstance(module, BatchNorm)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    token = _observer.set(statistics)
    try:
        yield statistics
    finally:
        _observer.reset(token)
        for hook in hooks:
            hook.remove()
