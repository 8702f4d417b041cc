"""What networks do in training alone: dropout, batch statistics, and activations computed again.

Dropout's random numbers are cheap on a CPU. torch draws one 53-bit number for each element, in one
thread: 2.3 of the 50 ms of a training step in bfloat16. Sixteen bits decide just as well, so a
64-bit word serves four elements. The probability is rounded to a multiple of 2^-16, by 4e-6 for
0.2.

A step of training moves a layer's running mean and variance by the statistics of its batch. torch
writes them past autograd; whoever differentiates through training needs them as functions of the
parameters, and observes them here.

Gradient checkpointing leaves a network in the state it would have had without it. A checkpointed
function runs twice: once in the forward pass, keeping only its inputs, and again in the backward
pass. The second run must draw the same dropout masks (the checkpoint restores the random
generators) and must not move the running statistics of batch normalisation a second time.
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
"""Mean and unbiased variance of the batch of each layer, both `(channel,)`."""

_LEVELS = 2**16
_observer: ContextVar[Statistics | None] = ContextVar("batch statistics", default=None)


def dropout(x: Float[Tensor, "..."], probability: float, training: bool) -> Float[Tensor, "..."]:
    """Set elements to zero with a probability and scale the others up, in training only.

    Args:
        x: Any shape.
        probability: Of an element to be dropped, in [0, 1).
        training: Whether to drop at all.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, probability)
    dropped = min(round(probability * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()] >= dropped - _LEVELS // 2
    return x * (kept.to(x.dtype) * (_LEVELS / (_LEVELS - dropped))).view(x.shape)


def normalised(norm: nn.BatchNorm1d, rows: Rows) -> Rows:
    """Normalise over the batch.

    A single row, as in the last batch of an epoch, has no statistics of its own; it uses the
    running ones.
    """
    if norm.training and len(rows) == 1:
        return F.batch_norm(
            rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )
    result: Tensor = norm(rows)
    return result


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


@contextmanager
def running_statistics_kept(norms: list[BatchNorm]) -> Iterator[None]:
    """Let layers write their running statistics to copies that are thrown away.

    The copies are as small as the layers' channels. (Switching the tracking off would be shorter,
    but the second run must save the same number of tensors for the backward pass as the first.)
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
    """Return `function(x)`, whose activations the backward pass computes again.

    Outputs, gradients, dropout masks and buffers are those of a plain call. Under `torch.compile`
    there is no second run to guard: the compiler moves operations that have no side effect from
    the forward into the backward graph, and the update of the statistics stays where it was.

    Args:
        function: Runs layers of `within` on `x`.
        x: Input, kept for the backward pass, `(batch, ...)`.
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
