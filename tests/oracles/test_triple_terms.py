"""Regularizers and relation prediction: formulas, sums, refused settings, and their influence."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.influence.kernel import FactoredGradients
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.window_tracer import WindowCheckpoint
from clew.layers.products import MatrixProduct
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import Factorization, GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.training.checkpoints import load_model
from clew.training.manifest import list_checkpoints
from tests.oracles.test_influence_sum import (
    CPU,
    RELATIONS,
    DoubleTask,
    matrix,
    own_rows,
    random_graph,
    write_checkpoints,
)

KINDS = ("complex", "cp", "distmult", "rescal")
TERMS: dict[str, dict[str, object]] = {
    "n3": {"regularizer": "n3", "regularizer_weight": 0.3},
    "dura": {"regularizer": "dura", "regularizer_weight": 0.2},
    "relations": {"relation_prediction_weight": 0.7},
    "both": {"regularizer": "n3", "relation_prediction_weight": 0.5},
}
PAIRS = [*product(KINDS[:2], ("dura", "both")), *product(KINDS[2:], ("both", "dura"))]
ROWS = ("one_vs_all", "kvs_all")
DIM = 4
CHECKED = 8
"""Number of training triples whose gradients are computed one by one."""


def config_of(kind: str, loss: dict[str, object], **sections: object) -> RunConfig:
    model = {"kind": kind, "embedding_dim": DIM, "initial_deviation": 0.7}
    content = {"data": {"name": "umls"}, "model": model, "loss": {"kind": "one_vs_all", **loss}}
    return from_mapping(content | sections, source="test")


def task_of(kind: str, loss: dict[str, object]) -> tuple[LinkPrediction, GraphModel]:
    task = DoubleTask(random_graph(), config_of(kind, loss))
    torch.manual_seed(0)
    return task, task.build_model().eval()


def score(model: GraphModel, head: int, relation: int, tail: int) -> Tensor:
    query = model.queries(torch.tensor([head]), torch.tensor([relation]))
    return (query[0] * model.entity.weight[tail]).sum()


def sizes(kind: str, row: Tensor) -> Tensor:
    """Return the absolute values of a row's numbers."""
    return torch.complex(*row.chunk(2)).abs() if kind == "complex" else row.abs()


def by_hand(model: GraphModel, kind: str, loss: dict[str, object], triple: list[int]) -> Tensor:
    """Return the explicit terms of one triple."""
    head, relation, tail = triple
    h, r, t = model.head_table.weight[head], model.relation.weight[relation], None
    t = model.entity.weight[tail]
    weight = float(loss.get("regularizer_weight", 0.01))
    total = h.new_zeros(())
    if loss.get("regularizer") == "n3":
        total = total + weight * sum((sizes(kind, row) ** 3).sum() for row in (h, r, t))
    if loss.get("regularizer") == "dura":
        query = model.queries(torch.tensor([head]), torch.tensor([relation]))
        total = total + weight * ((query**2).sum() + (t**2).sum())
    if "relation_prediction_weight" in loss:
        every = torch.stack([score(model, head, k, tail) for k in range(2 * RELATIONS)])
        missed = every.logsumexp(0) - every[relation]
        total = total + float(loss["relation_prediction_weight"]) * missed
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_relation_queries_give_the_model_s_scores(kind):
    _, model = task_of(kind, {})
    assert isinstance(model, Factorization)
    head, tail = torch.tensor([3, 5]), torch.tensor([1, 3])
    rows = model.head_table(head), model.entity(tail)
    ours = model.relation_queries(*rows) @ model.relation.weight.T
    for i, k in product(range(2), range(2 * RELATIONS)):
        expected = score(model, int(head[i]), k, int(tail[i]))
        torch.testing.assert_close(ours[i, k], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("rows", ["one_vs_all", "kvs_all"])
def test_terms_are_those_of_the_papers_in_value_and_gradient(kind, name, rows):
    task, model = task_of(kind, TERMS[name] | {"kind": rows})
    batch = task.train_examples().batch(np.arange(0, 40, 3))
    ours = task.loss(model, batch).total - task.prediction_losses(model, batch).sum()
    triples = torch.stack([batch.head[batch.row], batch.relation[batch.row], batch.entity], 1)
    expected = torch.stack([by_hand(model, kind, TERMS[name], t) for t in triples.tolist()]).sum()
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    found, right = (
        torch.autograd.grad(x, parameters, materialize_grads=True) for x in (ours, expected)
    )
    torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("rows", ["one_vs_all", "kvs_all"])
def test_losses_of_examples_add_up_to_the_loss(implementation, rows):
    task, model = task_of(
        "complex", TERMS["both"] | {"kind": rows, "implementation": implementation}
    )
    batch = task.train_examples().batch(np.arange(25))
    total = task.loss(model, batch).total
    torch.testing.assert_close(task.example_losses(model, batch).sum(), total)
    assert float(total.detach()) > float(task.prediction_losses(model, batch).sum().detach())


def test_terms_are_float32_under_autocast_and_without_a_gradient_at_zero_that_is_not_a_number():
    _, model = task_of("complex", TERMS["n3"])
    terms = TripleTerms("n3", 1.0, 0.0)
    zeros = torch.zeros(2, DIM, dtype=torch.float64, requires_grad=True)
    total = terms.losses(model, zeros, zeros, zeros, torch.tensor([0, 1])).sum()
    assert torch.autograd.grad(total, zeros)[0].abs().max() == 0


@pytest.mark.parametrize("kind", ["conve", "tucker", "transe", "rotate", "rote"])
@pytest.mark.parametrize("loss", [TERMS["n3"], TERMS["relations"]], ids=["n3", "relations"])
def test_models_without_factors_are_refused(kind, loss):
    with pytest.raises(ConfigError, match="complex, cp, distmult and rescal"):
        from_mapping({"data": {"name": "umls"}, "model": {"kind": kind}, "loss": loss}, source="x")


def gradient(model: GraphModel, loss: Tensor) -> Tensor:
    """Return all parameters' gradients in one vector."""
    found = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, materialize_grads=True
    )
    return torch.cat([values.flatten() for values in found])


def triple_gradients(
    task: LinkPrediction, model: GraphModel, triples: np.ndarray, *, terms: bool
) -> list[Tensor]:
    """Return the gradient of each triple in both directions: all parameters in one vector.

    Under kvs_all this is the gradient of its queries' loss minus that of their loss without it.
    """
    forms = []
    for triple in task.graph.with_inverses(triples).reshape(2, -1, 3).swapaxes(0, 1):
        total = torch.zeros((), dtype=torch.float64)
        for head, relation, tail in triple.tolist():
            known = [tail]
            if terms and task.train_examples().__class__.__name__ == "KvsAllExamples":
                every = task.graph.with_inverses(task.graph.train)
                same = (every[:, 0] == head) & (every[:, 1] == relation)
                known = sorted(set(every[same, 2].tolist()))
            losses = task.example_losses if terms else task.prediction_losses
            for sign, tails in ((1, known), (-1, [t for t in known if t != tail])):
                if tails:
                    row = torch.zeros(len(tails), dtype=torch.long)
                    ends = torch.tensor([head]), torch.tensor([relation])
                    batch = TripleBatch(*ends, row, torch.tensor(tails), row[:1])
                    total = total + sign * losses(model, batch).sum()
        forms.append(gradient(model, total))
    return forms


@pytest.mark.parametrize(
    ("kind", "name", "rows"),
    [
        *((kind, name, ROWS[n % 2]) for n, (kind, name) in enumerate(PAIRS)),
        *(("complex", name, rows) for name, rows in zip(("relations", "n3"), ROWS, strict=True)),
    ],
)
def test_influence_has_the_terms_of_training_triples(tmp_path, kind, name, rows):
    """The cases cover each pair of model and terms, terms and rows, and model and rows."""
    config = config_of(
        kind,
        TERMS[name] | {"kind": rows},
        influence={"top_k": 0, "direction": "both", "score": "raw"},
    )
    task = DoubleTask(random_graph(), config)
    write_checkpoints(task, config, tmp_path)
    records = list_checkpoints(tmp_path)
    tracer = Tracer(task, config, settings=config.influence, checkpoints=records, device=CPU)
    expected, own = 0.0, 0.0
    for record in records:
        model = task.build_model()
        load_model(record.path, model)
        checked = task.graph.train[:CHECKED]
        train = torch.stack(triple_gradients(task, model.eval(), checked, terms=True))
        test = torch.stack(triple_gradients(task, model, task.graph.test, terms=False))
        expected = expected + record.learning_rate_weight * (test @ train.T).numpy()
        own = own + record.learning_rate_weight * (train * train).sum(1).numpy()
    ours = matrix(tracer.explain(task.graph.test))[:, :CHECKED]
    assert np.abs(ours - expected).max() <= 1e-9 * np.abs(expected).max()
    np.testing.assert_allclose(tracer.self_influence()[:CHECKED], own, rtol=1e-9)


def test_preconditioned_influence_refuses_what_it_cannot_factor(tmp_path):
    influence = {"score": "preconditioned"}
    config = config_of("complex", TERMS["relations"], influence=influence)
    task = DoubleTask(random_graph(), config)
    write_checkpoints(task, config, tmp_path)
    with pytest.raises(ConfigError, match=r"preconditioned.*relation_prediction_weight=0\.7"):
        Tracer(
            task,
            config,
            settings=config.influence,
            checkpoints=list_checkpoints(tmp_path),
            device=CPU,
        )


def test_the_generic_engine_takes_the_whole_loss():
    task, model = task_of("complex", TERMS["both"])
    train, tests = task.train_examples(), own_rows(task, task.graph.test)
    gradients = FactoredGradients(task, model, train)
    generic = WindowCheckpoint(gradients, train, [tests], MatrixProduct())
    ours = generic.products(np.arange(10), norms=False).by_part.sum(0)
    left, right = (
        torch.stack([gradient(model, loss) for loss in task.example_losses(model, rows)])
        for rows in (tests, train.batch(np.arange(10)))
    )
    torch.testing.assert_close(ours, left @ right.T, rtol=1e-9, atol=1e-9)
