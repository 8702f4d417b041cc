"""Triples with the same query share a row: the same loss and gradients, with less work."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.load import from_mapping
from clew.errors import ConfigError
from clew.link_prediction.losses.fused_one_vs_all import gain_of
from clew.link_prediction.losses.score_tiles import Slopes, Workspace
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import GroupedExamples
from clew.link_prediction.triples import KnowledgeGraph, no_triples


@pytest.fixture
def graph(graph: KnowledgeGraph) -> KnowledgeGraph:
    """Return a graph without duplicate triples, because duplicates count once in groups."""
    return replace(graph, train=np.unique(graph.train, axis=0))


GROUPED = {"loss.triples_per_row": 4}
FACTORS = {
    "model.kind": "complex",
    "loss.regularizer": "n3",
    "loss.relation_prediction_weight": 0.5,
}


def of_all_triples(graph: KnowledgeGraph, **settings: Any) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the number of triples, and the loss over all of them with its gradients."""
    usual = {"model.kind": "transe", "model.embedding_dim": 6, "model.entity_bias": True}
    config = from_mapping(
        {"data": {"name": "random"}},
        usual | {"loss.function": "softmax_cross_entropy"} | settings,
    )
    task = LinkPrediction(graph, config)
    torch.manual_seed(0)
    model = task.build_model().double()
    examples = task.train_examples()
    batch = examples.batch(np.arange(len(examples)))
    loss = task.loss(model, batch)
    losses = task.example_losses(model, batch)
    torch.testing.assert_close(losses.sum(), loss.total, rtol=1e-12, atol=0.0)
    loss.total.backward()
    gradients = {name: p.grad.to_dense() for name, p in model.named_parameters()}
    return loss.count, {"loss": loss.total.detach()} | gradients


@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("model", [{}, FACTORS, {"model.kind": "distmult"}])
@pytest.mark.parametrize("size", [2, 1_000])
def test_equals_a_row_for_each_triple(
    graph: KnowledgeGraph, implementation: str, smoothing: float, model: dict[str, Any], size: int
) -> None:
    settings = model | {"loss.implementation": implementation, "loss.label_smoothing": smoothing}
    count, expected = of_all_triples(graph, **settings)
    grouped, found = of_all_triples(graph, **settings, **{"loss.triples_per_row": size})
    assert grouped == count == 2 * len(graph.train)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_samples_of_all_entities_equal_all(graph: KnowledgeGraph) -> None:
    _, expected = of_all_triples(graph, **GROUPED)
    _, found = of_all_triples(graph, **GROUPED, **{"loss.negatives": 1_000_000})
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("inverse_relations", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 1_000])
def test_rows_have_each_triple_once_and_no_more_than_fit(
    graph: KnowledgeGraph, inverse_relations: bool, size: int
) -> None:
    kind = {"inverse_relations": inverse_relations}
    examples = GroupedExamples(graph.train, graph.num_relations, **kind, size=size)
    batch = examples.batch(np.arange(len(examples)))
    rows = graph.with_inverses(graph.train) if inverse_relations else graph.train
    triples = np.stack([batch.head[batch.row], batch.relation[batch.row], batch.entity], axis=1)
    np.testing.assert_array_equal(np.unique(triples, axis=0), np.unique(rows, axis=0))
    assert batch.count == len(triples) == len(rows)
    _, per_query = np.unique(rows[:, :2], axis=0, return_counts=True)
    assert len(examples) == sum(-(-per_query // size))
    assert np.bincount(batch.row).max() == min(size, per_query.max())


def test_a_size_that_needs_more_than_64_bits_is_no_limit(graph: KnowledgeGraph) -> None:
    queries = np.unique(graph.train[:, :2], axis=0)
    examples = GroupedExamples(
        graph.train, graph.num_relations, inverse_relations=False, size=10**30
    )
    assert len(examples) == len(queries)


def test_no_triples_are_no_rows(graph: KnowledgeGraph) -> None:
    empty = replace(graph, train=no_triples())
    assert (
        len(GroupedExamples(empty.train, empty.num_relations, inverse_relations=True, size=4)) == 0
    )


def test_a_batch_is_its_rows(graph: KnowledgeGraph) -> None:
    examples = GroupedExamples(graph.train, graph.num_relations, inverse_relations=True, size=3)
    chosen = np.random.default_rng(1).permutation(len(examples))[:40]
    batch = examples.batch(chosen)
    singly = [examples.batch(chosen[i : i + 1]) for i in range(40)]
    for name in ("head", "relation", "entity", "example"):
        together = torch.cat([getattr(one, name) for one in singly])
        assert getattr(batch, name).tolist() == together.tolist()
    assert batch.row.tolist() == [i for i, one in enumerate(singly) for _ in one.row]
    assert examples.batch(np.empty(0, np.int64)).count == 0


def test_binary_cross_entropy_is_refused() -> None:
    with pytest.raises(ConfigError, match="triples_per_row"):
        from_mapping({"data": {"name": "umls"}}, GROUPED)


@pytest.mark.parametrize("most", [1, 2, 17, 300])
def test_slopes_of_rows_of_many_triples_fit_float16(most: int) -> None:
    """A row's slope grows with its number of triples, times the gain."""
    slopes = Slopes(Workspace(torch.device("cpu")), torch.float16, gain_of(torch.float16, most))
    scores = torch.tensor([[0.99] + [0.0001] * 100]).log()
    mass, log_sum = torch.tensor([float(most)]), torch.zeros(1)
    scaled = slopes.softmax(scores, None, log_sum, mass).scaled.float()
    assert torch.isfinite(scaled).all()
    found = scaled / gain_of(torch.float16, most)
    torch.testing.assert_close(found[0, 0], torch.tensor(0.99 * most), rtol=1e-3, atol=0)
    torch.testing.assert_close(found[0, 1], torch.tensor(0.0001 * most), rtol=1e-3, atol=0)
