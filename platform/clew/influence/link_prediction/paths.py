"""Find the paths of training facts from the head of a test triple to its tail, with their scores.

The graph is treated as undirected, and no path visits an entity twice. A path costs the sum of
log2(1 + degree) over the entities that it passes, so a path through rare entities comes before one
through hubs, and a short path before a long one (Himmelstein and Baranzini, 2015,
doi 10.1371/journal.pcbi.1004259, weigh paths down by degree in the same way).

Paths of four steps are found from their middle: the cheapest way from there to either end is a
lower bound, and the middles are tried in the order of their bounds.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import torch
from jaxtyping import Int

from clew.influence.link_prediction.proximity import Neighbourhood
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.scores import Explanation
from clew.link_prediction.triples import Triples

MAX_STEPS = 4
MAX_PATHS = 20
TESTS_PER_PASS = 16
FACTS_PER_PASS = 2**14


@dataclass(frozen=True)
class EntityPath:
    """A path of training triples that visits no entity twice."""

    entities: tuple[int, ...]
    """From the head to the tail."""
    cost: float
    steps: tuple[tuple[int, ...], ...]
    """Indices of all training triples between each two entities, in ascending order."""


class PathFinder:
    """Searches a training graph."""

    def __init__(self, train: Triples, num_entities: int) -> None:
        self._train = train
        self._graph = Neighbourhood(train, num_entities)
        self._cost = np.log2(1.0 + self._graph.degrees)

    def find(self, test: Int[np.ndarray, "3"], most: int = MAX_PATHS) -> list[EntityPath]:
        """Return the cheapest paths of at most `MAX_STEPS` steps, the cheapest first.

        The test triple itself is no path, even if it is a training fact. Paths are between two
        different entities, so a test triple of an entity with itself has none.
        """
        head, _, tail = map(int, test)
        if head == tail:
            return []
        # One more, because the test triple itself can be the only fact of the shortest path.
        search = _Search(most + 1)
        self._search(head, tail, search)
        paths = (EntityPath(path, cost, self._steps(path, test)) for cost, path in search.result())
        return [path for path in paths if all(path.steps)][:most]

    def _search(self, head: int, tail: int, search: "_Search") -> None:
        """Try the short paths first: the more of them there are, the fewer long ones can matter."""
        ends = np.array([head, tail])
        if tail in self._graph.around(head):
            search.add(0.0, (head, tail))
        near_head, near_tail = (np.setdiff1d(self._graph.around(e), ends) for e in (head, tail))
        middles = np.intersect1d(near_head, near_tail, assume_unique=True)
        for middle in self._cheapest(middles, search.most).tolist():
            search.add(self._cost[middle], (head, middle, tail))
        is_near = np.zeros(len(self._cost), bool)
        is_near[near_tail] = True
        first, second = self._graph.pairs(near_head)
        whole = is_near[second] & (first != second)
        pairs = np.stack([first[whole], second[whole]], 1)
        pairs = pairs[self._cost[pairs].sum(1) < search.limit]
        for one, other in np.unique(pairs, axis=0).tolist():
            search.add(self._cost[[one, other]].sum(), (head, one, other, tail))
        self._search_from_the_middle(head, tail, near_head, near_tail, search)

    def _search_from_the_middle(
        self,
        head: int,
        tail: int,
        near_head: Int[np.ndarray, "near_head"],
        near_tail: Int[np.ndarray, "near_tail"],
        search: "_Search",
    ) -> None:
        sides = (near_head, near_tail)
        # For each entity, the smallest cost of a neighbour in each of `sides`; infinite: none.
        cheapest = [np.full(len(self._cost), np.inf) for _ in sides]
        for found, near in zip(cheapest, sides, strict=True):
            first, second = self._graph.pairs(near[np.argsort(-self._cost[near], kind="stable")])
            found[second] = self._cost[first]  # of several, the last one stays: the cheapest
        bound = self._cost + sum(cheapest)
        bound[[head, tail]] = np.inf
        possible = np.flatnonzero(bound < search.limit)
        for middle in possible[np.argsort(bound[possible], kind="stable")].tolist():
            if bound[middle] >= search.limit:
                return
            around = self._graph.around(middle)
            one, other = (
                self._cheapest(np.intersect1d(around, near, assume_unique=True), search.most + 1)
                for near in sides
            )
            for first, second in product(one.tolist(), other.tolist()):
                if first != second:
                    cost = self._cost[[first, middle, second]].sum()
                    search.add(cost, (head, first, middle, second, tail))

    def _steps(self, entities: tuple[int, ...], test: np.ndarray) -> tuple[tuple[int, ...], ...]:
        every = (self._graph.between(one, other) for one, other in pairwise(entities))
        return tuple(
            tuple(edges[(self._train[edges] != test).any(axis=1)].tolist()) for edges in every
        )

    def _cheapest(
        self, entities: Int[np.ndarray, "entity"], most: int
    ) -> Int[np.ndarray, "cheapest"]:
        return entities[np.argsort(self._cost[entities], kind="stable")[:most]]


class _Search:
    """Keeps the `most` cheapest of the paths that are added; of equal ones, those added first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: list[tuple[float, int, tuple[int, ...]]] = []
        self._added = 0

    @property
    def limit(self) -> float:
        """A path matters only if it costs less."""
        return np.inf if len(self._kept) < self.most else -self._kept[0][0]

    def add(self, cost: float, entities: tuple[int, ...]) -> None:
        if cost < self.limit:
            self._added += 1
            keep = heapq.heappush if len(self._kept) < self.most else heapq.heapreplace
            keep(self._kept, (-float(cost), -self._added, entities))

    def result(self) -> list[tuple[float, tuple[int, ...]]]:
        """Return cost and entities of the paths, the cheapest first."""
        return [(-cost, entities) for cost, _, entities in sorted(self._kept, reverse=True)]


@dataclass(frozen=True, eq=False)
class ScoredPaths:
    """The paths of one test triple, with the influence of their facts by training index."""

    paths: Sequence[EntityPath]
    influence: Mapping[int, float]
    agreeing: Mapping[int, int] = field(default_factory=dict)
    """Number of runs with the sign of the mean; empty without an ensemble."""


def scored_paths(
    tracer: Tracer, finder: PathFinder, tests: Triples, explanations: Sequence[Explanation]
) -> list[ScoredPaths]:
    """Find the paths of each test, and score their facts in groups of a few tests.

    Scores through training steps come from one pass for all facts: only those that the explanations
    list are known.
    """
    found = [finder.find(test) for test in tests]
    if tracer.settings.goes_through_steps:
        listed = [scores for each in explanations for scores in _listed(each)]
        return [ScoredPaths(*both) for both in zip(found, listed, strict=True)]
    scored: list[ScoredPaths] = []
    for start in range(0, len(tests), TESTS_PER_PASS):
        group = found[start : start + TESTS_PER_PASS]
        facts = [{f for path in paths for step in path.steps for f in step} for paths in group]
        every = sorted(set().union(*facts))
        if not every:
            scored += [ScoredPaths(paths, {}) for paths in group]
            continue
        summation = tracer.summation(tests[start : start + TESTS_PER_PASS])
        blocks = np.array_split(np.array(every, np.int64), -(-len(every) // FACTS_PER_PASS))
        tiles = [summation.tile(block) for block in blocks]
        agreeing = [tile.agreeing for tile in tiles if tile.agreeing is not None]
        counts = torch.cat(agreeing, 1).tolist() if agreeing else [()] * len(group)
        influence = torch.cat([tile.influence for tile in tiles], 1).tolist()
        for paths, own, *rows in zip(group, facts, influence, counts, strict=True):
            scores, agree = (
                {fact: value for fact, value in zip(every, row, strict=False) if fact in own}
                for row in rows
            )
            scored.append(ScoredPaths(paths, scores, agree))
    return scored


def _listed(explanation: Explanation) -> Iterator[dict[int, float]]:
    """Yield the listed scores of each test by training index."""
    for row in range(len(explanation.self_influence)):
        yield {
            fact: score
            for side in (explanation.proponents, explanation.opponents)
            for fact, score in zip(
                side.train[row].tolist(), side.influence[row].tolist(), strict=True
            )
            if fact >= 0
        }
