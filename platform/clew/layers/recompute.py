"""Gradient checkpointing that leaves a network in the state it would have had without it.

A checkpointed function runs twice: once in the forward pass, keeping only its inputs, and again in
the backward pass. The second run must draw the same dropout masks (the checkpoint restores the
random generators) and must not move the running statistics of batch normalisation a second time.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


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
