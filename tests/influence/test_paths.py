"""The cheapest paths between the ends of a test triple, against trying every path."""

import numpy as np
import pytest

from clew.influence.link_prediction.paths import MAX_STEPS, PathFinder
from clew.link_prediction.triples import Triples


def every_path(train: Triples, test: np.ndarray) -> dict[tuple[int, ...], float]:
    """Walk from the head in every direction, and return the cost of each path to the tail."""
    degree = np.bincount(train[:, [0, 2]].ravel())
    found: dict[tuple[int, ...], float] = {}

    def walk(passed: tuple[int, ...]) -> None:
        if passed[-1] == test[2]:
            found[passed] = sum(float(np.log2(1 + degree[e])) for e in passed[1:-1])
            return
        if len(passed) > MAX_STEPS:
            return
        for triple in train:
            if len(passed) == 1 and np.array_equal(triple, test):
                continue
            for here, there in (triple[[0, 2]], triple[[2, 0]]):
                if here == passed[-1] and there not in passed:
                    walk((*passed, int(there)))

    walk((int(test[0]),))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_paths_are_the_cheapest_of_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    ends = draw.zipf(1.6, (36, 2)) % 14
    train = np.stack([ends[:, 0], draw.integers(0, 3, 36), ends[:, 1]], 1).astype(np.int32)
    test = np.array([*draw.choice(14, 2, replace=False), 0], np.int32)[[0, 2, 1]]
    train = np.concatenate([train, test[None]]) if seed % 2 else train
    expected = every_path(train, test)
    finder = PathFinder(train, 14)
    for most in (3, 1000):
        found = finder.find(test, most)
        costs = sorted(expected.values())[:most]
        assert [path.cost for path in found] == pytest.approx(costs)
        assert len({path.entities for path in found}) == len(found)
        for path in found:
            assert expected[path.entities] == pytest.approx(path.cost)
            pairs = zip(path.entities, path.entities[1:], strict=False)
            for pair, facts in zip(pairs, path.steps, strict=True):
                assert facts
                assert all({train[f, 0], train[f, 2]} == set(pair) for f in facts)
                assert not any(np.array_equal(train[f], test) for f in facts)


def test_a_detour_through_rare_entities_comes_before_a_hub() -> None:
    hub = [(3, 0, other) for other in range(4, 40)]
    train = np.array([(0, 0, 3), (3, 0, 1), (0, 0, 2), (2, 1, 1), *hub], np.int32)
    paths = PathFinder(train, 40).find(np.array([0, 5, 1], np.int32))
    assert [path.entities for path in paths] == [(0, 2, 1), (0, 3, 1)]


def test_every_fact_between_two_neighbours_is_found() -> None:
    train = np.array([*((0, relation, 1) for relation in range(10)), (1, 10, 2)], np.int32)
    (path,) = PathFinder(train, 3).find(np.array([0, 10, 2], np.int32))
    assert path.steps == (tuple(range(10)), (10,))
    (path,) = PathFinder(train, 3).find(np.array([0, 3, 1], np.int32))
    assert path.steps == ((0, 1, 2, 4, 5, 6, 7, 8, 9),), "without the test triple itself"


@pytest.mark.parametrize("test", [(0, 0, 1), (0, 0, 0), (7, 0, 8)])
def test_no_path_is_found_where_none_is(test: tuple[int, int, int]) -> None:
    train = np.array([(0, 0, 1), (0, 0, 2), (1, 0, 3), (8, 0, 8)], np.int32)
    assert PathFinder(train, 9).find(np.array(test, np.int32)) == []
