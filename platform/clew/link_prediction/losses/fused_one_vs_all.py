"""Losses over all entities in chunks, with little memory; the forward computes the gradients.

Both losses are a normaliser N minus a part that is linear in the scores s = X W^T + b + c:

    binary cross entropy     N = sum_e softplus(s_e)              dN/ds = sigmoid(s)
    softmax cross entropy    N = mass * log sum_e exp(s_e)        dN/ds = mass * softmax(s)

For a chunk c of entities, with G = dN/ds over it, three matrix products give the exact gradient:

    S = X W_c^T + b_c,    dX += G W_c,    dW_c = G^T X,    db_c = sum_rows G,    dc += sum_cols G

The softmax loss needs its log-sum-exp first, so it needs all scores twice. As many chunks as fit
into the memory budget are kept for the second pass. The other chunks are computed again, by a
fourth product. With the binary loss only two chunks are in memory.

The linear part, sum_e y_e s_e, does not need the scores: its positives are gathered rows, and its
smoothing is (eps / E) X . sum_e W_e.

Apple's cut-cross-entropy (arXiv 2411.09009) does the same for softmax, but drops small terms of the
gradient. Here they are kept, because the sum of many terms of size 1 / E matters.

Precision: under autocast the products have half-precision operands, while scores, losses and
gradients are float32. float16 has no numbers below 6e-8, and a sigmoid can be smaller, so G is
multiplied by 2^12 in float16. On a CPU, float16 products are slow, so they are computed in float32.

The products and the steps between them are in `score_tiles`. On CUDA, the steps are one Triton
kernel per chunk.
"""

import importlib.util
import logging
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from clew.layers.products import device_of, operand_type
from clew.link_prediction.losses.one_vs_all import OneVsAll, Targets, targets_of
from clew.link_prediction.losses.score_tiles import (
    EntityChunks,
    Slope,
    Slopes,
    Workspace,
    chunk_size,
)
from clew.link_prediction.models.base import EntityBias, EntityTable, Queries, QueryBias
from clew.training.sharding import Exchange

logger = logging.getLogger(__name__)


def fused_one_vs_all_loss(
    queries: Queries,
    table: EntityTable,
    bias: EntityBias | None,
    row: Int[Tensor, " positive"],
    entity: Int[Tensor, " positive"],
    *,
    settings: OneVsAll,
    query_bias: QueryBias | None = None,
) -> Float[Tensor, ""]:
    """Return the same value as `one_vs_all_loss` with these arguments."""
    return fused_loss(
        queries,
        table,
        bias,
        targets_of(queries, table, row, entity, settings),
        settings=settings,
        query_bias=query_bias,
    )


def fused_loss(
    queries: Queries,
    table: EntityTable,
    bias: EntityBias | None,
    targets: Targets,
    *,
    settings: OneVsAll,
    query_bias: QueryBias | None = None,
    exchange: Exchange | None = None,
) -> Float[Tensor, ""]:
    """Return the loss summed over rows; its gradients are computed at the same time.

    Args:
        queries: Query vectors X.
        table: Entity table W.
        bias: Entity bias b, or None.
        targets: Labels of the rows.
        settings: Which loss to compute. The softmax loss uses `chunk_bytes` twice, once for the
            chunks that are kept. A chunk has about 2,048 entities even if the budget is smaller.
        query_bias: Query bias c, or None.
        exchange: If table, bias and positives are the part of one process, the exchange with the
            processes that have the other parts. The losses and gradients of all processes then add
            up to those of the whole table. None if this process has the whole table.
    """
    operand, chunk_bytes = operand_type(table), settings.chunk_bytes
    size = chunk_size(len(queries), len(table), chunk_bytes=chunk_bytes, device=device_of(table))
    # Gradients are off inside an autograd function, so check here which ones are needed.
    wanted = tuple(
        torch.is_grad_enabled() and x is not None and x.requires_grad
        for x in (queries, table, bias, query_bias)
    )
    with torch.autocast(table.device.type, enabled=False):
        total: Tensor = _FusedLoss.apply(  # type: ignore[no-untyped-call]
            queries,
            table,
            bias,
            query_bias,
            targets,
            settings,
            operand,
            size,
            wanted,
            exchange,
        )
    return total


class _FusedLoss(torch.autograd.Function):
    """Computes loss and gradients in the forward; the backward only scales them."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        query_bias: Tensor | None,
        targets: Targets,
        settings: OneVsAll,
        operand: torch.dtype,
        size: int,
        wanted: tuple[bool, bool, bool, bool],
        exchange: Exchange | None,
    ) -> Tensor:
        binary = settings.function == "binary_cross_entropy"
        chunks = EntityChunks(
            queries,
            table,
            operand=operand,
            size=size,
            query_bias=query_bias,
            kept_bytes=0 if binary or not any(wanted) else settings.chunk_bytes,
        )
        # Each process counts an equal share of the terms that belong to whole rows of scores.
        share = 1.0 if exchange is None else 1.0 / exchange.size
        gradients = _Gradients(chunks, targets, wanted=wanted, share=share)
        slopes = slopes_for(chunks.workspace, table.dtype, operand, gradients.gain)
        if binary:
            total = _binary_cross_entropy(chunks, bias, slopes, gradients)
        else:
            total = _softmax_cross_entropy(chunks, bias, slopes, gradients, exchange)
        total -= gradients.add_linear_part(queries, table, bias, query_bias)
        ctx.gradients = gradients.dx, gradients.dw, gradients.db, gradients.dc
        ctx.queries_type = queries.dtype
        return total.to(targets.weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the fused loss was backpropagated a second time; it scales its gradients in "
                "place, so compute the loss again or use implementation='plain'"
            )
        queries, *others = (g if g is None else g.mul_(upstream) for g in ctx.gradients)
        ctx.gradients = None
        if queries is not None:
            queries = queries.to(ctx.queries_type)
        return queries, *others, None, None, None, None, None, None


def gain_of(operand: torch.dtype, most_times: int) -> float:
    """Return the factor of slopes that prevents underflow and overflow in float16.

    A slope is at most the number of triples that its row represents.
    """
    if operand != torch.float16:
        return 1.0
    return 4096.0 / (1 << (most_times - 1).bit_length())


class _Gradients:
    """The requested gradients of queries, table and biases, filled chunk by chunk."""

    def __init__(
        self,
        chunks: EntityChunks,
        targets: Targets,
        *,
        wanted: tuple[bool, bool, bool, bool],
        share: float,
    ) -> None:
        queries, table = chunks.queries, chunks.table
        self.queries, self.targets, self.workspace = queries, targets, chunks.workspace
        self.operand, self.exact = queries.dtype, table.dtype
        self.gain = gain_of(self.operand, targets.most_times)
        self.any, self.share = any(wanted), share
        self.dx = torch.zeros_like(queries, dtype=self.exact) if wanted[0] else None
        self.dw = torch.empty_like(table) if wanted[1] else None
        self.db = table.new_empty(len(table)) if wanted[2] else None
        self.dc = torch.zeros_like(targets.mass) if wanted[3] else None
        self.smoothing = targets.floor * (targets.times[:, None] * queries.to(self.exact)).sum(0)

    def add(self, entities: slice, rows: Tensor, slope: Slope) -> None:
        product, exact, g = self.workspace.product, self.exact, slope.scaled
        if self.db is not None:
            assert slope.columns is not None  # there is a bias
            smoothing = self.targets.floor * self.targets.total_times
            torch.sub(slope.columns, smoothing, out=self.db[entities])
        if self.dx is not None:
            self.dx.add_(product("dx", g, rows, dtype=exact), alpha=1.0 / self.gain)
        if self.dw is not None:
            dw = product("dw", g.T, self.queries, dtype=exact, out=self.dw[entities])
            if self.gain != 1.0:
                dw *= 1.0 / self.gain
            if self.targets.floor:
                dw -= self.smoothing
        if self.dc is not None:
            self.dc.add_(g.sum(dim=1, dtype=exact), alpha=1.0 / self.gain)

    def add_linear_part(
        self, queries: Tensor, table: Tensor, bias: Tensor | None, query_bias: Tensor | None
    ) -> Tensor:
        """Return sum y s over all rows and entities, and subtract its gradient.

        `add` has already included the part of `dw` and `db` that comes from smoothing.
        """
        row, entity, weight = self.targets.row, self.targets.entity, self.targets.weight
        x = queries.to(table.dtype)
        positive_x, positive_w = x[row], table[entity]
        table_sum = table.sum(dim=0)
        scores = (positive_x * positive_w).sum(dim=1)
        smoothed = torch.dot((self.targets.times[:, None] * x).sum(dim=0), table_sum)
        if bias is not None:
            scores += bias[entity]
            smoothed += self.targets.total_times * bias.sum()
        if self.dx is not None:
            self.dx.index_add_(0, row, positive_w.mul_(weight[:, None]), alpha=-1)
            self.dx -= (self.targets.floor * self.targets.times)[:, None] * table_sum
        if self.dw is not None:
            self.dw.index_add_(0, entity, positive_x.mul_(weight[:, None]), alpha=-1)
        if self.db is not None:
            self.db.index_add_(0, entity, weight, alpha=-1)
        if self.dc is not None:
            self.dc -= self.share * self.targets.mass
        total = torch.dot(weight, scores) + self.targets.floor * smoothed
        if query_bias is None:
            return total
        return total + self.share * torch.dot(self.targets.mass, query_bias)


def _part(bias: Tensor | None, entities: slice) -> Tensor | None:
    return None if bias is None else bias[entities]


def _binary_cross_entropy(
    chunks: EntityChunks, bias: Tensor | None, slopes: Slopes, gradients: _Gradients
) -> Tensor:
    """Return sum softplus(s) in float64 and add its gradient, in one pass."""
    total = torch.zeros((), dtype=torch.float64, device=chunks.table.device)
    for entities, rows, scores in chunks:
        if gradients.any:
            part, slope = slopes.sigmoid(scores, _part(bias, entities))
            gradients.add(entities, rows, slope)
        else:
            part = slopes.softplus(scores, _part(bias, entities))
        total += part
    return total


def _softmax_cross_entropy(
    chunks: EntityChunks,
    bias: Tensor | None,
    slopes: Slopes,
    gradients: _Gradients,
    exchange: Exchange | None,
) -> Tensor:
    """Return sum mass * log-sum-exp(s) in float64 and add its gradient, in a second pass."""
    mass = gradients.targets.mass
    log_sum = torch.full_like(mass, -torch.inf)
    largest: list[Tensor | None] = []
    for entities, _, scores in chunks:
        found, of_rows = slopes.log_sum(scores, _part(bias, entities))
        log_sum = torch.logaddexp(log_sum, found)
        largest.append(of_rows if len(largest) < chunks.num_kept else None)
    if exchange is not None:
        log_sum = exchange.log_sum(log_sum)
    if gradients.any:
        for of_rows, (entities, rows, scores) in zip(largest, chunks, strict=True):
            part = _part(bias, entities)
            if of_rows is None:
                slope = slopes.softmax(scores, part, log_sum, mass)
            else:  # kept exponentials
                slope = slopes.from_exponentials(scores, part, mass * (of_rows - log_sum).exp())
            gradients.add(entities, rows, slope)
    return gradients.share * torch.dot(mass, log_sum).double()


def slopes_for(
    workspace: Workspace, exact: torch.dtype, operand: torch.dtype, gain: float
) -> Slopes:
    """Return the CUDA kernels if they can run, else PyTorch's operations."""
    if workspace.device.type == "cuda" and exact == torch.float32 and _triton_is_installed():
        from clew.link_prediction.losses.triton_slopes import TritonSlopes

        return TritonSlopes(workspace, operand, gain)
    return Slopes(workspace, operand, gain)


@cache
def _triton_is_installed() -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found:
        logger.warning(
            "the package triton is not installed: the fused loss uses PyTorch's slower operations; "
            "pip install 'clew[gpu]'"
        )
    return found
