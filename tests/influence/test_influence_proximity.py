from itertools import product

import numpy as np
import pytest

from clew.config.services import InfluenceConfig
from clew.influence.link_prediction.paths import Neighbourhood
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary


def random_triples(seed: int, entities: int, count: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, (entities, 3, entities), (count, 3)).astype(np.int32)


def graph_of(triples: np.ndarray, entities: int) -> KnowledgeGraph:
    return KnowledgeGraph(
        "g",
        Vocabulary.from_names("entity", [f"e{i}" for i in range(entities)]),
        Vocabulary.from_names("relation", ["a", "b", "c"]),
        triples,
        no_triples(),
        no_triples(),
    )


def plain_neighbours(triples: np.ndarray, entities: int) -> list[list[tuple[int, int]]]:
    around: list[list[tuple[int, int]]] = [[] for _ in range(entities)]
    for edge, (h, _, t) in enumerate(triples.tolist()):
        around[h].append((t, edge))
        around[t].append((h, edge))
    return around


def plain_candidates(
    triples: np.ndarray, entities: int, head: int, tail: int, filtering: InfluenceConfig
) -> list[int]:
    around = plain_neighbours(triples, entities)
    reached = frontier = {head, tail}
    for _ in range(filtering.n_hops - 1):
        frontier = {o for e in frontier for o, _ in around[e]} - reached
        frontier = {e for e in frontier if len(around[e]) >= filtering.min_degree}
        reached = reached | frontier
    return sorted({edge for e in reached for _, edge in around[e]})


def plain_paths(
    triples: np.ndarray, entities: int, head: int, tail: int, filtering: InfluenceConfig
) -> list[int]:
    """Return the facts of every simple path of bounded length, by exhaustive search."""
    around = plain_neighbours(triples, entities)
    found: set[int] = set()

    def walk(entity: int, visited: list[int], edges: list[int]) -> None:
        if entity == tail:
            found.update(edges)
            return
        if len(edges) == 2 * filtering.n_hops:
            return
        for other, edge in around[entity]:
            wide = len(around[other]) >= filtering.min_degree or other == tail
            if other not in visited and wide:
                walk(other, [*visited, other], [*edges, edge])

    walk(head, [head], [])
    return sorted(found)


@pytest.mark.parametrize(("n_hops", "min_degree"), list(product((1, 2, 3), (1, 4))))
def test_candidates_equal_a_plain_search(n_hops, min_degree):
    filtering = InfluenceConfig(n_hops=n_hops, min_degree=min_degree)
    for seed in range(6):
        triples = random_triples(seed, 30, 40)
        index = Neighbourhood(triples, 30)
        for head, tail in ((0, 1), (5, 5), (7, 29)):
            expected = plain_candidates(triples, 30, head, tail, filtering)
            assert index.candidates(head, tail, filtering).tolist() == expected


@pytest.mark.parametrize(("n_hops", "min_degree"), list(product((1, 2), (1, 3))))
def test_edges_on_paths_equal_exhaustive_search(n_hops, min_degree):
    filtering = InfluenceConfig(n_hops=n_hops, min_degree=min_degree, strict_path_filtering=True)
    found = 0
    for seed, count in product(range(5), (15, 30, 50)):
        triples = random_triples(seed, 16, count)
        index = Neighbourhood(triples, 16)
        for head, tail in ((0, 1), (3, 9), (14, 2)):
            expected = plain_paths(triples, 16, head, tail, filtering)
            assert index.candidates(head, tail, filtering).tolist() == expected
            found += len(expected)
    assert found > 50


def test_longer_paths_contain_every_simple_one():
    filtering = InfluenceConfig(n_hops=3, min_degree=1, strict_path_filtering=True)
    triples = random_triples(1, 20, 26)
    index = Neighbourhood(triples, 20)
    for tail in range(1, 8):
        ours = set(index.candidates(0, tail, filtering).tolist())
        assert ours >= set(plain_paths(triples, 20, 0, tail, filtering))


def test_queries_leave_no_trace():
    triples = random_triples(3, 30, 60)
    index = Neighbourhood(triples, 30)
    filterings = [
        InfluenceConfig(n_hops=2),
        InfluenceConfig(n_hops=2, min_degree=1, strict_path_filtering=True),
        InfluenceConfig(n_hops=3, min_degree=5),
    ]
    fresh = [Neighbourhood(triples, 30).candidates(2, 9, filtering) for filtering in filterings]
    for _ in range(2):
        for filtering, expected in zip(filterings, fresh, strict=True):
            np.testing.assert_array_equal(index.candidates(2, 9, filtering), expected)


def test_parallel_edges_loops_and_lonely_entities():
    triples = np.array([[0, 0, 1], [1, 1, 0], [1, 0, 1], [2, 0, 3]], np.int32)
    index = Neighbourhood(triples, 6)
    assert index.degrees.tolist() == [2, 4, 1, 1, 0, 0]
    assert index.candidates(0, 5, InfluenceConfig(n_hops=1)).tolist() == [0, 1]
    assert index.candidates(0, 5, InfluenceConfig(n_hops=2)).tolist() == [0, 1, 2]
    assert index.candidates(4, 5, InfluenceConfig(n_hops=2)).tolist() == []
    assert (
        index.candidates(4, 5, InfluenceConfig(n_hops=2, strict_path_filtering=True)).tolist() == []
    )
    assert index.candidates(
        0, 1, InfluenceConfig(n_hops=2, strict_path_filtering=True)
    ).tolist() == [0, 1]
    assert (
        index.candidates(1, 1, InfluenceConfig(n_hops=2, strict_path_filtering=True)).tolist() == []
    )


def test_no_training_triples():
    index = Neighbourhood(no_triples(), 3)
    assert index.candidates(0, 1, InfluenceConfig(n_hops=2)).tolist() == []
