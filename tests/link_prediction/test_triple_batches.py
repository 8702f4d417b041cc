"""Training rows of link prediction: their triples, grouping and device."""

import pickle

import numpy as np
import pytest
import torch

from clew.config.training import TrainingConfig
from clew.link_prediction.triple_batches import KvsAllExamples, OneVsAllExamples, TripleBatch
from clew.link_prediction.triples import KnowledgeGraph
from clew.training.loaders import BatchLoader

SOURCES = [OneVsAllExamples, KvsAllExamples]


def triples_of(batch: TripleBatch) -> list[tuple[int, int, int]]:
    rows = zip(batch.row.tolist(), batch.entity.tolist(), strict=True)
    return [(int(batch.head[row]), int(batch.relation[row]), entity) for row, entity in rows]


def whole(source: OneVsAllExamples | KvsAllExamples) -> TripleBatch:
    return source.batch(np.arange(len(source)))


@pytest.mark.parametrize("inverse_relations", [True, False])
def test_one_vs_all_has_each_triple_once(graph: KnowledgeGraph, inverse_relations: bool) -> None:
    source = OneVsAllExamples(graph.train, graph.num_relations, inverse_relations=inverse_relations)
    expected = graph.with_inverses(graph.train) if inverse_relations else graph.train
    assert triples_of(whole(source)) == [tuple(row) for row in expected.tolist()]
    assert whole(source).row.tolist() == list(range(len(source)))


@pytest.mark.parametrize("inverse_relations", [True, False])
def test_kvs_all_has_each_query_once_with_all_its_tails(
    graph: KnowledgeGraph, inverse_relations: bool
) -> None:
    source = KvsAllExamples(graph.train, graph.num_relations, inverse_relations=inverse_relations)
    rows = graph.with_inverses(graph.train) if inverse_relations else graph.train
    batch = whole(source)
    assert triples_of(batch) == sorted({tuple(row) for row in rows.tolist()})
    queries = list(zip(batch.head.tolist(), batch.relation.tolist(), strict=True))
    assert queries == sorted({(h, r) for h, r, _ in rows.tolist()})
    assert len(source) == batch.count == batch.num_examples == len(queries)


@pytest.mark.parametrize("source_class", SOURCES)
def test_a_batch_is_its_rows(graph: KnowledgeGraph, source_class: type) -> None:
    source = source_class(graph.train, graph.num_relations, inverse_relations=True)
    indices = np.random.default_rng(1).permutation(len(source))[:40]
    batch = source.batch(indices)
    assert batch.example.tolist() == indices.tolist()
    singly = [source.batch(indices[i : i + 1]) for i in range(len(indices))]
    assert triples_of(batch) == [triple for one in singly for triple in triples_of(one)]
    assert batch.row.tolist() == [i for i, one in enumerate(singly) for _ in one.row]
    assert {t.dtype for t in vars(batch).values()} == {torch.int64}


@pytest.mark.parametrize("source_class", SOURCES)
def test_no_examples_are_a_batch_too(graph: KnowledgeGraph, source_class: type) -> None:
    source = source_class(graph.train, graph.num_relations, inverse_relations=True)
    batch = source.batch(np.empty(0, np.int64))
    assert (batch.count, len(batch.row), len(batch.entity)) == (0, 0, 0)


@pytest.mark.parametrize("source_class", SOURCES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_and_copies_hand_out_the_same(
    graph: KnowledgeGraph, source_class: type, num_workers: int
) -> None:
    source = source_class(graph.train, graph.num_relations, inverse_relations=True)
    copy = pickle.loads(pickle.dumps(source))
    settings = TrainingConfig(batch_size=64, seed=3)
    helped = TrainingConfig(batch_size=64, seed=3, num_workers=num_workers)
    batches = BatchLoader(copy, helped).epoch(2)
    expected = BatchLoader(source, settings).epoch(2)
    for batch, other in zip(batches, expected, strict=True):
        assert triples_of(batch) == triples_of(other)


def test_batch_moves_and_says_what_it_is(graph: KnowledgeGraph) -> None:
    source = OneVsAllExamples(graph.train, graph.num_relations, inverse_relations=True)
    batch = source.batch(np.arange(10, 20))
    moved = batch.to(torch.device("meta"))
    assert isinstance(moved, TripleBatch)
    assert {t.device.type for t in vars(moved).values()} == {"meta"}
    assert batch.describe() == "10 queries (examples 10, 11, 12, 13, 14, 15, 16, 17, …)"
    assert source.batch(np.array([4])).describe() == "1 query (example 4)"
