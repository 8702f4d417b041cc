"""Losses over all entities: binary and softmax cross entropy, from all scores at once.

With scores s = X W^T + b + c of query vectors X `(batch, dim)` against the entity table W
`(entity, dim)`, biases b of entities and c of queries, and labels y, the loss of a row is

    binary cross entropy     sum_e softplus(s_e)                - sum_e y_e s_e
    softmax cross entropy    (sum_e y_e) log sum_e exp(s_e)     - sum_e y_e s_e

The losses of rows are added, and nothing is averaged. These functions keep all scores,
`(batch, entity)`; `clew.link_prediction.losses.fused_one_vs_all` keeps few or none.

With label smoothing eps and E entities, a row's label of entity e is

    y_e = weight at its positives + floor,    floor = eps / E

The weight is 1 - eps for binary cross entropy. For softmax cross entropy it is
(1 - eps) / (positives of the row), because the labels of a row are a distribution (as in LibKGE:
labels normalised by row). Only the plain loss of a whole batch builds the matrix y, for torch's own
functions. The others add its two parts separately, because both losses are linear in y.

A row can also represent several triples, one for each of its positives. Its loss is then the sum
that these triples would have as separate rows: with n positives all labels are n times as large,
and the scores are computed once instead of n times. This is possible only for softmax cross
entropy, whose normaliser is linear in the labels.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from clew.link_prediction.models.base import EntityBias, EntityTable, Queries, QueryBias, Scores

LossFunction = Literal["binary_cross_entropy", "softmax_cross_entropy"]
Implementation = Literal["auto", "plain", "fused"]

# By default torch's softplus returns s itself above 20: an error of 2e-9, visible in float64.
SOFTPLUS_THRESHOLD = 40.0

# With few scores the fused loss saves little, and its overhead costs up to 5 % more on a CPU. On a
# GPU, launching its kernels takes longer than they run, so the limit is higher.
_PLAIN_LIMIT_BYTES = {"cpu": 4 * 1024**2, "cuda": 256 * 1024**2}


@dataclass(frozen=True)
class OneVsAll:
    """Which loss to compute, and how."""

    function: LossFunction = "binary_cross_entropy"
    label_smoothing: float = 0.0
    implementation: Implementation = "fused"
    """`auto` is `plain` if there are few scores, else `fused`."""
    chunk_bytes: int = 64 * 1024**2
    """Budget of the fused loss for its chunks of scores, in bytes; see `fused_loss`."""
    most_per_row: int = 1
    """Largest number of triples that a row represents. If 1, a row counts once for any number of
    positives. Values above 1 are for softmax cross entropy only."""

    def chosen(self, batch: int, entities: int, device_type: str = "cpu") -> Implementation:
        """Return the implementation for a batch on a `cpu` or `cuda`: `plain` or `fused`."""
        if self.implementation != "auto":
            return self.implementation
        score_bytes = batch * entities * torch.float32.itemsize
        return "plain" if score_bytes <= _PLAIN_LIMIT_BYTES[device_type] else "fused"


@dataclass(frozen=True)
class Targets:
    """Labels of a batch of rows over all entities; coordinates are unique, in any order."""

    row: Int[Tensor, " positive"]
    entity: Int[Tensor, " positive"]
    weight: Float[Tensor, " positive"]
    """Label of each positive, without `floor`."""
    floor: float
    """Label that smoothing gives every entity in a row that counts once."""
    times: Float[Tensor, " batch"]
    """How often each row counts: 1, or the number of its positives."""
    total_times: int
    """Sum of `times`; a Python number, so reading it does not wait for a GPU."""
    mass: Float[Tensor, " batch"]
    """Sum of the labels of each row."""
    most_times: int = 1
    """Upper limit of `times`; a Python number, so reading it does not wait for a GPU."""


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
        entity: Entity of each positive; each pair (row, entity) occurs only once.
        settings: Which loss to compute.
        query_bias: Query bias c, or None.
    """
    dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
    scores = _scores(queries, table, bias, query_bias).to(dtype)
    if settings.function == "binary_cross_entropy":
        floor = settings.label_smoothing / len(table)
        labels = torch.full_like(scores, floor)
        labels[row, entity] = 1.0 - settings.label_smoothing + floor
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    targets = targets_of(queries, table, row, entity, settings)
    labels = (targets.floor * targets.times)[:, None].expand_as(scores).contiguous()
    labels[row, entity] += targets.weight
    return F.cross_entropy(scores, labels, reduction="sum")


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
    """Return the loss of each row; the arguments are those of `one_vs_all_loss`."""
    targets = targets_of(queries, table, row, entity, settings)
    scores = _scores(queries, table, bias, query_bias).to(targets.weight.dtype)
    return row_losses(scores, targets, function=settings.function)


def _scores(
    queries: Queries, table: EntityTable, bias: EntityBias | None, query_bias: QueryBias | None
) -> Scores:
    scores = F.linear(queries, table, bias)
    return scores if query_bias is None else scores + query_bias[:, None]


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
    return normaliser - labelled - targets.floor * targets.times * scores.sum(dim=1)


def targets_of(
    queries: Queries,
    table: EntityTable,
    row: Int[Tensor, " positive"],
    entity: Int[Tensor, " positive"],
    settings: OneVsAll,
    *,
    num_entities: int | None = None,
) -> Targets:
    """Return the labels of a batch of queries, in the data type of the loss.

    `num_entities` is needed if the table has the entities of only one process.
    """
    batch, dtype = len(queries), torch.float64 if table.dtype == torch.float64 else torch.float32
    ones = torch.ones(row.shape, dtype=dtype, device=row.device)
    positives = torch.zeros(batch, dtype=dtype, device=row.device).index_add_(0, row, ones)
    smoothing = settings.label_smoothing
    keep, floor = 1.0 - smoothing, smoothing / (num_entities or len(table))
    if settings.most_per_row > 1:
        weight, most = keep * ones, min(settings.most_per_row, len(row))
        return Targets(row, entity, weight, floor, positives, len(row), positives, most)
    if settings.function == "binary_cross_entropy":
        weight, mass = keep * ones, keep * positives + smoothing
    else:
        weight = keep / positives[row]
        mass = keep * (positives > 0).to(dtype) + smoothing
    return Targets(row, entity, weight, floor, torch.ones_like(mass), batch, mass)
