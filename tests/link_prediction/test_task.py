"""Link prediction as a task: losses, metrics, written files and refused settings."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clew import names
from clew.config.load import from_mapping
from clew.errors import ConfigError
from clew.link_prediction.losses.sampled import degree_weights
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.names import direction_of
from clew.training.task import Task

NUM_ENTITIES, NUM_RELATIONS = 30, 4
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graph():
    random = np.random.default_rng(0)
    sizes = (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES)
    triples = np.stack([random.integers(0, size, 160) for size in sizes], axis=1).astype(np.int32)
    return KnowledgeGraph(
        "random",
        Vocabulary.from_names("entity", [f"e{i}" for i in range(NUM_ENTITIES)]),
        Vocabulary.from_names("relation", [f"r{i}" for i in range(NUM_RELATIONS)]),
        triples[:120],
        triples[120:140],
        triples[140:],
    )


def build(graph, **overrides):
    config = from_mapping(
        {"data": {"name": "random"}, "model": {"kind": "conve", "embedding_dim": 20}}, overrides
    )
    torch.manual_seed(0)
    task = LinkPrediction(graph, config)
    return task, task.build_model()


@pytest.mark.parametrize("kind", ["one_vs_all", "kvs_all"])
@pytest.mark.parametrize("function", ["binary_cross_entropy", "softmax_cross_entropy"])
@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("inverse_relations", [True, False])
def test_losses_of_examples_add_up_to_the_loss(
    graph, kind, function, implementation, inverse_relations
):
    task, model = build(
        graph,
        **{
            "loss.kind": kind,
            "loss.function": function,
            "loss.implementation": implementation,
            "data.inverse_relations": inverse_relations,
        },
    )
    assert isinstance(task, Task)
    model.eval().double()
    source = task.train_examples()
    for indices in (np.arange(7), np.arange(len(source))):
        batch = source.batch(indices)
        losses = task.example_losses(model, batch)
        loss = task.loss(model, batch)
        assert loss.count == batch.count == len(losses) == len(indices)
        torch.testing.assert_close(losses.sum(), loss.total, rtol=1e-12, atol=0)
        loss.total.backward()
    assert model.entity.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["distmult", "conve"])
@pytest.mark.parametrize("function", ["binary_cross_entropy", "softmax_cross_entropy"])
def test_a_weight_counts_like_repeated_facts(graph, kind, function):
    """The loss over all entities and its gradient, against the graph with repeated facts."""
    settings = {"model.kind": kind, "loss.function": function, "loss.kind": "one_vs_all"}
    times = np.random.default_rng(1).integers(1, 4, len(graph.train))
    found = []
    for own in (
        replace(graph, weights=times.astype(float)),
        replace(graph, train=np.repeat(graph.train, times, axis=0)),
    ):
        task, model = build(own, **settings)
        model.eval().double()
        source = task.train_examples()
        batch = source.batch(np.arange(len(source)))
        loss = task.loss(model, batch)
        assert loss.count == batch.count == 2 * times.sum()
        torch.testing.assert_close(task.example_losses(model, batch).sum(), loss.total)
        (loss.total / loss.count).backward()
        found.append([loss.total, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampling", ["uniform", "degree"])
def test_weights_multiply_losses_of_drawn_entities(graph, sampling):
    settings = {"model.kind": "distmult", "loss.kind": "one_vs_all", "loss.negatives": 8}
    settings |= {"loss.function": "softmax_cross_entropy", "loss.negative_sampling": sampling}
    weights = np.linspace(0.25, 3, len(graph.train))
    weighted, model = build(replace(graph, weights=weights), **settings)
    if sampling == "degree":  # the draws follow the weights too
        ends = graph.train[:, [0, 2]]
        degree = 1 + np.bincount(ends.ravel(), np.repeat(weights, 2), NUM_ENTITIES)
        expected = degree_weights(graph.train, NUM_ENTITIES, weights)
        np.testing.assert_allclose(expected, degree**0.75)
        return
    plain, _ = build(graph, **settings)
    batch = weighted.train_examples().batch(np.arange(3, 200, 7))
    loss, own = weighted.loss(model, batch), weights[np.arange(3, 200, 7) % len(weights)]
    assert loss.count == pytest.approx(own.sum())
    losses = plain.example_losses(model, plain.train_examples().batch(np.arange(3, 200, 7)))
    torch.testing.assert_close(loss.total, (losses * torch.tensor(own).float()).sum())


@pytest.mark.parametrize("loss", [{"kind": "kvs_all"}, {"triples_per_row": 4}])
def test_weights_need_one_fact_in_each_row(graph, loss):
    function = {"loss.function": "softmax_cross_entropy"}
    with pytest.raises(ConfigError):
        build(
            replace(graph, weights=np.ones(len(graph.train))),
            **function | {f"loss.{key}": value for key, value in loss.items()},
        )


def test_the_automatic_choice_follows_the_sizes_and_is_told(graph):
    task, _ = build(graph)
    assert task.describe() == {names.TAG_LOSS_IMPLEMENTATION: "plain"}
    task, _ = build(graph, **{"training.batch_size": 100_000})
    assert task.describe() == {names.TAG_LOSS_IMPLEMENTATION: "fused"}
    task, _ = build(graph, **{"loss.implementation": "fused"})
    assert task.describe() == {names.TAG_LOSS_IMPLEMENTATION: "fused"}


@pytest.mark.parametrize("inverse_relations", [True, False])
def test_metrics_of_both_sides(graph, inverse_relations):
    task, model = build(graph, **{"data.inverse_relations": inverse_relations})
    assert model.relation.num_embeddings == NUM_RELATIONS * (1 + inverse_relations)
    values = task.metrics(model, "valid", CPU)
    wanted = ["mrr", "mean_rank", "hits_at_1", "hits_at_3", "hits_at_10"]
    assert set(values) == {
        f"valid/{name}{side}" for name in wanted for side in ("", "_head", "_tail")
    }
    better = {key: direction_of(key) for key in values}
    assert better == {key: "smaller" if "mean_rank" in key else "larger" for key in values}
    mean = (values["valid/mrr_head"] + values["valid/mrr_tail"]) / 2
    assert values["valid/mrr"] == pytest.approx(mean)


def test_a_split_without_triples_has_no_metrics(graph):
    empty = KnowledgeGraph(
        "empty", graph.entities, graph.relations, graph.train, no_triples(), no_triples()
    )
    task, model = build(empty)
    assert task.metrics(model, "valid", CPU) == {}


def test_names_and_report_are_written(graph, tmp_path):
    task, model = build(graph)
    task.write_artifacts(tmp_path)
    for kind, vocabulary in (("entities", graph.entities), ("relations", graph.relations)):
        table = pq.read_table(tmp_path / "vocabulary" / f"{kind}.parquet")
        assert table.column("name").to_pylist() == list(vocabulary)
    task.write_report("test", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists(), "nothing was evaluated yet"
    task.metrics(model, "test", CPU)
    task.write_report("test", tmp_path / "evaluation")
    rows = pq.read_table(tmp_path / "evaluation" / "test_by_relation.parquet").to_pylist()
    assert sum(row["num_queries"] for row in rows) == 2 * len(graph.test)
    assert {row["side"] for row in rows} == {"head", "tail"}


def test_another_model_is_refused(graph):
    task, _ = build(graph)
    with pytest.raises(TypeError, match="GraphModel"):
        task.rank(torch.nn.Linear(2, 2), "test")


def test_a_language_loss_is_refused(graph):
    config = from_mapping({"data": {"name": "random"}}, {})
    with pytest.raises(ConfigError):
        LinkPrediction(graph, config.model_copy(update={"loss": _LanguageLoss()}))


class _LanguageLoss:
    kind = "language"


def test_the_loss_of_weighted_facts_goes_through_the_compiled_forward(graph):
    """`torch.compile` compiles `forward`; a loss that bypasses it would not be compiled."""
    weights = 1.0 + np.arange(len(graph.train)) % 3
    task, model = build(replace(graph, weights=weights))
    seen = []
    model.register_forward_hook(lambda *_: seen.append(True))
    batch = task.train_examples().batch(np.arange(16))
    total = task.loss(model.eval(), batch).total
    assert seen == [True]
    torch.testing.assert_close(total, task.example_losses(model, batch).sum())
