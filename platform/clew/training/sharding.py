"""Embedding tables whose rows are sharded over the processes of a run, or whole otherwise.

Every process holds some rows, their optimizer state and their part of the loss. Processes exchange
queries and small gradients, and rows of the table only if they are looked up. `Exchange` counts the
bytes that a process receives from others with the best algorithm for each collective. With W
processes, a gather and a reduce-scatter of n bytes per process bring (W - 1) n bytes to each
process, a sum of n bytes brings 2 (W - 1) / W n, and an all-to-all brings exactly what the others
send. Every call is a collective: all processes must make the same calls in the same order.
Gradients are sent in the opposite direction.

A model gets its table from `entity_table`. Inside `sharded_tables`, the model gets only the rows of
its process, with the same random numbers as in a whole table. The numbers are drawn for all rows,
one block at a time, and those of other processes are discarded, so that no process ever holds the
whole table.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
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
        return torch.cat([every[r * most : r * most + n] for r, n in enumerate(sizes)])

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


gathered: Callable[[Tensor, Exchange, Sequence[int]], Tensor] = _Gathered.apply
log_sum_of_all: Callable[[Tensor, Exchange], Tensor] = _LogSum.apply


I = TypeVar("I", Tensor, np.ndarray)  # noqa: E741


@dataclass(frozen=True)
class RowShard:
    """The consecutive rows of a table that one process has; shard sizes differ by at most one."""

    num_rows: int
    """Number of rows of the whole table."""
    rank: int
    size: int

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return the first row of a process and the row after its last."""
        return rank * self.num_rows // self.size, (rank + 1) * self.num_rows // self.size

    @property
    def start(self) -> int:
        return self.bounds(self.rank)[0]

    @property
    def stop(self) -> int:
        return self.bounds(self.rank)[1]

    def owner(self, row: Int64[Tensor, " id"]) -> Int64[Tensor, " id"]:
        stops = torch.tensor([self.bounds(r)[1] for r in range(self.size)], device=row.device)
        return torch.searchsorted(stops, row, right=True)

    def owns(self, row: I) -> I:
        return (row >= self.start) & (row < self.stop)


def mark(parameter: nn.Parameter, shard: RowShard) -> nn.Parameter:
    parameter.row_shard = shard  # type: ignore[attr-defined]
    return parameter


def shard_of(parameter: Tensor) -> RowShard | None:
    """Return the rows of a table that a parameter holds; None if it is not sharded."""
    shard: RowShard | None = getattr(parameter, "row_shard", None)
    return shard


def row_shards(model: nn.Module) -> dict[str, RowShard]:
    """Return the row shards of a model's sharded parameters, by parameter name."""
    found = {name: shard_of(parameter) for name, parameter in model.named_parameters()}
    return {name: shard for name, shard in found.items() if shard is not None}


@dataclass(frozen=True)
class OwnRows:
    """What ranking needs to know of the rows that this process has; without sharding, all rows.

    Rows are numbered as in the whole table. `sum` is a collective: all processes must make the same
    calls in the same order.
    """

    shard: RowShard
    exchange: Exchange | None = None
    """Communication with the other processes; None if there are none."""

    @property
    def num_rows(self) -> int:
        return self.shard.num_rows

    @property
    def count(self) -> int:
        return self.shard.stop - self.shard.start

    @property
    def most(self) -> int:
        return -(-self.num_rows // self.shard.size)

    def own(self, place: I, row: I) -> tuple[I, I]:
        """Return the pairs with own rows; each row is renumbered from the first own row."""
        is_own = self.shard.owns(row)
        return place[is_own], row[is_own] - self.shard.start

    def sum(self, own: Tensor, purpose: str) -> Tensor:
        return own if self.exchange is None else self.exchange.sum(own.contiguous(), purpose)


# A multiple of 16: torch draws normal numbers in groups of 16, so this keeps the stream unchanged.
_BLOCK = 2**22
_EXCHANGE = ContextVar[Exchange | None]("exchange", default=None)


class ShardedTable(nn.Embedding):
    """The rows of one process; a lookup is a collective that all processes must call."""

    def __init__(self, num_rows: int, dim: int, exchange: Exchange) -> None:
        shard = RowShard(num_rows, exchange.rank, exchange.size)
        own = shard.stop - shard.start
        super().__init__(own, dim, _weight=torch.empty(own, dim))
        self.num_embeddings = num_rows
        self.shard, self.exchange = shard, exchange
        mark(self.weight, shard)  # type: ignore[arg-type]
        self.draw_normal(1.0)

    @torch.no_grad()
    def draw_normal(self, std: float) -> None:
        """Draw random numbers for the whole table, and keep those of this process's rows."""
        dim = self.embedding_dim
        first, last = self.shard.start * dim, self.shard.stop * dim
        total, own, start = self.num_embeddings * dim, self.weight.view(-1), 0
        numbers = own.new_empty(min(total, _BLOCK + 16))
        while start < total:
            # The last block includes the rest: torch draws fewer than 16 numbers differently.
            count = _BLOCK if total - start >= _BLOCK + 16 else total - start
            block = numbers[:count].normal_(0.0, std)
            low, high = max(first, start), min(last, start + count)
            if low < high:
                own[low - first : high - first] = block[low - start : high - start]
            start += count

    def forward(self, input: Int64[Tensor, " id"]) -> Float[Tensor, "id dim"]:
        """Return rows by their index in the whole table."""
        rows: Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
            self.weight, input, self.shard, self.exchange, self.sparse
        )
        return rows


class _Lookup(torch.autograd.Function):
    """Fetches rows from the processes that own them; gradients are sent back to the owners."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any, weight: Tensor, ids: Tensor, shard: RowShard, exchange: Exchange, sparse: bool
    ) -> Tensor:
        owner = shard.owner(ids)
        order = owner.argsort(stable=True)
        wanted = torch.bincount(owner, minlength=shard.size).tolist()
        columns = exchange.sizes(*wanted, device=ids.device)
        given = columns[shard.rank]
        asked = exchange.all_to_all(ids[order], wanted, given, "ids") - shard.start
        rows = exchange.all_to_all(weight[asked], given, wanted, "rows")
        ctx.exchange, ctx.sparse = exchange, sparse
        ctx.wanted, ctx.given, ctx.shape = wanted, given, weight.shape
        ctx.save_for_backward(order, asked)
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        order, asked = ctx.saved_tensors
        send = upstream[order]
        came = ctx.exchange.all_to_all(send, ctx.wanted, ctx.given, "gradients of rows")
        if ctx.sparse:
            own = torch.sparse_coo_tensor(asked[None], came, ctx.shape, check_invariants=False)
        else:
            own = came.new_zeros(ctx.shape).index_add_(0, asked, came)
        return own, None, None, None, None


@contextmanager
def sharded_tables(exchange: Exchange | None) -> Iterator[None]:
    """Give models that are built inside this context sharded tables; None: whole tables."""
    token = _EXCHANGE.set(exchange)
    try:
        yield
    finally:
        _EXCHANGE.reset(token)


def entity_table(num_rows: int, dim: int) -> nn.Embedding:
    """Return a new table; inside `sharded_tables`, it has only the rows of this process."""
    if (exchange := _EXCHANGE.get()) is None:
        return nn.Embedding(num_rows, dim)
    return ShardedTable(num_rows, dim, exchange)


def row_bias(table: nn.Embedding) -> nn.Parameter:
    bias = nn.Parameter(torch.zeros(len(table.weight)))
    return mark(bias, table.shard) if isinstance(table, ShardedTable) else bias


def draw_normal(table: nn.Embedding, std: float) -> None:
    """Fill a table with random numbers from a normal distribution with mean 0."""
    if isinstance(table, ShardedTable):
        table.draw_normal(std)
    else:
        nn.init.normal_(table.weight, std=std)


def draw_xavier_normal(table: nn.Embedding) -> None:
    draw_normal(table, math.sqrt(2.0 / (table.embedding_dim + table.num_embeddings)))
