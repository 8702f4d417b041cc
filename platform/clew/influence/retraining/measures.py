"""Measures how well scores predict retraining: rank correlations, ceiling and intervals.

The linear datamodelling score (Park et al., 2023, arXiv 2303.14186, equation 3) uses random subsets
of facts to drop. It is Spearman's correlation over the subsets between the sum of the dropped
facts' scores and the increase of a test triple's loss, averaged over test triples.

Baselines use only the graph and no model; influence scores should be better.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.sparse import csr_matrix
from scipy.stats import rankdata
from scipy.stats import t as students_t

from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples

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
    near = [(ends == test[HEAD]) | (ends == test[TAIL]) for test in tests]
    scores: Scores = np.stack([each.any(1) for each in near]).astype(float)
    return scores


def siblings(graph: KnowledgeGraph, tests: Triples) -> Scores:
    """Return 1 for facts with the test triple's relation and its head or tail, else 0."""
    train = graph.train
    same = train[:, RELATION] == tests[:, RELATION, None]
    near = (train[:, HEAD] == tests[:, HEAD, None]) | (train[:, TAIL] == tests[:, TAIL, None])
    scores: Scores = (same & near).astype(float)
    return scores


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


@dataclass(frozen=True)
class Interval:
    """A mean over test triples with its 95 % interval by Student's t."""

    mean: float
    half_width: float | None
    """None if there is only one test triple."""

    @classmethod
    def of(cls, values: Float[np.ndarray, " test"]) -> "Interval":
        count = len(values)
        if count < 2:
            return cls(float(values.mean()), None)
        quantile = students_t.ppf(0.5 + CONFIDENCE / 2, count - 1)
        return cls(float(values.mean()), float(quantile * values.std(ddof=1) / count**0.5))


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
    pairs = [
        rank_correlations(losses[one].T, losses[other].T).mean()
        for one in range(count)
        for other in range(one)
    ]
    agreement = max(0.0, float(np.mean(pairs)))
    return float(np.sqrt(count * agreement / (1.0 + (count - 1) * agreement)))


def strongest(
    scores: Float[np.ndarray, " fact"], count: int, ties: Float[np.ndarray, " fact"]
) -> np.ndarray:
    """Return the `count` facts with the largest scores; larger `ties` first for equal scores."""
    return np.lexsort((-ties, -scores))[:count]
