"""Operations for training mode: dropout, batch statistics, and recomputed activations.

Dropout needs fewer random numbers here than in torch. On a CPU, torch draws one 53-bit number per
element in one thread, which takes 2.3 of the 50 ms of a training step in bfloat16. Sixteen bits per
element are enough, so one 64-bit word is used for four elements. The probability is rounded to a
multiple of 2^-16, which changes 0.2 by 4e-6.

A training step updates a layer's running mean and variance with the statistics of its batch. torch
writes them without recording a gradient. Code that differentiates through training needs the
statistics as functions of the parameters, and can observe them here.

Gradient checkpointing leaves a network in the same state as without checkpointing. A checkpointed
function runs twice: once in the forward pass, which keeps only the inputs, and again in the
backward pass. The second run must draw the same dropout masks (the checkpoint restores the random
generators) and must not update the running statistics of batch normalisation again.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Rows = Float[Tensor, "batch dim"]
Statistics = dict[nn.Module, tuple[Tensor, Tensor]]
"""Mean and unbiased variance of the batch for each layer, both `(channel,)`."""

_LEVELS = 2**16
_observer: ContextVar[Statistics | None] = ContextVar("batch statistics", default=None)


def dropout(x: Float[Tensor, "..."], probability: float, training: bool) -> Float[Tensor, "..."]:
    """In training, set random elements to zero and scale up the others."""
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability)
    dropped = min(round(probability * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()] >= dropped - _LEVELS // 2
    return x * (kept.to(x.dtype) * (_LEVELS / (_LEVELS - dropped))).view(x.shape)


def normalised(norm: nn.BatchNorm1d, rows: Rows) -> Rows:
    """Apply batch normalisation.

    In training, a single row (for example in the last batch of an epoch) has no variance, so it is
    normalised with the running statistics.
    """
    if norm.training and len(rows) == 1:
        return F.batch_norm(
            rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )
    return norm(rows)  # type: ignore[no-any-return]


def report_statistics(norm: nn.Module, mean: Tensor, variance: Tensor) -> None:
    """Pass the statistics of a batch to the observer, if there is one; used by fused layers."""
    statistics = _observer.get()
    if statistics is not None:
        statistics[norm] = mean, variance


@contextmanager
def observed_statistics(model: nn.Module) -> Iterator[Statistics]:
    """Yield a dictionary that collects the batch statistics of all layers inside this context."""
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


@contextmanager
def running_statistics_kept(norms: list[BatchNorm]) -> Iterator[None]:
    """Make layers write their running statistics to copies that are discarded.

    The copies are small, with one value per channel. Disabling the running statistics would be
    simpler, but the second run must save as many tensors for the backward pass as the first run.
    """
    kept = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor, *, within: nn.Module) -> Tensor:
    """Return `function(x)` and recompute its activations in the backward pass.

    Outputs, gradients, dropout masks and buffers are the same as in a plain call. With
    `torch.compile`, the second run needs no protection: the compiler moves only operations without
    side effects to the backward graph, so the statistics are updated once, in the forward graph.

    Args:
        function: Runs layers of `within` on `x`.
        x: Input, which is kept for the backward pass, `(batch, ...)`.
        within: Module whose batch normalisation layers `function` uses.
    """
    if torch.compiler.is_compiling():
        return checkpoint(function, x, use_reentrant=False)  # type: ignore[no-any-return]
    norms = [module for module in within.modules() if isinstance(module, BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), running_statistics_kept(norms)

    return checkpoint(  # type: ignore[no-any-return]
        function, x, use_reentrant=False, context_fn=contexts
    )


def for_each_example(parameter: Tensor, batch: int) -> Tensor:
    """Return a copy of a parameter for every example, `(batch, ...)`.

    Autograd records the addition of zeros as the use of the parameter. So the influence engine can
    read the gradient of each example from the result, for any function that follows.
    """
    zeros = torch.zeros(
        batch, *(1,) * parameter.dim(), dtype=parameter.dtype, device=parameter.device
    )
    return parameter + zeros
