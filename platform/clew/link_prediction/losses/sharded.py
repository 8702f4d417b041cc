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
from clew.link_prediction.losses.one_vs_all import OneVsAll, targets_of
from clew.link_prediction.losses.sampled import Negatives, NegativeSampler, SampledScores
from clew.link_prediction.models.base import GraphModel, Queries
from clew.link_prediction.triple_batches import TripleBatch
from clew.training.sharding import ShardedTable, gathered


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
    targets = targets_of(
        every, table.weight, row, entity, settings, num_entities=table.num_embeddings
    )
    owned, first = table.shard.owns(entity), table.shard.start
    targets = replace(
        targets, row=row[owned], entity=entity[owned] - first, weight=targets.weight[owned]
    )
    query_bias = model.query_bias(every)
    if sampler is not None:
        drawn = sampler.draw_from(exchange.sum(sampler.entropy(batch.example), "samples"))
        owned = table.shard.owns(drawn.entity)
        drawn = Negatives(drawn.entity[owned] - first, drawn.rate[owned])
        scores = SampledScores(every, query_bias, targets, drawn, model.tails)
        return scores.losses(settings.function, exchange).sum()
    return fused_loss(
        every,
        table.weight,
        model.tail_bias(),
        targets,
        settings=settings,
        query_bias=query_bias,
        exchange=exchange,
    )
