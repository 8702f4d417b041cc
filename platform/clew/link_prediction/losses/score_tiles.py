"""Tiles of scores in the fused losses: the products that compute them, and their slopes.

A tile P = X W_c^T `(batch, chunk)` is the product of all queries with one chunk of entities. After
the bias is added, it gives a part of the normaliser N and the slope G = dN/ds, in the data type and
scale of the next products. `Slopes` uses separate PyTorch operations, for the CPU and as the
reference for the CUDA kernels in `triton_slopes`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clew.layers.products import chunks, product
from clew.link_prediction.losses.one_vs_all import SOFTPLUS_THRESHOLD

MINIMUM_CHUNK = 2048
# Larger tiles leave the cache between a product and the arithmetic on its result.
_CPU_TILE_BYTES = 8 * 1024**2
# With smaller tiles a GPU waits for the launches: over 200,000 entities with a batch of 1,024 in
# bfloat16, an H200 takes 4.8 ms with tiles of 256 MiB and 17 ms with tiles of 32 MiB.
_GPU_TILE_BYTES = 256 * 1024**2

Tile = Float[Tensor, "batch chunk"]
TileBias = Float[Tensor, " chunk"]
PerRow = Float[Tensor, " batch"]


def chunk_size(batch: int, entities: int, *, chunk_bytes: int, device: torch.device) -> int:
    """Return the number of entities per chunk, so that chunks have nearly equal size.

    Two float32 tiles `(batch, chunk)` are held at once.
    """
    tile_bytes = chunk_bytes // 2
    if device.type == "cpu":
        tile_bytes = min(tile_bytes, _CPU_TILE_BYTES)
    else:
        tile_bytes = max(tile_bytes, _GPU_TILE_BYTES)
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

    def product(
        self, name: str, a: Tensor, b: Tensor, *, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        """Return the product a b, in `out` if given; `dtype` can be wider than the factors'."""
        if a.dtype == dtype:
            return product(a, b, out=out)
        if a.is_cuda:
            wide = torch.mm(a, b, out_dtype=dtype)
            return wide if out is None else out.copy_(wide)
        shape = (a.shape[0], b.shape[1])
        half = torch.mm(a, b, out=self.take(name, shape, a.dtype))
        return (self.take(name, shape, dtype) if out is None else out).copy_(half)


class EntityChunks:
    """Products of queries with chunks of entities, plus the bias of each query if given.

    The bias of entities is added later. The products of the first chunks can be kept for a second
    pass; they include in-place changes of the first pass.
    """

    def __init__(
        self,
        queries: Tensor,
        table: Tensor,
        *,
        operand: torch.dtype,
        size: int,
        query_bias: Tensor | None = None,
        kept_bytes: int = 0,
    ) -> None:
        self.queries, self.table, self.query_bias = queries.to(operand), table, query_bias
        self.size = size
        self.num_kept = kept_bytes // (max(len(queries), 1) * size * table.element_size())
        self.workspace = Workspace(table.device)
        self._kept: dict[int, Tensor] = {}

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield entities, their rows `(chunk, dim)` and X W_c^T `(batch, chunk)`, in buffers."""
        operand, exact = self.queries.dtype, self.table.dtype
        all_chunks = chunks(len(self.table), self.size, kept=self.num_kept)
        for number, entities in enumerate(all_chunks):
            rows = self.table[entities]
            if operand != exact:
                rows = self.workspace.take("rows", tuple(rows.shape), operand).copy_(rows)
            if number in self._kept:
                yield entities, rows, self._kept.pop(number)
                continue
            name = f"scores {number}" if number < self.num_kept else "scores"
            scores = self.workspace.product(name, self.queries, rows.T, dtype=exact)
            if self.query_bias is not None:
                scores += self.query_bias[:, None]
            if number < self.num_kept:
                self._kept[number] = scores
            yield entities, rows, scores


@dataclass(frozen=True)
class Slope:
    """Slope of the normaliser over a tile."""

    scaled: Tile
    """G times the gain, in the type of matrix operands."""
    columns: Float[Tensor, " chunk"] | None
    """G summed over rows, which is the slope of the bias; None without a bias."""


class Slopes:
    """Turns tiles of scores into slopes with PyTorch operations; can overwrite the scores."""

    def __init__(self, workspace: Workspace, operand: torch.dtype, gain: float) -> None:
        self._workspace, self._operand, self._gain = workspace, operand, gain

    def softplus(self, scores: Tile, bias: TileBias | None) -> Float[Tensor, ""]:
        """Return the sum of log(1 + exp(s)) over the tile, in float64."""
        scores = _biased(scores, bias)
        softplus = self._workspace.take("softplus", tuple(scores.shape), scores.dtype)
        torch.ops.aten.softplus.out(scores, 1.0, SOFTPLUS_THRESHOLD, out=softplus)
        return softplus.sum().double()

    def sigmoid(self, scores: Tile, bias: TileBias | None) -> tuple[Float[Tensor, ""], Slope]:
        """Return the sum of log(1 + exp(s)) in float64, and its slope 1 / (1 + exp(-s))."""
        total = self.softplus(scores, bias)
        return total, self._slope(scores.sigmoid_(), bias)

    def log_sum(self, scores: Tile, bias: TileBias | None) -> tuple[PerRow, PerRow | None]:
        """Return log sum exp(s) over the tile's columns, and the largest s of each row, m, or None.

        If m is returned, the scores were overwritten by exp(s - m), the input of
        `from_exponentials`. If None is returned, the scores are unchanged.
        """
        scores = _biased(scores, bias)
        largest = scores.amax(dim=1)
        return scores.sub_(largest[:, None]).exp_().sum(dim=1).log_() + largest, largest

    def softmax(self, scores: Tile, bias: TileBias | None, log_sum: PerRow, mass: PerRow) -> Slope:
        """Return the slope mass * exp(s - log_sum)."""
        exponentials = _biased(scores, bias).sub_(log_sum[:, None]).exp_()
        return self.from_exponentials(exponentials, bias, mass)

    def from_exponentials(self, exponentials: Tile, bias: TileBias | None, factor: PerRow) -> Slope:
        """Return the slope factor * exponentials, from exponentials of scores with bias."""
        return self._slope(exponentials.mul_(factor[:, None]), bias)

    def _slope(self, slope: Tensor, bias: TileBias | None) -> Slope:
        columns = None if bias is None else slope.sum(dim=0)
        if self._operand != slope.dtype:
            if self._gain != 1.0:
                slope *= self._gain
            shape = tuple(slope.shape)
            slope = self._workspace.take("scores", shape, self._operand).copy_(slope)
        return Slope(slope, columns)


def _biased(scores: Tensor, bias: Tensor | None) -> Tensor:
    return scores if bias is None else scores.add_(bias)
