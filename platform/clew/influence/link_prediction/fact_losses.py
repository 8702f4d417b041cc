r"""Weights of training triples in the loss of link prediction, for the unrolled score.

Where a triple is a row of its own (`one_vs_all`, and in `kvs_all` the only tail of its query), its
weight multiplies the row's loss. A tail among n > 1 tails of a query has a share c in the loss of
the row, the loss with it less the loss without it, and the row's loss is l + sum_p (w_p - 1) c_p:

    binary cross entropy     c = -(1 - eps) s_t
    softmax                  c = -(1 - eps) / (n - 1) (s_t - mean of s over the n tails)

These are the deltas of `deltas`, as losses. With inverse relations a triple has two rows, and one
weight.
"""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import Question
from clew.influence.link_prediction.deltas import Directions, LossForm
from clew.influence.unrolled.engine import Objective
from clew.influence.unrolled.facts import WeightedLoss
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples


class TripleFacts:
    """The training triples of a graph."""

    def __init__(self, task: LinkPrediction, config: RunConfig) -> None:
        assert isinstance(config.loss, OneVsAllLoss | KvsAllLoss)
        self.task = task
        self.form = LossForm.from_config(config.loss)
        self._num_triples = len(task.graph.train)
        self._kind = Directions(task.graph.num_relations, task.inverse_relations)
        rows = self._kind.rows(task.graph.train).astype(np.int64)
        keys = self._keys(rows[:, HEAD], rows[:, RELATION], rows[:, TAIL])
        self._order = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._order]

    def __len__(self) -> int:
        return self._num_triples

    def loss(self, model: nn.Module, batch: TripleBatch, examples: np.ndarray) -> WeightedLoss:
        """Return the loss of a batch of rows; see `Facts`."""
        queries: list[Tensor] = []
        hook = model.register_forward_hook(lambda _module, _inputs, out: queries.append(out))
        try:
            losses = self.task.example_losses(model, batch)
        finally:
            hook.remove()
        if not self.form.one_query_a_row:
            weight = torch.ones_like(losses, requires_grad=True)
            return WeightedLoss((weight * losses).sum(), weight, examples % self._num_triples)
        assert isinstance(model, GraphModel)
        weight = losses.new_ones(len(batch.row), requires_grad=True)
        shares = self._shares(model, queries[0], losses, batch)
        return WeightedLoss(
            losses.sum() + ((weight - 1.0) * shares).sum(), weight, self._facts_of(batch)
        )

    def _shares(
        self, model: GraphModel, queries: Tensor, losses: Tensor, batch: TripleBatch
    ) -> Tensor:
        """Return the loss with each positive less the loss without it, `(positive,)`."""
        row, tail = batch.row, batch.entity
        scores = (queries[row] * model.entity.weight[tail]).sum(1)
        tail_bias, query_bias = model.tail_bias(), model.query_bias(queries)
        if tail_bias is not None:
            scores = scores + tail_bias[tail]
        if query_bias is not None:
            scores = scores + query_bias[row]
        count = torch.bincount(row, minlength=len(losses))[row]
        keep = 1.0 - self.form.label_smoothing
        if self.form.function == "softmax_cross_entropy":
            mean = torch.zeros_like(losses).index_add(0, row, scores)[row] / count
            scores = (scores - mean) / (count - 1).clamp_min(1)
        return torch.where(count == 1, losses[row], -keep * scores)

    def _facts_of(self, batch: TripleBatch) -> Int[np.ndarray, "positive"]:
        row = batch.row
        columns = (batch.head[row], batch.relation[row], batch.entity)
        keys = self._keys(*(column.cpu().numpy() for column in columns))
        found: np.ndarray = self._order[np.searchsorted(self._sorted_keys, keys)]
        return found % self._num_triples

    def _keys(self, head: np.ndarray, relation: np.ndarray, tail: np.ndarray) -> np.ndarray:
        size = self.task.graph.num_entities
        keys: np.ndarray = (head * self._kind.num_model_relations + relation) * size + tail
        return keys


def triples_loss(
    task: LinkPrediction,
    triples: Triples,
    weights: np.ndarray,
    device: torch.device,
    *,
    direction: Question,
) -> Objective:
    """Return the weighted sum of the losses of some triples, each a row of its own.

    A triple has the row of the answer that is asked for, the tail or the head, or both, where the
    model has inverse relations.
    """
    kind, count = Directions(task.graph.num_relations, task.inverse_relations), len(triples)
    asked = {"tail": slice(count), "head": slice(count, None), "both": slice(None)}[direction]
    rows = torch.from_numpy(kind.rows(triples).astype(np.int64)[asked]).to(device)
    head, relation, tail = rows[:, HEAD], rows[:, RELATION], rows[:, TAIL]
    index = torch.arange(len(rows), device=device)
    batch = TripleBatch(head, relation, index, tail, index)
    weight = torch.from_numpy(np.tile(weights, kind.num_directions)[asked]).to(device)
    return lambda model: (task.example_losses(model, batch) * weight).sum()
