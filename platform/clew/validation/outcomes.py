"""Results of a trained model for test triples: loss, log-probability and rank of each answer."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.config.data import TripleData
from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import Question
from clew.link_prediction.losses.one_vs_all import (
    LossFunction,
    Targets,
    row_losses,
    smoothed_targets,
)
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, KnowledgeGraph, Triples

QUERIES_AT_ONCE = 256
Answers = Float[np.ndarray, "direction test"]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results for test triples. Direction 0 is the tail; 1 (inverse relations) is the head."""

    loss: Answers
    """Training loss without smoothing, with the triple's answer as the only positive."""
    log_probability: Answers
    """Log-probability of the answer among all entities, by softmax."""
    rank: Answers
    """Filtered rank of the answer; ties count half."""

    def of(self, direction: Question) -> "Outcomes":
        asked = {"tail": slice(0, 1), "head": slice(1, None), "both": slice(None)}[direction]
        return Outcomes(self.loss[asked], self.log_probability[asked], self.rank[asked])

    @property
    def total_loss(self) -> Float[np.ndarray, " test"]:
        total: np.ndarray = self.loss.sum(0)
        return total


class Examiner:
    """Computes the results of models for test triples.

    Args:
        graph: The graph, whose known triples are left out of the ranks.
        config: The training run's configuration.
        tests: Test triples `(test, 3)`.
    """

    def __init__(self, graph: KnowledgeGraph, config: RunConfig, tests: Triples) -> None:
        assert isinstance(config.loss, OneVsAllLoss | KvsAllLoss)
        self._function: LossFunction = config.loss.function
        assert isinstance(config.data, TripleData)
        both = config.data.inverse_relations
        self._directions = 1 + both
        self._rows = graph.with_inverses(tests) if both else tests
        self._known = FilterIndex.from_graph(graph)

    @torch.no_grad()
    def examine(self, model: GraphModel) -> Outcomes:
        """Return the results of a model, which must be in evaluation mode, for the test triples."""
        starts = range(0, len(self._rows), QUERIES_AT_ONCE)
        parts = [self._part(model, self._rows[s : s + QUERIES_AT_ONCE]) for s in starts]
        loss, log_probability, rank = (
            np.concatenate(values).reshape(self._directions, -1)
            for values in zip(*parts, strict=True)
        )
        return Outcomes(loss, log_probability, rank)

    def _part(self, model: GraphModel, rows: Triples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        device = model.entity.weight.device
        head, relation, tail = (
            torch.from_numpy(rows[:, column].astype(np.int64)).to(device)
            for column in (HEAD, RELATION, TAIL)
        )
        scores = model.scores(model.queries(head, relation)).double()
        loss = row_losses(scores, _only_answer(tail, scores), function=self._function)
        own = scores.gather(1, tail[:, None])
        log_probability = own[:, 0] - scores.logsumexp(1)
        known = self._known.lookup(rows[:, HEAD], rows[:, RELATION])
        scores[tuple(torch.from_numpy(place).to(device) for place in known)] = -torch.inf
        scores.scatter_(1, tail[:, None], -torch.inf)
        rank = 1.0 + (scores > own).sum(1) + 0.5 * (scores == own).sum(1)
        return loss.cpu().numpy(), log_probability.cpu().numpy(), rank.double().cpu().numpy()


def _only_answer(tail: Tensor, scores: Tensor) -> Targets:
    return smoothed_targets(
        torch.arange(len(tail), device=tail.device),
        tail,
        batch=len(tail),
        entities=scores.shape[1],
        function="binary_cross_entropy",  # a single positive has the same label in both losses
        label_smoothing=0.0,
        dtype=torch.float64,
    )
