"""Training without some facts, and the results of a trained model for test triples.

A dropped fact is no longer a positive of its query, and a query without positives adds nothing to
the loss. The row of the query still passes through the network, and the loss is divided by the same
number of rows. So, with the same seed, the order, the dropout masks and the batch statistics are
those of the whole graph. Influence scores use the gradient of exactly this change of the loss.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from scipy.sparse import csr_matrix
from scipy.stats import rankdata
from scipy.stats import t as students_t
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.data import TripleData
from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.services import Question
from clew.link_prediction.losses.one_vs_all import LossFunction
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, KnowledgeGraph, Triples
from clew.runs.validation_record import Measured
from clew.training.task import LossSum

Facts = Int[np.ndarray, " dropped"]
"""Indices of facts in the training triples."""
QUERIES_AT_ONCE = 256
Answers = Float[np.ndarray, "direction test"]


class FactKeys:
    """Finds the positives of a batch among the training facts, in every trained direction.

    A positive (head, relation, tail) is one number.
    """

    def __init__(self, graph: KnowledgeGraph, *, inverse_relations: bool) -> None:
        directions = 1 + inverse_relations
        rows = graph.with_inverses(graph.train) if inverse_relations else graph.train
        self._num_relations = directions * graph.num_relations
        self._num_entities = graph.num_entities
        head, relation, tail = rows.astype(np.int64).T
        keys = (head * self._num_relations + relation) * self._num_entities + tail
        self._keys, first, places = np.unique(keys, return_index=True, return_inverse=True)
        self._of_fact = places.reshape(directions, -1)  # copies of a fact have the same place
        self.fact: Int64[np.ndarray, " key"] = first % len(graph.train)
        """First fact of each distinct positive."""

    def kept(self, dropped: Facts) -> Bool[np.ndarray, " key"]:
        kept = np.ones(len(self._keys), bool)
        kept[self._of_fact[:, dropped]] = False
        return kept

    def places(self, batch: TripleBatch) -> Int64[Tensor, " positive"]:
        head, relation = batch.head[batch.row], batch.relation[batch.row]
        key = (head * self._num_relations + relation) * self._num_entities + batch.entity
        return torch.from_numpy(np.searchsorted(self._keys, key.cpu().numpy()))


class WithoutFacts(LinkPrediction):
    """Link prediction on a graph in which some training facts have weight 0."""

    def __init__(self, graph: KnowledgeGraph, config: RunConfig, dropped: Facts) -> None:
        super().__init__(graph, config)
        self._facts = FactKeys(graph, inverse_relations=self.inverse_relations)
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
        return Outcomes(*(values[asked] for values in vars(self).values()))

    def only(self, test: int) -> "Outcomes":
        """Return the results for one test triple."""
        return Outcomes(*(values[:, test : test + 1] for values in vars(self).values()))

    @property
    def total_loss(self) -> Float[np.ndarray, " test"]:
        return np.asarray(self.loss.sum(0))


class Examiner:
    """Computes the results of models for test triples."""

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
        head, relation, tail = torch.from_numpy(rows.astype(np.int64)).to(device).T
        scores = model.scores(model.queries(head, relation)).double()
        own = scores.gather(1, tail[:, None])
        log_probability = own[:, 0] - scores.logsumexp(1)
        loss = -log_probability
        if self._function == "binary_cross_entropy":
            loss = -F.logsigmoid(-scores).sum(1) - own[:, 0]
        known = self._known.lookup(rows[:, HEAD], rows[:, RELATION])
        scores[tuple(torch.from_numpy(place).to(device) for place in known)] = -torch.inf
        scores.scatter_(1, tail[:, None], -torch.inf)
        rank = 1.0 + (scores > own).sum(1) + 0.5 * (scores == own).sum(1)
        return loss.cpu().numpy(), log_probability.cpu().numpy(), rank.double().cpu().numpy()


Scores = Float[np.ndarray, "test fact"]
Losses = Float[np.ndarray, "subset test"]
Correlations = Float[np.ndarray, " test"]
CONFIDENCE = 0.95


def random_scores(graph: KnowledgeGraph, tests: Triples) -> Scores:
    """Return independent normal random numbers, the same in each call."""
    return np.random.default_rng(0).standard_normal((len(tests), len(graph.train)))


def touching(graph: KnowledgeGraph, tests: Triples) -> Scores:
    """Return 1 for facts that share an entity with the test triple, else 0."""
    ends = graph.train[:, [HEAD, TAIL]]
    return np.stack([np.isin(ends, test[[HEAD, TAIL]]).any(1) for test in tests]).astype(float)


def siblings(graph: KnowledgeGraph, tests: Triples) -> Scores:
    """Return 1 for facts with the test triple's relation and its head or tail, else 0."""
    train = graph.train
    same = train[:, RELATION] == tests[:, RELATION, None]
    near = (train[:, HEAD] == tests[:, HEAD, None]) | (train[:, TAIL] == tests[:, TAIL, None])
    return np.asarray(same & near, float)


def adamic_adar(graph: KnowledgeGraph, tests: Triples) -> Scores:
    """Return 1 / log(degree) of the middle entity for facts on two-step paths from head to tail.

    As in Adamic and Adar (2003, equation 2), a common neighbour of head and tail counts more if it
    has fewer neighbours. Edge directions are ignored. Other facts get 0.
    """
    train, count = graph.train, graph.num_entities
    ends = np.concatenate([train[:, HEAD], train[:, TAIL]])
    others = np.concatenate([train[:, TAIL], train[:, HEAD]])
    linked = csr_matrix((np.ones(len(ends)), (ends, others)), shape=(count, count)) > 0
    degree = np.asarray(linked.sum(1)).ravel()
    weight = 1.0 / np.log(np.maximum(degree, 2))
    scores = np.zeros((len(tests), len(train)))
    for row, (head, _, tail) in enumerate(tests.tolist()):
        common = linked[[head]].multiply(linked[[tail]]).toarray().ravel() > 0
        common[[head, tail]] = False
        for near, far in ((HEAD, TAIL), (TAIL, HEAD)):
            on_path = np.isin(train[:, near], [head, tail]) & common[train[:, far]]
            scores[row, on_path] = weight[train[on_path, far]]
    return scores


BASELINES: dict[str, Callable[[KnowledgeGraph, Triples], Scores]] = {
    "random": random_scores,
    "touching": touching,
    "siblings": siblings,
    "adamic_adar": adamic_adar,
}


def half_width(error: float, freedom: int) -> float:
    """Return half the width of a 95 % interval by Student's t, from the standard error."""
    return float(students_t.ppf(0.5 + CONFIDENCE / 2, freedom) * error)


def measured(values: Float[np.ndarray, " test"]) -> Measured:
    """Return the mean over test triples, with its 95 % interval by Student's t."""
    count = len(values)
    width = half_width(values.std(ddof=1) / count**0.5, count - 1) if count > 1 else None
    return Measured(mean=float(values.mean()), half_width=width)


def fall_for_each_unit(
    summed: Float[np.ndarray, " test"], falls: Float[np.ndarray, " test"]
) -> Measured | None:
    """Return the slope of falls by summed scores (least squares through zero); None without one.

    Its interval is that of a mean: each test triple moves the slope by its residual.
    """
    if not summed.any():
        return None
    slope = summed @ falls / (summed @ summed)
    return measured(slope + summed * (falls - slope * summed) / np.mean(summed**2))


def rank_correlations(
    first: Float[np.ndarray, "test subset"], second: Float[np.ndarray, "test subset"]
) -> Correlations:
    """Return Spearman's correlation of each pair of rows; ties get their mean rank.

    The correlation with a row of equal values is not defined and counts as 0.
    """
    ranks = [rankdata(values, axis=1) for values in (first, second)]
    centred = [rank - rank.mean(1, keepdims=True) for rank in ranks]
    norms = np.sqrt((centred[0] ** 2).sum(1) * (centred[1] ** 2).sum(1))
    products = (centred[0] * centred[1]).sum(1)
    correlations = np.zeros(len(norms))
    np.divide(products, norms, out=correlations, where=norms > 0)
    return correlations


NUM_DRAWS = 500


def resampled_scores(
    predicted: Sequence[Float[np.ndarray, "test subset"]],
    losses: Losses,
    num_draws: int = NUM_DRAWS,
) -> Float[np.ndarray, "draw form"]:
    """Return mean rank correlations of resampled test triples and, at the same time, subsets.

    All test triples share the subsets, so an interval over test triples alone is too narrow. Both
    are drawn with replacement (Owen, 2007, "The pigeonhole bootstrap").
    """
    generator = np.random.default_rng(0)
    subsets, tests = losses.shape
    found = []
    for _ in range(num_draws):
        rows = generator.integers(tests, size=(tests, 1))
        columns = generator.integers(subsets, size=subsets)
        actual = losses.T[rows, columns]
        found.append([rank_correlations(each[rows, columns], actual).mean() for each in predicted])
    return np.array(found)


def measured_over_both(
    mean: float, draws: Float[np.ndarray, " draw"], num_tests: int, num_subsets: int
) -> Measured:
    """Return a mean with the 95 % interval of resampled means, by Student's t."""
    fewest = min(num_tests, num_subsets)
    width = half_width(draws.std(ddof=1), fewest - 1) if fewest > 1 else None
    return Measured(mean=mean, half_width=width)


def datamodelling_scores(
    scores: Scores, dropped: Bool[np.ndarray, "subset fact"], losses: Losses
) -> Correlations:
    """Return the linear datamodelling score of each test triple.

    Args:
        scores: Influence of each training fact; positive values lower the test triple's loss.
        dropped: Which facts each subset leaves out.
        losses: Loss of each test triple after training without each subset.
    """
    return rank_correlations(scores @ dropped.T.astype(scores.dtype), losses.T)


def ceiling(losses: Float[np.ndarray, "seed subset test"]) -> float | None:
    """Return the estimated correlation between the true mean effect and the mean of these seeds.

    Let r be the mean correlation over subsets between the losses of two seeds. The reliability of
    the mean of n seeds is n r / (1 + (n - 1) r) (Spearman and Brown, 1910), and its square root is
    the correlation with the truth. None for fewer than two seeds.
    """
    count = len(losses)
    if count < 2:
        return None
    pairs = itertools.combinations(losses, 2)
    agreement = max(0.0, float(np.mean([rank_correlations(a.T, b.T).mean() for a, b in pairs])))
    return float(np.sqrt(count * agreement / (1.0 + (count - 1) * agreement)))


def strongest(
    scores: Float[np.ndarray, " fact"], count: int, ties: Float[np.ndarray, " fact"]
) -> np.ndarray:
    """Return the `count` facts with the largest scores; larger `ties` first for equal scores."""
    return np.lexsort((-ties, -scores))[:count]
