"""Losses over all entities: binary cross entropy and softmax cross entropy, plain and fused.

With scores s = X W^T + b + c of query vectors X `(batch, dim)` against the entity table W
`(entity, dim)`, biases b of entities and c of queries, and labels y as in
`clew.link_prediction.losses.targets`, the loss of a row is

    binary cross entropy     sum_e softplus(s_e)                - sum_e y_e s_e
    softmax cross entropy    (sum_e y_e) log sum_e exp(s_e)     - sum_e y_e s_e

summed over rows and, for the first, over entities: nothing is averaged here. The plain
implementation below keeps all scores, `(batch, entity)`; the fused one keeps none.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clew.layers.shapes import EntityBias, EntityTable, Queries, QueryBias, Scores
from clew.link_prediction.losses.fused_one_vs_all import fused_loss
from clew.link_prediction.losses.targets import (
    SOFTPLUS_THRESHOLD,
    LossFunction,
    Targets,
    smoothed_targets,
)

Implementation = Literal["auto", "plain", "fused"]

# Copies of the scores kept by autograd for a plain loss: scores, softplus, gradients, one copy.
_SCORES_HELD = 5
_PLAIN_LIMIT_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class OneVsAll:
    """Which loss to compute, and how."""

    function: LossFunction = "binary_cross_entropy"
    label_smoothing: float = 0.0
    implementation: Implementation = "fused"
    """`auto` is `plain` if all scores and their gradients stay in the cache, else `fused`."""
    chunk_bytes: int = 64 * 1024**2
    """Budget of the fused loss for its chunks of scores, in bytes."""

    def chosen(self, batch: int, entities: int) -> Implementation:
        """Return the implementation for a batch, `plain` or `fused`."""
        if self.implementation != "auto":
            return self.implementation
        held = _SCORES_HELD * batch * entities * torch.float32.itemsize
        return "plain" if held <= _PLAIN_LIMIT_BYTES else "fused"


def one_vs_all_loss(
    queries: Queries,
    table: EntityTable,
    bias: EntityBias | None,
    row: Int[Tensor, " positive"],
    entity: Int[Tensor, " positive"],
    *,
    settings: OneVsAll,
    query_bias: QueryBias | None = None,
) -> Float[Tensor, ""]:
    """Return the loss summed over rows, in float32 (float64 for float64 parameters).

    Args:
        queries: Query vectors X.
        table: Entity table W.
        bias: Entity bias b, or None.
        row: Row of each positive.
        entity: Entity of each positive; a pair (row, entity) occurs once.
        settings: Which loss and implementation.
        query_bias: Query bias c, or None.
    """
    if settings.chosen(len(queries), len(table)) == "plain":
        return one_vs_all_row_losses(
            queries, table, bias, row, entity, settings=settings, query_bias=query_bias
        ).sum()
    targets = _targets(queries, table, row, entity, settings)
    return fused_loss(
        queries,
        table,
        bias,
        targets,
        function=settings.function,
        chunk_bytes=settings.chunk_bytes,
        query_bias=query_bias,
    )


def one_vs_all_row_losses(
    queries: Queries,
    table: EntityTable,
    bias: EntityBias | None,
    row: Int[Tensor, " positive"],
    entity: Int[Tensor, " positive"],
    *,
    settings: OneVsAll,
    query_bias: QueryBias | None = None,
) -> Float[Tensor, " batch"]:
    """Return the loss of each row, always by the plain implementation; arguments as above."""
    targets = _targets(queries, table, row, entity, settings)
    scores = F.linear(queries, table, bias).to(targets.weight.dtype)
    if query_bias is not None:
        scores = scores + query_bias[:, None]
    return row_losses(scores, targets, function=settings.function)


def row_losses(
    scores: Scores, targets: Targets, *, function: LossFunction
) -> Float[Tensor, " batch"]:
    """Return the loss of each row from its scores over all entities (the reference)."""
    if function == "binary_cross_entropy":
        normaliser = F.softplus(scores, threshold=SOFTPLUS_THRESHOLD).sum(dim=1)
    else:
        normaliser = targets.mass * scores.logsumexp(dim=1)
    positive = targets.weight * scores[targets.row, targets.entity]
    labelled = torch.zeros_like(normaliser).index_add(0, targets.row, positive)
    return normaliser - labelled - targets.floor * scores.sum(dim=1)


def _targets(
    queries: Queries, table: EntityTable, row: Tensor, entity: Tensor, settings: OneVsAll
) -> Targets:
    return smoothed_targets(
        row,
        entity,
        batch=len(queries),
        entities=len(table),
        function=settings.function,
        label_smoothing=settings.label_smoothing,
        dtype=torch.float64 if table.dtype == torch.float64 else torch.float32,
    )
