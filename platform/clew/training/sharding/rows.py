"""Divides the rows of a table among processes, and computes functions of all rows."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from clew.training.sharding.exchange import Exchange

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
        """First row of this process."""
        return self.bounds(self.rank)[0]

    @property
    def stop(self) -> int:
        """Row after the last row of this process."""
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
    """The rows of a table that a process has, and functions that need the rows of all processes.

    The same code works for a table that is not sharded: this process then has all rows, and nothing
    is sent. Rows are numbered as in the whole table. A matrix of values has one column per own row,
    that is, per row of this process. Every method that needs values of other rows is a collective:
    all processes must make the same calls in the same order.
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

    @property
    def place(self) -> slice:
        return slice(self.shard.start, self.shard.stop)

    def own(self, place: I, row: I) -> tuple[I, I]:
        """Return the pairs with own rows; each row is renumbered from the first own row."""
        is_own = self.shard.owns(row)
        return place[is_own], row[is_own] - self.shard.start

    def sum(self, own: Tensor, purpose: str) -> Tensor:
        return own if self.exchange is None else self.exchange.sum(own.contiguous(), purpose)

    def log_sum(self, own: Tensor) -> Tensor:
        return own if self.exchange is None else self.exchange.log_sum(own)

    def softmax(self, values: Tensor) -> Tensor:
        """Return the own columns of the softmax over all rows, `(batch, own)`."""
        if self.exchange is None:
            return values.softmax(1)
        return (values - self.log_sum(values.logsumexp(1))[:, None]).exp()

    def at(self, values: Tensor, place: Tensor | slice, row: Tensor) -> Tensor:
        """Return values[place, row] for rows of any process."""
        if self.exchange is None:
            return values[place, row]
        found = values[place, (row - self.shard.start).clamp(0, self.count - 1)]
        return self.exchange.sum(found.masked_fill(~self.shard.owns(row), 0), "entries")

    def strongest(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the `k` largest values in descending order, and their rows, `(batch, k)`."""
        best, row = values.topk(min(k, self.count), dim=1)
        if self.exchange is None:
            return best, row
        bounds = map(self.shard.bounds, range(self.shard.size))
        sizes = [min(k, stop - start) for start, stop in bounds]
        best = self.exchange.gather(best.T, sizes, "answers").T
        row = self.exchange.gather(row.T + self.shard.start, sizes, "answers").T
        best, order = best.topk(min(k, self.num_rows), dim=1)
        return best, row.gather(1, order)

    def whole(self, own: Tensor) -> Tensor:
        """Return the numbers of all rows, given those of the own rows, `(row,)`."""
        if self.exchange is None:
            return own
        bounds = map(self.shard.bounds, range(self.shard.size))
        return self.exchange.gather(own, [stop - start for start, stop in bounds], "numbers")

    def span(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the start and end of this process's part of a total, divided in order of ranks.

        The end of the last process's part is infinity.
        """
        first, last = torch.zeros_like(own), torch.full_like(own, math.inf)
        if self.exchange is None:
            return first, last
        size, rank = self.shard.size, self.shard.rank
        ends = self.exchange.gather(own[None], [1] * size, "numbers").cumsum(0)
        return ends[rank - 1] if rank else first, ends[rank] if rank + 1 < size else last
