"""Products of queries with all entities, one chunk of entities after another."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from clew.layers.chunks import chunks
from clew.layers.products import product

MINIMUM_CHUNK = 2048
# Larger tiles would leave the cache between a product and the arithmetic on its result.
_CPU_TILE_BYTES = 8 * 1024**2


def chunk_size(batch: int, entities: int, *, chunk_bytes: int, device: torch.device) -> int:
    """Return the number of entities per chunk, so that chunks have nearly equal size.

    Two float32 tiles `(batch, chunk)` are held at once.
    """
    tile_bytes = chunk_bytes // 2
    if device.type == "cpu":
        tile_bytes = min(tile_bytes, _CPU_TILE_BYTES)
    fitting = tile_bytes // (max(batch, 1) * torch.float32.itemsize)
    num_chunks = -(-entities // max(fitting, MINIMUM_CHUNK))
    return -(-entities // num_chunks)


class Workspace:
    """Buffers that are reused by every chunk: on a CPU, allocating memory is expensive."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the buffer with a name; its content is undefined."""
        size = math.prod(shape)
        buffer = self.buffers.get((name, dtype))
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(size, dtype=dtype, device=self.device)
            self.buffers[name, dtype] = buffer
        return buffer[:size].view(shape)

    def product(self, name: str, a: Tensor, b: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Return the product a b; its type may be wider than that of its factors."""
        if a.dtype == dtype:
            return product(a, b)
        if a.is_cuda:
            return torch.mm(a, b, out_dtype=dtype)
        shape = (a.shape[0], b.shape[1])
        half = torch.mm(a, b, out=self.take(name, shape, a.dtype))
        return self.take(name, shape, dtype).copy_(half)


class EntityChunks:
    """Products with one chunk of entities after another, plus the bias of each query if given.

    A bias of entities is added later.
    """

    def __init__(
        self,
        queries: Tensor,
        table: Tensor,
        *,
        operand: torch.dtype,
        size: int,
        query_bias: Tensor | None = None,
    ) -> None:
        self.queries, self.table, self.query_bias = queries.to(operand), table, query_bias
        self.size = size
        self.workspace = Workspace(table.device)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield entities, their rows `(chunk, dim)` and X W_c^T `(batch, chunk)`, a buffer."""
        operand, exact = self.queries.dtype, self.table.dtype
        for entities in chunks(len(self.table), self.size):
            rows = self.table[entities]
            if operand != exact:
                rows = self.workspace.take("rows", tuple(rows.shape), operand).copy_(rows)
            scores = self.workspace.product("scores", self.queries, rows.T, dtype=exact)
            if self.query_bias is not None:
                scores += self.query_bias[:, None]
            yield entities, rows, scores
