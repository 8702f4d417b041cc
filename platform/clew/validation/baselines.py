"""Baseline scores that use only the graph and no model; influence scores should be better."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.sparse import csr_matrix

from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples

Scores = Float[np.ndarray, "test fact"]


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
