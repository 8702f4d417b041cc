"""Triples with the same query in one row: loss and gradients of a row for each, for less work."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.load import from_mapping
from clew.errors import ConfigError
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph


@pytest.fixture
def graph(graph: KnowledgeGraph) -> KnowledgeGraph:
    """A graph without copies of triples, which count once in groups."""
    return replace(graph, train=np.unique(graph.train, axis=0))


GROUPED = {"loss.group_by_query": True}
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
def test_equals_a_row_for_each_triple(
    graph: KnowledgeGraph, implementation: str, smoothing: float, model: dict[str, Any]
) -> None:
    settings = model | {"loss.implementation": implementation, "loss.label_smoothing": smoothing}
    count, expected = of_all_triples(graph, **settings)
    grouped, found = of_all_triples(graph, **settings, **GROUPED)
    assert grouped == count == 2 * len(graph.train)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_samples_of_all_entities_equal_all(graph: KnowledgeGraph) -> None:
    _, expected = of_all_triples(graph, **GROUPED)
    _, found = of_all_triples(graph, **GROUPED, **{"loss.negatives": 1_000_000})
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_each_query_is_scored_once(graph: KnowledgeGraph) -> None:
    config = from_mapping({"data": {"name": "random"}}, {"loss.function": "softmax_cross_entropy"})
    grouped = from_mapping(config.model_dump(), GROUPED)
    rows = graph.with_inverses(graph.train)[:, :2]
    one_each, shared = (len(LinkPrediction(graph, c).train_examples()) for c in (config, grouped))
    assert one_each == len(rows)
    assert shared == len(np.unique(rows, axis=0)) < one_each


def test_binary_cross_entropy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss.group_by_query is true, but loss.function is bin"):
        from_mapping({"data": {"name": "umls"}}, GROUPED)
