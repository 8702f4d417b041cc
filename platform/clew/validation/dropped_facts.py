"""Training without some facts, without a change in the order of the examples.

A dropped fact is no longer a positive of its query, and a query without positives adds nothing to
the loss. The row of the query still passes through the network, and the loss is divided by the same
number of rows. So, with the same seed, the order, the dropout masks and the batch statistics are
those of the whole graph. Influence scores use the gradient of exactly this change of the loss.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph
from clew.training.task import LossSum

Facts = Int[np.ndarray, " dropped"]
"""Indices of facts in the training triples."""


@dataclass(frozen=True, eq=False)
class FactKeys:
    """Finds the positives of a batch among the training facts, in every trained direction."""

    num_relations: int
    """Number of relations of the model, including inverses."""
    num_entities: int
    keys: Int64[np.ndarray, " key"]
    """Distinct positives (head, relation, tail), each as one number, in ascending order."""
    of_fact: Int64[np.ndarray, "direction fact"]
    """Index of each fact in `keys`; copies of a fact have the same index."""

    @classmethod
    def from_graph(cls, graph: KnowledgeGraph, *, inverse_relations: bool) -> "FactKeys":
        """Index the training triples of a graph."""
        directions = 1 + inverse_relations
        rows = graph.with_inverses(graph.train) if inverse_relations else graph.train
        head, relation, tail = (
            rows[:, column].astype(np.int64) for column in (HEAD, RELATION, TAIL)
        )
        num_relations = directions * graph.num_relations
        all_keys = (head * num_relations + relation) * graph.num_entities + tail
        keys, places = np.unique(all_keys, return_inverse=True)
        return cls(num_relations, graph.num_entities, keys, places.reshape(directions, -1))

    def kept(self, dropped: Facts) -> Bool[np.ndarray, " key"]:
        kept = np.ones(len(self.keys), bool)
        kept[self.of_fact[:, dropped]] = False
        return kept

    def places(self, batch: TripleBatch) -> Int64[Tensor, " positive"]:
        head, relation = batch.head[batch.row], batch.relation[batch.row]
        key = (head * self.num_relations + relation) * self.num_entities + batch.entity
        return torch.from_numpy(np.searchsorted(self.keys, key.cpu().numpy()))


class WithoutFacts(LinkPrediction):
    """Link prediction on a graph in which some training facts have weight 0.

    Args:
        graph: The whole graph.
        config: The training run's configuration.
        dropped: Facts to leave out.
    """

    def __init__(self, graph: KnowledgeGraph, config: RunConfig, dropped: Facts) -> None:
        super().__init__(graph, config)
        self._facts = FactKeys.from_graph(graph, inverse_relations=self.inverse_relations)
        self._kept = torch.from_numpy(self._facts.kept(dropped))

    def loss(self, model: nn.Module, batch: TripleBatch) -> LossSum:
        """Return the loss summed over rows that keep a positive; `count` counts all rows."""
        kept = self._kept[self._facts.places(batch)].to(batch.row.device)
        left = replace(batch, row=batch.row[kept], entity=batch.entity[kept])
        rows, row = torch.unique(left.row, return_inverse=True)
        assert isinstance(model, GraphModel)
        queries = model.queries(batch.head, batch.relation)[rows]
        if not len(rows):
            return LossSum(queries.sum(), batch.count)
        total = self._prediction_loss(model, queries, replace(left, row=row))
        if self.terms is not None:
            total = total + self._triple_losses(self.terms, model, left).sum()
        return LossSum(total, batch.count)
