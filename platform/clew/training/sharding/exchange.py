"""Communication between processes about sharded tables, with a count of the received bytes.

The count is the number of bytes that a process receives from others with the best algorithm for
each collective. With W processes, a gather and a reduce-scatter of n bytes per process bring
(W - 1) n bytes to each process, a sum of n bytes brings 2 (W - 1) / W n, and an all-to-all brings
exactly what the others send. Every call is a collective: all processes must make the same calls in
the same order. Gradients are sent in the opposite direction.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Exchange:
    """The collectives of one process."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.received_bytes: Counter[str] = Counter()
        """Received bytes by purpose."""

    def sizes(self, *own: int, device: torch.device) -> list[list[int]]:
        """Gather integers; return one list per integer, with the values of all processes."""
        mine = torch.tensor(own, device=device)
        every = mine.new_empty(self.size * len(own))
        dist.all_gather_single(every, mine)
        self._count("sizes", mine, self.size - 1)
        return [list(column) for column in zip(*every.view(self.size, -1).tolist(), strict=True)]

    def gather(self, tensor: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
        """Return the rows of all processes in order of ranks; `sizes` are their numbers of rows."""
        most = max(sizes)
        padded = tensor.new_zeros(most, *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        every = tensor.new_empty(self.size * most, *tensor.shape[1:])
        dist.all_gather_single(every, padded)
        self._count(purpose, padded, self.size - 1)
        parts = [every[r * most : r * most + n] for r, n in enumerate(sizes)]
        return torch.cat(parts)

    def reduce_scatter(self, tensor: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
        """Return this process's rows of the sum over processes; the reverse of `gather`."""
        most = max(sizes)
        padded = tensor.new_zeros(self.size, most, *tensor.shape[1:])
        for rank, part in enumerate(torch.split(tensor, list(sizes))):
            padded[rank, : len(part)] = part
        own = tensor.new_empty(most, *tensor.shape[1:])
        dist.reduce_scatter_single(own, padded.flatten(0, 1))
        self._count(purpose, own, self.size - 1)
        return own[: sizes[self.rank]]

    def all_to_all(
        self, tensor: Tensor, send: Sequence[int], receive: Sequence[int], purpose: str
    ) -> Tensor:
        """Send consecutive rows to each process; return the received rows in order of ranks."""
        came = tensor.new_empty(sum(receive), *tensor.shape[1:])
        dist.all_to_all_single(came, tensor.contiguous(), list(receive), list(send))
        remote = sum(receive) - receive[self.rank]
        self.received_bytes[purpose] += remote * came[:1].numel() * came.element_size()
        return came

    def sum(self, tensor: Tensor, purpose: str) -> Tensor:
        dist.all_reduce(tensor)
        self._count(purpose, tensor, 2 * (self.size - 1) / self.size)
        return tensor

    def log_sum(self, own: Tensor) -> Tensor:
        """Return the elementwise log-sum-exp over processes."""
        top = own.clamp_min(torch.finfo(own.dtype).min)  # empty sums: -inf - (-inf) is NaN
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        self._count("normalisers", top, 2 * (self.size - 1) / self.size)
        return top + self.sum((own - top).exp(), "normalisers").log()

    def _count(self, purpose: str, tensor: Tensor, times: float) -> None:
        self.received_bytes[purpose] += round(tensor.numel() * tensor.element_size() * times)


class _Gathered(torch.autograd.Function):
    """Gathers the rows of all processes; a row's gradient is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: Exchange, sizes: Sequence[int]) -> Tensor:
        ctx.exchange, ctx.sizes = exchange, sizes
        return exchange.gather(own, sizes, "queries")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        own = ctx.exchange.reduce_scatter(upstream, ctx.sizes, "gradients of queries")
        return own, None, None


class _LogSum(torch.autograd.Function):
    """Log-sum-exp over W processes, each of which adds 1 / W of it to its own loss.

    All processes have the same upstream gradient, so the sum over processes is W times this
    gradient.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, exchange: Exchange) -> Tensor:
        total = exchange.log_sum(own)
        ctx.size = exchange.size
        ctx.save_for_backward(own, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        own, total = ctx.saved_tensors
        return upstream * ctx.size * (own - total).exp(), None


def gathered(own: Tensor, exchange: Exchange, sizes: Sequence[int]) -> Tensor:
    """Return the rows of all processes; this is differentiable."""
    rows: Tensor = _Gathered.apply(own, exchange, sizes)  # type: ignore[no-untyped-call]
    return rows


def log_sum_of_all(own: Tensor, exchange: Exchange) -> Tensor:
    """Return the differentiable log-sum-exp over W processes; each adds 1 / W to its loss."""
    total: Tensor = _LogSum.apply(own, exchange)  # type: ignore[no-untyped-call]
    return total
