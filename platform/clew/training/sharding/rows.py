"""Which process has which rows of a table."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor, nn


@dataclass(frozen=True)
class RowShard:
    """One process's rows of a table: consecutive ones, as many as every other has, or one more."""

    num_rows: int
    """Rows of the whole table."""
    rank: int
    size: int

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return the first row of a process and the one after its last."""
        return rank * self.num_rows // self.size, (rank + 1) * self.num_rows // self.size

    @property
    def start(self) -> int:
        """First own row."""
        return self.bounds(self.rank)[0]

    @property
    def stop(self) -> int:
        """Row after the last own one."""
        return self.bounds(self.rank)[1]

    def owner(self, row: Int64[Tensor, " id"]) -> Int64[Tensor, " id"]:
        """Return the process that has each row."""
        stops = torch.tensor([self.bounds(r)[1] for r in range(self.size)], device=row.device)
        return torch.searchsorted(stops, row, right=True)

    def owns(self, row: Int64[Tensor, " id"]) -> Tensor:
        """Return whether each row is an own one."""
        return (row >= self.start) & (row < self.stop)


def mark(parameter: nn.Parameter, shard: RowShard) -> nn.Parameter:
    """Say that a parameter holds the rows of one process, and return it."""
    parameter.row_shard = shard  # type: ignore[attr-defined]
    return parameter


def shard_of(parameter: Tensor) -> RowShard | None:
    """Return which rows of a table a parameter holds; None if it is whole."""
    shard: RowShard | None = getattr(parameter, "row_shard", None)
    return shard


def row_shards(model: nn.Module) -> dict[str, RowShard]:
    """Return the parameters of which a process holds some rows, by name."""
    found = {name: shard_of(parameter) for name, parameter in model.named_parameters()}
    return {name: shard for name, shard in found.items() if shard is not None}
