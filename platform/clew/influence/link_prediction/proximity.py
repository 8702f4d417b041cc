"""Find the training triples near a test triple, with an index of neighbourhoods.

The graph is treated as undirected. A triple is a candidate if one of its ends is within
`n_hops - 1` edges of the test's head or tail, so that the triple itself is at most the `n_hops`-th
edge. With strict path filtering, a triple is a candidate if it is on a path of at most `2 n_hops`
edges between head and tail. Such a path does not pass through head or tail, and does not go
directly back to the entity before; with up to four edges it visits no entity twice. Paths do not
pass through entities with fewer than `min_degree` edges.

The index is a compressed sparse matrix (entity, edge) that also stores edge numbers.
"""

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_matrix

from clew.config.services import InfluenceConfig
from clew.link_prediction.triples import HEAD, TAIL, Triples


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

    def around(self, entity: int) -> Int[np.ndarray, "neighbour"]:
        """Return the entities next to `entity` except itself, each once, in ascending order."""
        others = self._incidences(np.array([entity]))[1]
        return np.unique(others[others != entity])

    def pairs(
        self, entities: Int[np.ndarray, "entity"]
    ) -> tuple[Int[np.ndarray, "incidence"], Int[np.ndarray, "incidence"]]:
        """Return each entity with each of its neighbours, in the order of the entities."""
        start, others, _ = self._incidences(entities)
        return np.repeat(entities, np.diff(start)), others

    def between(self, one: int, other: int) -> Int[np.ndarray, "edge"]:
        """Return the edges between two entities, in either direction, in ascending order."""
        one, other = sorted((one, other), key=self.degrees.__getitem__)
        _, others, edges = self._incidences(np.array([one]))
        return np.unique(edges[others == other])

    def candidates(
        self, head: int, tail: int, settings: InfluenceConfig
    ) -> Int[np.ndarray, "candidate"]:
        """Return the training triples near a test triple, in ascending order of index."""
        if settings.strict_path_filtering:
            return self._on_paths(head, tail, settings)
        reached = self._reach([head, tail], settings.n_hops - 1, settings.min_degree)
        return np.unique(self._incidences(np.concatenate(reached))[2])

    def _on_paths(self, head: int, tail: int, settings: InfluenceConfig) -> np.ndarray:
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

    The distance is one more than the smallest distance among u's other neighbours.

    Args:
        u: Entity of each incidence, `(incidence,)`.
        v: Other end of each incidence.
        count: Number of entities.
        source: Entity that distances are measured from.
        blocked: Entity that paths must avoid.
        length: Distances of this size or more do not matter.
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
