"""Every graph model: scores as PyKEEN computes them, and the seam that the rest relies on."""

import pytest
import torch
from pykeen.nn.modules import ComplExInteraction, DistMultInteraction

from clew.config.graph_models import (
    GRAPH_MODELS,
    ComplExModel,
    ConvEModel,
    DistMultModel,
    GraphModelSettings,
)
from clew.link_prediction.models.base import GraphModel, build_graph_model

NUM_ENTITIES, NUM_RELATIONS = 7, 4
SETTINGS = {
    "conve": ConvEModel(embedding_dim=20, output_channels=3),
    "distmult": DistMultModel(embedding_dim=6),
    "complex": ComplExModel(embedding_dim=6, entity_bias=True),
}
HEAD, RELATION = torch.tensor([0, 3, 6, 3]), torch.tensor([1, 0, 3, 2])


def build(config: GraphModelSettings) -> GraphModel:
    torch.manual_seed(0)
    return build_graph_model(config, NUM_ENTITIES, NUM_RELATIONS).double().eval()


def scores(model: GraphModel) -> torch.Tensor:
    found = model.queries(HEAD, RELATION) @ model.entity.weight.T
    return found if model.entity_bias is None else found + model.entity_bias


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

    def numbers(rows: torch.Tensor) -> torch.Tensor:
        return torch.complex(*rows.chunk(2, dim=1))

    expected = ComplExInteraction()(
        numbers(model.entity(HEAD))[:, None],
        numbers(model.relation(RELATION))[:, None],
        numbers(model.entity.weight)[None],
    )
    torch.testing.assert_close(scores(model), expected)


def test_complex_tells_the_two_directions_apart_and_distmult_does_not():
    for kind, same in (("distmult", True), ("complex", False)):
        model = build(SETTINGS[kind])
        model.entity_bias = None
        head, tail, relation = torch.tensor([1]), torch.tensor([2]), torch.tensor([0])
        there = model.queries(head, relation) @ model.entity(tail).T
        back = model.queries(tail, relation) @ model.entity(head).T
        assert torch.allclose(there, back) == same


@pytest.mark.parametrize("kind", GRAPH_MODELS)
def test_the_seam(kind: str):
    model = build(SETTINGS[kind])
    dim = SETTINGS[kind].embedding_dim
    queries = model.queries(HEAD, RELATION)
    assert queries.shape == (len(HEAD), dim)
    assert model.entity.weight.shape == (NUM_ENTITIES, dim)
    torch.testing.assert_close(model(HEAD, RELATION), queries)
    torch.testing.assert_close(model.encode(model.entity(HEAD), model.relation(RELATION)), queries)
    assert (model.entity_bias is None) == (not SETTINGS[kind].entity_bias)
    assert model.floats_per_query > 0


@pytest.mark.parametrize("kind", ["distmult", "complex"])
def test_dropout_is_in_force_in_training_alone(kind: str):
    config = SETTINGS[kind].model_copy(update={"input_dropout": 0.5})
    model = build(config)
    assert torch.equal(model(HEAD, RELATION), model(HEAD, RELATION))
    model.train()
    assert not torch.equal(model(HEAD, RELATION), model(HEAD, RELATION))
