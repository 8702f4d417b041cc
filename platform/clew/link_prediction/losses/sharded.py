"""Losses over an entity table whose rows are distributed over processes.

All queries are sent to all processes. Each process computes the loss over its own rows, with the
same code as for a whole table. Sums over entities add up over processes, and the log-sum-exp of the
softmax is combined. A positive counts in the process that has its row. The losses of all processes
add up to the loss of all queries.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from clew.link_prediction.losses.fused_one_vs_all import fused_loss
from clew.link_prediction.losses.one_vs_all import OneVsAll, Targets, smoothed_targets
from clew.link_prediction.losses.sampled import (
    EntityRows,
    Negatives,
    NegativeSampler,
    Sample,
    SampledScores,
    softplus,
)
from clew.link_prediction.models.base import GraphModel, Queries
from clew.link_prediction.triple_batches import TripleBatch
from clew.training.sharding import ShardedTable, gathered, log_sum_of_all


def sharded_loss(
    model: GraphModel,
    queries: Queries,
    batch: TripleBatch,
    *,
    settings: OneVsAll,
    sampler: NegativeSampler | None,
) -> Float[Tensor, ""]:
    """Return this process's part of the loss, summed over the queries of all processes."""
    table = model.entity
    assert isinstance(table, ShardedTable)
    exchange = table.exchange
    num_queries, num_positives = exchange.sizes(len(queries), len(batch.row), device=queries.device)
    every = gathered(queries.to(table.weight.dtype), exchange, num_queries)
    before = sum(num_queries[: exchange.rank])
    pairs = torch.stack([batch.row + before, batch.entity], dim=1)
    row, entity = exchange.gather(pairs, num_positives, "positives").unbind(1)
    targets = smoothed_targets(
        row,
        entity,
        batch=len(every),
        entities=table.num_embeddings,
        function=settings.function,
        label_smoothing=settings.label_smoothing,
        most_per_row=settings.most_per_row,
        dtype=torch.promote_types(table.weight.dtype, torch.float32),
    )
    own = _own_targets(targets, table)
    if sampler is not None:
        entropy = exchange.sum(sampler.entropy(batch.example), "samples")
        return _sampled(model, every, own, sampler.draw_from(entropy), settings)
    return fused_loss(
        every,
        table.weight,
        model.tail_bias(),
        own,
        settings=settings,
        query_bias=model.query_bias(every),
        exchange=exchange,
    )


def _own_targets(targets: Targets, table: ShardedTable) -> Targets:
    """Return the positives whose rows this process has, numbered from its first row."""
    own = table.shard.owns(targets.entity)
    return replace(
        targets,
        row=targets.row[own],
        entity=targets.entity[own] - table.shard.start,
        weight=targets.weight[own],
    )


def _sampled(
    model: GraphModel, queries: Queries, targets: Targets, drawn: Negatives, settings: OneVsAll
) -> Float[Tensor, ""]:
    table = model.entity
    assert isinstance(table, ShardedTable)
    own = table.shard.owns(drawn.entity)
    drawn = Negatives(drawn.entity[own] - table.shard.start, drawn.rate[own])
    sample = Sample(drawn, EntityRows(*model.tails(drawn.entity)))
    positive = EntityRows(*model.tails(targets.entity))
    scores = SampledScores(queries, model.query_bias(queries), sample, positive, targets)
    if settings.function == "binary_cross_entropy":
        normaliser = scores.total(softplus)
    else:
        exchange = table.exchange
        normaliser = targets.mass * log_sum_of_all(scores.log_sum(), exchange) / exchange.size
    return (normaliser - scores.labelled()).sum()
