"""Training with samples of entities: the whole task, sparse gradients, refused settings."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clew import names
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.memory_plan import live_bytes_of_step
from clew.training.setup import build_trainer
from clew.training.trainer import Trainer
from tests.memory_tracker import MemoryTracker
from tests.training.test_memory_plan import peak

CPU = torch.device("cpu")


def config_of(kind: str = "distmult", **settings: Any) -> RunConfig:
    small = {
        "model.kind": kind,
        "model.embedding_dim": 8,
        "loss.negatives": 6,
        "optimizer.kind": "adagrad",
        "optimizer.row_wise": True,
        "training.batch_size": 32,
        "training.num_epochs": 2,
        "training.device": "cpu",
        "training.log_every_steps": 1,
        "evaluation.enabled": False,
    }
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return from_mapping({"data": {"name": "random"}}, small | named)


def trained(graph: KnowledgeGraph, config: RunConfig, folder: Path) -> Trainer[Any]:
    trainer = build_trainer(
        config,
        LinkPrediction(graph, config),
        MemoryTracker(),
        device=CPU,
        world=World(),
        folder=folder,
        origin=Manifest(0, 0, 0.0, "link_prediction", {}, "", ""),
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", ["distmult", "cp", "transe", "conve"])
@pytest.mark.parametrize("rows", ["one_vs_all", "kvs_all"])
def test_losses_of_examples_add_up_and_gradients_are_of_rows(graph, kind, rows):
    config = config_of(kind, loss__kind=rows, model__entity_bias=True)
    task = LinkPrediction(graph, config)
    torch.manual_seed(0)
    model = task.build_model().eval().double()
    batch = task.train_examples().batch(torch.arange(9).numpy())
    loss = task.loss(model, batch)
    torch.testing.assert_close(task.example_losses(model, batch).sum(), loss.total)
    loss.total.backward()
    for table in (model.entity.weight, model.head_table.weight, model.entity_bias):
        assert table.grad.is_sparse
    assert not model.relation.weight.grad.is_sparse
    assert task.describe() == {names.TAG_LOSS_IMPLEMENTATION: "sampled"}


@pytest.mark.parametrize("settings", [{}, {"training__max_grad_norm": 0.05}])
@pytest.mark.parametrize("function", ["binary_cross_entropy", "softmax_cross_entropy"])
def test_with_all_entities_it_trains_as_the_loss_over_all(graph, tmp_path, function, settings):
    sampled = config_of(loss__function=function, loss__negatives=20, **settings)
    whole = config_of(loss__function=function, loss__negatives=None, **settings)
    ours, theirs = (
        trained(graph, config, tmp_path / name).model.state_dict()
        for name, config in (("sampled", sampled), ("whole", whole))
    )
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_sparse_and_dense_gradients_train_to_the_same(graph, tmp_path, monkeypatch):
    config = config_of("cp", training__gradient_accumulation=2, training__max_grad_norm=0.1)
    ours = trained(graph, config, tmp_path / "sparse")
    monkeypatch.setattr(RunConfig, "updates_rows", False)
    theirs = trained(graph, config, tmp_path / "dense")
    for name, tensor in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_rows_that_no_batch_touches_stay_as_they_are(graph, tmp_path):
    config = config_of(training__max_steps=1, training__batch_size=2, loss__negatives=3)
    trainer = trained(graph, config, tmp_path)
    torch.manual_seed(config.training.seed)
    first = trainer.task.build_model().entity.weight
    changed = (trainer.model.entity.weight != first).any(1)
    assert 0 < int(changed.sum()) <= 2 * 2 + 3


def test_the_memory_of_a_step_does_not_grow_with_the_table(graph):
    """Only the weights and one number of state per row grow with the table."""
    from clew.config.services import DataSizes
    from clew.workflows.plan import task_to_plan

    config = config_of(loss__negatives=100)
    task, _ = task_to_plan(config, DataSizes(num_entities=1_000_000, num_relations=3))
    live = peak(live_bytes_of_step(config, task, CPU))
    assert live["weights"] == pytest.approx(4 * 8 * 1_000_000, rel=1e-3)
    assert live["optimizer"] < 4.1 * 1_000_000
    rest = live.total() - live["weights"] - live["optimizer"]
    assert rest < 1_000_000


def test_rows_of_every_microbatch_are_planned_until_the_step(graph):
    planned = [
        peak(live_bytes_of_step(config, LinkPrediction(graph, config), CPU))["gradients"]
        for config in (config_of(training__gradient_accumulation=count) for count in (1, 2, 5))
    ]
    row_bytes = 8 * 4 + 8  # of float32 numbers, and an index
    own = 2 * 32 + 6
    assert planned[1] - planned[0] == pytest.approx(own * row_bytes, abs=3 * row_bytes)
    assert planned[2] - planned[0] == 4 * (planned[1] - planned[0])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer__weight_decay": 0.1}, "optimizer.weight_decay is 0.1"),
        ({"optimizations__torch_compile": True}, "optimizations.torch_compile is true"),
        ({"loss__negatives": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        config_of(**settings)
