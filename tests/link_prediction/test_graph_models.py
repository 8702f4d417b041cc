"""Every graph model: the same scores as PyKEEN's, and the interface that other code uses."""

import pytest
import torch
from pykeen.nn.modules import (
    ComplExInteraction,
    CPInteraction,
    DistMultInteraction,
    RESCALInteraction,
    RotatEInteraction,
    TransEInteraction,
    TuckERInteraction,
)

from clew.config.graph_models import (
    GRAPH_MODELS,
    ComplExModel,
    ConvEModel,
    CPModel,
    DistMultModel,
    GraphModelSettings,
    RESCALModel,
    RotatEModel,
    RotEModel,
    TransEModel,
    TuckERModel,
)
from clew.link_prediction.models.base import GraphModel, build_graph_model

NUM_ENTITIES, NUM_RELATIONS = 7, 4
SETTINGS = {
    "conve": ConvEModel(embedding_dim=20, output_channels=3),
    "distmult": DistMultModel(embedding_dim=6),
    "complex": ComplExModel(embedding_dim=6, entity_bias=True),
    "cp": CPModel(embedding_dim=6),
    "rescal": RESCALModel(embedding_dim=5),
    "tucker": TuckERModel(embedding_dim=6, relation_dim=3),
    "transe": TransEModel(embedding_dim=6),
    "rotate": RotatEModel(embedding_dim=6),
    "rote": RotEModel(embedding_dim=6),
}
WITH_DROPOUT = [k for k, settings in SETTINGS.items() if hasattr(settings, "input_dropout")]
HEAD, RELATION = torch.tensor([0, 3, 6, 3]), torch.tensor([1, 0, 3, 2])
TAIL = torch.tensor([5, 1, 1, 0, 2])


def numbers(rows: torch.Tensor) -> torch.Tensor:
    """Return complex numbers from a tensor of their real parts followed by the imaginary parts."""
    return torch.complex(*rows.chunk(2, dim=1))


def build(config: GraphModelSettings) -> GraphModel:
    torch.manual_seed(0)
    return build_graph_model(config, NUM_ENTITIES, NUM_RELATIONS).double().eval()


def scores(model: GraphModel) -> torch.Tensor:
    return model.scores(model.queries(HEAD, RELATION))


def test_every_kind_is_built_here():
    assert set(SETTINGS) == set(GRAPH_MODELS)


def test_distmult_scores_as_pykeen_does():
    model = build(SETTINGS["distmult"])
    expected = DistMultInteraction()(
        model.entity(HEAD)[:, None], model.relation(RELATION)[:, None], model.entity.weight[None]
    )
    torch.testing.assert_close(scores(model), expected)


def test_complex_scores_as_pykeen_does():
    model = build(SETTINGS["complex"].model_copy(update={"entity_bias": False}))

    expected = ComplExInteraction()(
        numbers(model.entity(HEAD))[:, None],
        numbers(model.relation(RELATION))[:, None],
        numbers(model.entity.weight)[None],
    )
    torch.testing.assert_close(scores(model), expected)


def test_cp_scores_as_pykeen_does():
    model = build(SETTINGS["cp"])
    head, relation, tail = model.head_entity(HEAD), model.relation(RELATION), model.entity.weight
    expected = CPInteraction()(head[:, None, None], relation[:, None, None], tail[None, :, None])
    torch.testing.assert_close(scores(model), expected)


def test_rescal_scores_as_pykeen_does():
    model = build(SETTINGS["rescal"])
    matrix = model.relation(RELATION).unflatten(1, (5, 5))
    expected = RESCALInteraction()(
        model.entity(HEAD)[:, None], matrix[:, None], model.entity.weight[None]
    )
    torch.testing.assert_close(scores(model), expected)


def test_tucker_scores_as_pykeen_does():
    model = build(SETTINGS["tucker"])
    model.train()
    model.queries(torch.arange(NUM_ENTITIES), torch.zeros(NUM_ENTITIES, dtype=torch.long))
    model.eval()
    theirs = TuckERInteraction(embedding_dim=6, relation_dim=3).double().eval()
    core = model.core.detach().unflatten(1, (3, 6)).permute(2, 1, 0)
    theirs.core_tensor.data.copy_(core)
    theirs.head_batch_norm.load_state_dict(model.head_norm.state_dict())
    theirs.head_relation_batch_norm.load_state_dict(model.projection_norm.state_dict())
    rows = zip(model.entity(HEAD), model.relation(RELATION), strict=True)
    expected = [
        theirs(head.expand(NUM_ENTITIES, -1), relation.expand(NUM_ENTITIES, -1), tails)
        for (head, relation), tails in ((pair, model.entity.weight) for pair in rows)
    ]
    torch.testing.assert_close(scores(model), torch.stack(expected))


def test_transe_scores_as_pykeen_does():
    model = build(SETTINGS["transe"])
    expected = TransEInteraction(p=2, power_norm=True)(
        model.entity(HEAD)[:, None], model.relation(RELATION)[:, None], model.entity.weight[None]
    )
    torch.testing.assert_close(scores(model), expected)


def test_rotate_scores_as_the_square_of_pykeen_s():
    model = build(SETTINGS["rotate"])
    expected = RotatEInteraction()(
        numbers(model.entity(HEAD))[:, None],
        torch.polar(torch.ones(4, 1, 3).double(), model.relation(RELATION)[:, None]),
        numbers(model.entity.weight)[None],
    )
    torch.testing.assert_close(scores(model), -expected.square())


def test_rote_scores_as_a_loop_over_complex_numbers():
    model = build(SETTINGS["rote"])
    torch.nn.init.normal_(model.relation.weight)
    for row, (head, relation) in enumerate(zip(HEAD, RELATION, strict=True)):
        values = model.relation.weight[relation]
        turn = torch.polar(torch.ones(3).double(), values[:3])
        moved = turn * numbers(model.entity.weight[head][None]) + numbers(values[3:][None])
        distances = (moved - numbers(model.entity.weight)).abs().square().sum(1)
        torch.testing.assert_close(scores(model)[row], -distances)


@pytest.mark.parametrize("kind", SETTINGS)
def test_scores_are_products_and_biases(kind: str):
    model = build(SETTINGS[kind])
    if model.entity_bias is not None:
        torch.nn.init.normal_(model.entity_bias)
    queries = model.queries(HEAD, RELATION)
    expected = queries @ model.entity.weight.T
    if kind in {"transe", "rotate", "rote"}:
        expected = -(queries[:, None] / 2 - model.entity.weight).square().sum(2)
    if model.entity_bias is not None:
        expected = expected + model.entity_bias
    torch.testing.assert_close(model.scores(queries), expected)
    torch.testing.assert_close(model.scores(queries, slice(2, 5)), expected[:, 2:5])


def test_complex_tells_the_two_directions_apart_and_distmult_does_not():
    for kind, same in (("distmult", True), ("complex", False)):
        model = build(SETTINGS[kind])
        model.entity_bias = None
        head, tail, relation = torch.tensor([1]), torch.tensor([2]), torch.tensor([0])
        there = model.queries(head, relation) @ model.entity(tail).T
        back = model.queries(tail, relation) @ model.entity(head).T
        assert torch.allclose(there, back) == same


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_seam(kind: str):
    model = build(SETTINGS[kind])
    dim = SETTINGS[kind].embedding_dim
    queries = model.queries(HEAD, RELATION)
    assert queries.shape == (len(HEAD), dim)
    assert model.entity.weight.shape == (NUM_ENTITIES, dim)
    heads, relations = model.head_table(HEAD), model.relation(RELATION)
    torch.testing.assert_close(model(heads, relations), queries)
    looked_up = model.look_up(HEAD, TAIL)
    torch.testing.assert_close(looked_up, (heads, model.entity(TAIL)))
    assert (model.entity_bias is None) == (not SETTINGS[kind].entity_bias)
    assert model.floats_per_query > 0


@pytest.mark.parametrize("kind", WITH_DROPOUT)
def test_dropout_is_in_force_in_training_alone(kind: str):
    config = SETTINGS[kind].model_copy(update={"input_dropout": 0.5})
    model = build(config)
    assert torch.equal(model.queries(HEAD, RELATION), model.queries(HEAD, RELATION))
    model.train()
    assert not torch.equal(model.queries(HEAD, RELATION), model.queries(HEAD, RELATION))


def test_relations_may_have_a_dropout_of_their_own():
    config = DistMultModel(embedding_dim=50, relation_dropout=0.9)
    model = build(config).train()
    torch.nn.init.ones_(model.entity.weight)
    torch.nn.init.ones_(model.relation.weight)
    queries = model.queries(HEAD, RELATION)
    kept = queries != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(queries[kept], torch.full_like(queries[kept], 10.0))
