"""Find the training triples near a test triple, and the paths of them from its head to its tail.

The graph is treated as undirected.

A triple is a candidate if one of its ends is within `n_hops - 1` edges of the test's head or tail,
so that the triple itself is at most the `n_hops`-th edge. With strict path filtering, a triple is a
candidate if it is on a path of at most `2 n_hops` edges between head and tail. Such a path does not
pass through head or tail, and does not go directly back to the entity before; with up to four edges
it visits no entity twice. Paths do not pass through entities with fewer than `min_degree` edges.

The paths that a report lists visit no entity twice. A path costs the sum of log2(1 + degree) over
the entities that it passes, so a path through rare entities comes before one through hubs, and a
short path before a long one (Himmelstein and Baranzini, 2015, doi 10.1371/journal.pcbi.1004259,
weigh paths down by degree in the same way). Paths of four steps are found from their middle: the
cheapest way from there to either end is a lower bound, and the middles are tried in the order of
their bounds.

The index is a compressed sparse matrix (entity, edge) that also stores edge numbers.
"""

import bisect
from dataclasses import dataclass, field
from itertools import pairwise, product
from operator import itemgetter

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_matrix

from clew.config.services import InfluenceConfig
from clew.link_prediction.triples import HEAD, TAIL, Triples

Entities = Int[np.ndarray, "_entity"]
Edges = Int[np.ndarray, "_edge"]
MAX_STEPS = 4
MAX_PATHS = 20


class Neighbourhood:
    """The edges of each entity; parallel edges and self-loops keep their own numbers."""

    def __init__(self, triples: Triples, num_entities: int) -> None:
        count = len(triples)
        ends = np.concatenate([triples[:, HEAD], triples[:, TAIL]])
        number = np.tile(np.arange(count, dtype=np.int32), 2)
        places = (ends, np.arange(2 * count, dtype=np.int32))
        incidence = csr_matrix((number, places), shape=(num_entities, max(1, 2 * count)))
        others = np.concatenate([triples[:, TAIL], triples[:, HEAD]])
        self._offsets = incidence.indptr.astype(np.int64)
        self._neighbours, self._edges = others[incidence.indices], incidence.data
        self.degrees = np.diff(self._offsets)

    def around(self, entity: int) -> Entities:
        """Return the entities next to `entity` except itself, each once, in ascending order."""
        others = self._incidences(np.array([entity]))[1]
        return np.unique(others[others != entity])

    def pairs(self, entities: Entities) -> tuple[Entities, Entities]:
        """Return each entity with each of its neighbours, in the order of the entities."""
        start, others, _ = self._incidences(entities)
        return np.repeat(entities, np.diff(start)), others

    def between(self, one: int, other: int) -> Edges:
        """Return the edges between two entities, in either direction, in ascending order."""
        one, other = sorted((one, other), key=self.degrees.__getitem__)
        _, others, edges = self._incidences(np.array([one]))
        return np.unique(edges[others == other])

    def candidates(self, head: int, tail: int, settings: InfluenceConfig) -> Edges:
        """Return the training triples near a test triple, in ascending order of index."""
        if settings.strict_path_filtering:
            return self._on_paths(head, tail, settings)
        reached = self._reach([head, tail], settings.n_hops - 1, settings.min_degree)
        return np.unique(self._incidences(np.concatenate(reached))[2])

    def _on_paths(self, head: int, tail: int, settings: InfluenceConfig) -> Edges:
        """Return the edges on a path between head and tail, in either direction.

        Edge (u, v) is on a path if d(head, u) without v, plus 1, plus d(v, tail) without u is at
        most `2 n_hops`. All entities of such a path are within `n_hops` of one of its ends.
        """
        if head == tail:
            return np.empty(0, np.int32)
        length = 2 * settings.n_hops
        near = [
            self._reach([source], settings.n_hops, settings.min_degree, blocked=other)
            for source, other in ((head, tail), (tail, head))
        ]
        inside = np.unique(np.concatenate([*near[0], *near[1]]))
        start, other, edge = self._incidences(inside)
        u = np.repeat(np.arange(len(inside)), np.diff(start))
        v = np.minimum(np.searchsorted(inside, other), len(inside) - 1)
        whole = np.flatnonzero((inside[v] == other) & (u != v))
        # Both incidences of an edge are present, so sorting by edge puts them next to each other.
        forth, back = np.argsort(edge[whole], kind="stable").reshape(-1, 2).T
        u, v, edge = u[whole], v[whole], edge[whole]
        ends = np.searchsorted(inside, [head, tail]).tolist()
        to_head, to_tail = (
            _without_partner(u, v, len(inside), source, blocked, length)
            for source, blocked in (ends, ends[::-1])
        )
        one_way = to_head[forth] + 1 + to_tail[back]
        other_way = to_head[back] + 1 + to_tail[forth]
        return np.unique(edge[forth[np.minimum(one_way, other_way) <= length]])

    def _reach(
        self, sources: list[int], limit: int, min_degree: int, blocked: int | None = None
    ) -> list[np.ndarray]:
        """Return the entities at distance 0, 1, ... `limit` from the nearest source.

        Paths do not enter `blocked` or entities of small degree.
        """
        levels = [np.unique(np.array(sources, np.int64))]
        passed = levels[0] if blocked is None else np.union1d(levels[0], blocked)
        for _ in range(limit):
            fresh = np.setdiff1d(self._incidences(levels[-1])[1], passed).astype(np.int64)
            fresh = fresh[self.degrees[fresh] >= min_degree]
            if not len(fresh):
                break
            levels.append(fresh)
            passed = np.union1d(passed, fresh)
        return levels

    def _incidences(self, entities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        begin = self._offsets[entities]
        counts = self._offsets[entities + 1] - begin
        start = np.concatenate([[0], np.cumsum(counts)])
        index = np.arange(start[-1]) + np.repeat(begin - start[:-1], counts)
        return start, self._neighbours[index], self._edges[index]


def _without_partner(  # noqa: PLR0917
    u: np.ndarray, v: np.ndarray, count: int, source: int, blocked: int, length: int
) -> np.ndarray:
    """Return the distance from `source` to u without v, for each incidence (u, v), sorted by u.

    The distance is one more than the smallest distance among u's other neighbours. Paths avoid the
    entity `blocked`, and distances of `length` or more do not matter.
    """
    far = length + 1
    distance = np.full(count, far)
    distance[source] = 0
    for hop in range(1, length):
        fresh = v[distance[u] == hop - 1]
        fresh = fresh[(distance[fresh] == far) & (fresh != blocked)]
        distance[fresh] = hop
    near = distance[v]
    best, second = np.full(count, far), np.full(count, far)
    np.minimum.at(best, u, near)
    holder = np.full(count, -1)
    is_best = near == best[u]
    holder[u[is_best]] = v[is_best]
    others = v != holder[u]
    np.minimum.at(second, u[others], near[others])
    found: np.ndarray = np.where(others, best[u], second[u]) + 1
    found[u == blocked] = far
    found[u == source] = 0
    return found


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
        paths = (EntityPath(path, cost, self._steps(path, test)) for cost, path in search.kept)
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
        self, head: int, tail: int, near_head: Entities, near_tail: Entities, search: "_Search"
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

    def _cheapest(self, entities: Entities, most: int) -> Entities:
        return entities[np.argsort(self._cost[entities], kind="stable")[:most]]


@dataclass
class _Search:
    """Keeps the `most` cheapest of the paths that are added; of equal ones, those added first."""

    most: int
    kept: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """Cost and entities of the paths, the cheapest first."""

    @property
    def limit(self) -> float:
        """A path matters only if it costs less."""
        return np.inf if len(self.kept) < self.most else self.kept[-1][0]

    def add(self, cost: float, entities: tuple[int, ...]) -> None:
        if cost < self.limit:
            bisect.insort(self.kept, (float(cost), entities), key=itemgetter(0))
            del self.kept[self.most :]
