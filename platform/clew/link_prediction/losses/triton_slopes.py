"""Slopes of the fused losses as Triton kernels for CUDA: each tile is read and written once.

PyTorch's operations read and write a tile about ten times: bias, softplus, its sum, sigmoid, column
sums, gain, conversion. Here one kernel does all of this. A program handles a block of columns and
some of the rows, so that sums over rows stay in registers; torch adds the sums of the programs. The
kernel needs no atomics, and its results are deterministic.

The kernels are tested without a GPU by Triton's interpreter (TRITON_INTERPRET=1).
"""

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from clew.link_prediction.losses.score_tiles import PerRow, Slope, Slopes, Tile, TileBias

BLOCK_ROWS, BLOCK_COLUMNS = 32, 64
ROWS_OF_A_PROGRAM = 128
LOG_SUM_ROWS, LOG_SUM_COLUMNS = 4, 512


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _softplus(s):
    """Return max(s, 0) + log(1 + exp(-|s|)); the logarithm is exact for small arguments (Kahan)."""
    e = tl.exp(-tl.abs(s))
    u = 1.0 + e
    small = u == 1.0
    log = tl.where(small, e, tl.log(u) * (e / tl.where(small, 1.0, u - 1.0)))
    return tl.maximum(s, 0.0) + log


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _slopes(  # noqa: PLR0917 - Triton passes by position
    scores,
    bias,
    log_sum,
    mass,
    scaled,
    column_sums,
    totals,
    num_rows,
    num_columns,
    gain,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    SOFTMAX: tl.constexpr,  # noqa: N803
    SLOPE: tl.constexpr,  # noqa: N803
    EACH: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    inside = column < num_columns
    shift = tl.zeros((COLUMNS,), dtype=tl.float32)
    if HAS_BIAS:
        shift = tl.load(bias + column, mask=inside, other=0.0)
    sums = tl.zeros((COLUMNS,), dtype=tl.float32)
    softplus = tl.zeros((COLUMNS,), dtype=tl.float32)
    for step in range(0, EACH, ROWS):
        row = part * EACH + step + tl.arange(0, ROWS)
        offsets = row.to(tl.int64)[:, None] * num_columns + column[None, :]
        valid = (row < num_rows)[:, None] & inside[None, :]
        s = tl.load(scores + offsets, mask=valid, other=0.0) + shift[None, :]
        if SOFTMAX:
            lse = tl.load(log_sum + row, mask=row < num_rows, other=0.0)
            weight = tl.load(mass + row, mask=row < num_rows, other=0.0)
            slope = tl.exp(s - lse[:, None]) * weight[:, None]
        else:
            softplus += tl.sum(tl.where(valid, _softplus(s), 0.0), axis=0)
            slope = 1.0 / (1.0 + tl.exp(-s))
        if SLOPE:
            sums += tl.sum(tl.where(valid, slope, 0.0), axis=0)
            tl.store(scaled + offsets, (slope * gain).to(scaled.dtype.element_ty), mask=valid)
    if SLOPE:
        tl.store(column_sums + part * num_columns + column, sums, mask=inside)
    tl.store(totals + part * num_columns + column, softplus, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _log_sums(  # noqa: PLR0917
    scores,
    bias,
    log_sum,
    num_rows,
    num_columns,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    largest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, num_columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        offsets = row.to(tl.int64)[:, None] * num_columns + column[None, :]
        inside = column < num_columns
        valid = (row < num_rows)[:, None] & inside[None, :]
        s = tl.load(scores + offsets, mask=valid, other=0.0)
        if HAS_BIAS:
            s += tl.load(bias + column, mask=inside, other=0.0)[None, :]
        s = tl.where(inside[None, :], s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, axis=1))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(s - new[:, None]), axis=1)
        largest = new
    tl.store(log_sum + row, largest + tl.log(total), mask=row < num_rows)


class TritonSlopes(Slopes):
    """Computes slopes with the kernels above; scores must be contiguous float32."""

    def softplus(self, scores: Tile, bias: TileBias | None) -> Tensor:
        """Return the sum of log(1 + exp(s)) over the tile, in float64."""
        return self._run(scores, bias, None, slope=False)[0]

    def sigmoid(self, scores: Tile, bias: TileBias | None) -> tuple[Tensor, Slope]:
        """Return the sum of log(1 + exp(s)) in float64, and its slope 1 / (1 + exp(-s))."""
        return self._run(scores, bias, None)

    def log_sum(self, scores: Tile, bias: TileBias | None) -> tuple[Tensor, None]:
        """Return log sum exp(s) over the tile's columns, and None; the scores do not change."""
        rows, columns = scores.shape
        found = scores.new_empty(rows)
        _log_sums[(-(-rows // LOG_SUM_ROWS),)](
            scores,
            scores if bias is None else bias,
            found,
            rows,
            columns,
            HAS_BIAS=bias is not None,
            ROWS=LOG_SUM_ROWS,
            COLUMNS=LOG_SUM_COLUMNS,
        )
        return found, None

    def softmax(self, scores: Tile, bias: TileBias | None, log_sum: PerRow, mass: PerRow) -> Slope:
        """Return the slope mass * exp(s - log_sum)."""
        return self._run(scores, bias, (log_sum, mass))[1]

    def _run(
        self,
        scores: Tensor,
        bias: Tensor | None,
        rows: tuple[Tensor, Tensor] | None,
        *,
        slope: bool = True,
    ) -> tuple[Tensor, Slope]:
        num_rows, num_columns = scores.shape
        # Each element is read before it is written, so float32 slopes can overwrite the scores.
        scaled = scores
        if slope and self._operand != scores.dtype:
            scaled = self._workspace.take("scores", (num_rows, num_columns), self._operand)
        parts = -(-num_rows // ROWS_OF_A_PROGRAM)
        columns, totals = scores.new_empty(2, parts, num_columns)
        log_sum, mass = rows if rows is not None else (scores, scores)
        _slopes[(-(-num_columns // BLOCK_COLUMNS), parts)](
            scores,
            scores if bias is None else bias,
            log_sum,
            mass,
            scaled,
            columns,
            totals,
            num_rows,
            num_columns,
            self._gain,
            HAS_BIAS=bias is not None,
            SOFTMAX=rows is not None,
            SLOPE=slope,
            EACH=ROWS_OF_A_PROGRAM,
            ROWS=BLOCK_ROWS,
            COLUMNS=BLOCK_COLUMNS,
        )
        return totals.double().sum(), Slope(scaled, None if bias is None else columns.sum(0))
