"""The index of known tails against dictionaries of sets."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.link_prediction import triples as triples_module
from clew.link_prediction.triples import FilterIndex, KnowledgeGraph

triples_of = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 9)), max_size=40
)


def tails_by_query(triples: np.ndarray) -> dict[tuple[int, int], set[int]]:
    """Return the known tails of a query, by a slow reference."""
    known = defaultdict(set)
    for head, relation, tail in triples.tolist():
        known[head, relation].add(tail)
    return known


def as_array(rows: list) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 3)


@settings(deadline=None)
@pytest.mark.parametrize("largest_key", [triples_module.LARGEST_KEY, 10])
@given(
    rows=triples_of, queries=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=9)
)
def test_lookup_is_that_of_a_dictionary(largest_key: int, rows: list, queries: list) -> None:
    triples = as_array(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triples_module, "LARGEST_KEY", largest_key)
        index = FilterIndex.from_triples(triples, num_relations=4)
    known = tails_by_query(triples)
    asked = np.array(queries, np.int64).reshape(-1, 2)
    row, entity = index.lookup(asked[:, 0], asked[:, 1])
    expected = [(i, t) for i, query in enumerate(queries) for t in sorted(known[query])]
    assert list(zip(row.tolist(), entity.tolist(), strict=True)) == expected
    assert row.dtype == entity.dtype == np.int64


def test_every_split_and_both_directions_are_known(graph: KnowledgeGraph) -> None:
    index = FilterIndex.from_graph(graph)
    known = tails_by_query(
        graph.with_inverses(np.concatenate([graph.train, graph.valid, graph.test]))
    )
    assert len(index) == len(known)
    heads = index.keys // index.num_relations
    assert list(zip(heads.tolist(), index.relations.tolist(), strict=True)) == sorted(known)
    for number, query in enumerate(sorted(known)):
        _, entities = index.tails_of(np.array([number]))
        assert entities.tolist() == sorted(known[query])


def test_int32_queries_do_not_overflow() -> None:
    large = 2**31 - 2
    index = FilterIndex.from_triples(as_array([[large, 1, 5], [large, 1, large]]), 2000)
    row, entity = index.lookup(np.array([large], np.int32), np.array([1], np.int32))
    assert (row.tolist(), entity.tolist()) == ([0, 0], [5, large])
