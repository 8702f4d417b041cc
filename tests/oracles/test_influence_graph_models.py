"""The kernel of graph models against whole gradients from autograd, in float64, part by part.

With six entities and three relations every collision happens: same head, same relation, test head
= training tail, test tail = training head, repeated queries, both directions.
"""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from clew.config.graph_models import (
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
from clew.influence.link_prediction.conve_trunk import ConvETrunk
from clew.influence.link_prediction.geometry import Preconditioner
from clew.influence.link_prediction.inner_products import Aligned, Grid, Kernel
from clew.influence.link_prediction.rows import (
    Directions,
    FactoredRows,
    LossForm,
    RowBuilder,
    known_tails,
    own_rows,
    training_rows,
)
from clew.influence.link_prediction.traced_run import build_trunk
from clew.influence.link_prediction.trunk import (
    NETWORK_PART,
    SCORER_PARTS,
    Scorer,
    Trunk,
)
from clew.layers.products import MatrixProduct
from clew.link_prediction.losses.one_vs_all import OneVsAll, one_vs_all_row_losses
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.models.conve import ConvE
from clew.runs.influence_report import CONVE_PARTS

ENTITIES, RELATIONS = 6, 3
PART_OF = {
    "relation.weight": "relation",
    "head_entity.weight": "entity_input",
    "projection.weight": "dense",
    "core": "dense",
    "projection.bias": "dense",
    "entity_bias": "entity_output",
}
"""Part of each parameter; the entity table has three, all others are `convolution`."""


def network(**overrides: object) -> ConvE:
    torch.manual_seed(3)
    sizes = {"embedding_dim": 12, "embedding_height": 3, "output_channels": 4}
    model = ConvE(ENTITIES, 2 * RELATIONS, ConvEModel(**(sizes | overrides))).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.train()
    for _ in range(3):
        model.queries(torch.randint(0, ENTITIES, (32,)), torch.randint(0, 2 * RELATIONS, (32,)))
    return model.eval()


SIMPLE: dict[str, GraphModelSettings] = {
    "distmult": DistMultModel(embedding_dim=8),
    "complex": ComplExModel(embedding_dim=8, entity_bias=True),
    "cp": CPModel(embedding_dim=8),
    "rescal": RESCALModel(embedding_dim=5),
    "tucker": TuckERModel(embedding_dim=6, relation_dim=4, entity_bias=True),
    "transe": TransEModel(embedding_dim=8),
    "rotate": RotatEModel(embedding_dim=8, entity_bias=False),
    "rote": RotEModel(embedding_dim=8),
}


def simple(kind: str) -> GraphModel:
    torch.manual_seed(4)
    model = build_graph_model(SIMPLE[kind], ENTITIES, 2 * RELATIONS).double()
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    for _ in range(3):  # running statistics of TuckER
        model.queries(torch.randint(0, ENTITIES, (32,)), torch.randint(0, 2 * RELATIONS, (32,)))
    return model.eval()


def parts_of(kind: str) -> tuple[str, ...]:
    """Return the parts of a model, with the names of `brute_force`."""
    return CONVE_PARTS if kind == "tucker" else SCORER_PARTS


def graph(count: int, seed: int) -> np.ndarray:
    every = np.array(list(product(range(ENTITIES), range(RELATIONS), range(ENTITIES))), np.int32)
    return every[np.random.default_rng(seed).permutation(len(every))[:count]]


TRAIN, TEST = graph(18, 0), graph(6, 1)
FORMS = [
    LossForm(function, smoothing, kvs)
    for function, smoothing, kvs in product(
        ("binary_cross_entropy", "softmax_cross_entropy"), (0.0, 0.2), (False, True)
    )
]


def query_loss(
    model: GraphModel, form: LossForm, query: tuple[int, int], tails: list[int], scorer: Tensor
) -> Tensor:
    """Return the loss of a training row with `scorer` as the table of tails; 0 without tails."""
    if not tails:
        return scorer.sum() * 0.0
    hidden = model.queries(*(torch.tensor([number]) for number in query))
    bias, query_bias = model.entity_bias, None
    if model.squared_distance:  # -|h / 2 - W_e|^2 written out
        lengths = -(scorer * scorer).sum(1)
        bias = lengths if bias is None else lengths + bias
        query_bias = -((hidden / 2) * (hidden / 2)).sum(1)
    return one_vs_all_row_losses(
        hidden,
        scorer,
        bias,
        torch.zeros(len(tails), dtype=torch.long),
        torch.tensor(tails),
        settings=OneVsAll(form.function, form.label_smoothing, "plain"),
        query_bias=query_bias,
    ).sum()


def split_table(
    model: GraphModel, form: LossForm, query: tuple[int, int], tails: list[int]
) -> dict[str, Tensor]:
    """Return gradients by parameter, with the entity table's two uses (lookup, scorer) apart."""
    scorer = model.entity.weight.detach().clone().requires_grad_()
    loss = query_loss(model, form, query, tails, scorer)
    named = dict(model.named_parameters()) | {"scorer": scorer}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(named.items(), grads, strict=True)
    }


def triple_gradient(
    model: GraphModel, form: LossForm, triple: np.ndarray, train: np.ndarray | None, directions: int
) -> dict[str, Tensor]:
    """Return a triple's gradient: of its row, or of its query's row with minus without it."""
    h, r, t = map(int, triple)
    total: dict[str, Tensor] = {}
    for head, relation, tail in [(h, r, t), (t, r + RELATIONS, h)][:directions]:
        tails = [tail]
        if train is not None and form.one_query_a_row:
            side = (0, 2) if relation < RELATIONS else (2, 0)
            same = (train[:, side[0]] == head) & (train[:, 1] == r)
            tails = sorted(set(train[same, side[1]].tolist()))
        without = [e for e in tails if e != tail]
        for sign, positives in ((1.0, tails), (-1.0, without)):
            grads = split_table(model, form, (head, relation), positives)
            for name, grad in grads.items():
                total[name] = total.get(name, 0.0) + sign * grad
    return total


def brute_force(
    train: list[dict[str, Tensor]], test: list[dict[str, Tensor]], scale: dict[str, Tensor] | None
) -> dict[str, Tensor]:
    """Return the inner products of whole gradients by part, `(part: train, test)`."""
    result = {part: torch.zeros(len(train), len(test), dtype=torch.float64) for part in CONVE_PARTS}
    scale = scale or {}
    for (i, a), (j, b) in product(enumerate(train), enumerate(test)):
        scaled = {name: g * scale.get(name, 1.0) for name, g in b.items()}
        for name in a:
            if name in {"entity.weight", "scorer"}:
                continue
            result[PART_OF.get(name, "convolution")][i, j] += (a[name] * scaled[name]).sum()
        result["entity_output"][i, j] += (a["scorer"] * scaled["scorer"]).sum()
        result["entity_input"][i, j] += (a["entity.weight"] * scaled["entity.weight"]).sum()
        result["entity_cross"][i, j] += (a["scorer"] * scaled["entity.weight"]).sum()
        result["entity_cross"][i, j] += (a["entity.weight"] * scaled["scorer"]).sum()
    return result


def build(
    model: GraphModel,
    form: LossForm,
    directions: int,
    *,
    depth: int = 3,
    keep: bool = True,
    trunk: Trunk | None = None,
) -> tuple[Trunk, FactoredRows, FactoredRows]:
    kind = Directions(RELATIONS, directions == 2)
    scorer = Scorer(model, MatrixProduct())
    test_trunk = trunk or build_trunk(model)
    trunk = trunk or build_trunk(model, keep_features=keep)
    several = form.one_query_a_row and form.function == "softmax_cross_entropy"
    known = known_tails(TRAIN, kind) if several else None
    to = (torch.device("cpu"), torch.float64)
    train = RowBuilder(trunk, scorer, form, depth, known).build(
        training_rows(TRAIN, form, kind).to(*to)
    )
    test = RowBuilder(test_trunk, scorer, form, depth).build(own_rows(TEST, form, kind).to(*to))
    return trunk, train, test


def by_triple(rows: Tensor, directions: int) -> Tensor:
    """Sum rows into triples, `(part, train, test)`."""
    part, a, b = rows.shape
    return rows.view(part, directions, a // directions, directions, b // directions).sum((1, 3))


def assert_parts_agree(
    ours: Tensor, expected: dict[str, Tensor], parts: tuple[str, ...] = CONVE_PARTS
) -> None:
    scale = torch.stack(list(expected.values())).abs().max()
    for part, values in zip(parts, ours, strict=True):
        error = (values - expected[part]).abs().max()
        assert error <= 1e-10 * max(expected[part].abs().max(), 1e-3 * scale), part


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_part_agrees_with_whole_gradients(form, directions):
    model = network()
    trunk, train, test = build(model, form, directions)
    ours = Kernel(trunk, trunk.parts(3))(Grid, train, test)
    a = [triple_gradient(model, form, t, TRAIN, directions) for t in TRAIN]
    b = [triple_gradient(model, form, t, None, directions) for t in TEST]
    assert_parts_agree(by_triple(ours, directions), brute_force(a, b, None))


@pytest.mark.parametrize("keep", [True, False])
def test_every_part_agrees_with_whole_gradients_of_smooth_activations(keep):
    model, form = network(activation="silu"), FORMS[2]
    trunk, train, test = build(model, form, 2, keep=keep)
    ours = Kernel(trunk, trunk.parts(3))(Grid, train, test)
    assert_parts_agree(by_triple(ours, 2), brute_force(*both_gradients(model, form, 2), None))


def both_gradients(
    model: GraphModel, form: LossForm, directions: int
) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    train = [triple_gradient(model, form, t, TRAIN, directions) for t in TRAIN]
    return train, [triple_gradient(model, form, t, None, directions) for t in TEST]


def alternating(kinds: Iterable[str]) -> list[tuple[str, LossForm, int]]:
    """Return every kind with half of the forms, and with one of them in one direction.

    Each kind is tested with each pair of values of a form's three settings, and each combination of
    all three with every second kind.
    """
    return [
        *((k, form, 2) for n, k in enumerate(kinds) for m, form in enumerate(FORMS) if even(n, m)),
        *((k, FORMS[-(n % 2)], 1) for n, k in enumerate(kinds)),
    ]


def even(kind: int, form: int) -> bool:
    """Return whether the bits of a form's number and a kind's number have an even sum."""
    return (kind + form.bit_count()) % 2 == 0


@pytest.mark.parametrize(("kind", "form", "directions"), alternating(SIMPLE), ids=str)
def test_every_graph_model_has_exact_parts(kind, form, directions):
    model = simple(kind)
    trunk, train, test = build(model, form, directions)
    ours = Kernel(trunk, trunk.parts(3))(Grid, train, test)
    expected = brute_force(*both_gradients(model, form, directions), None)
    assert len(trunk.parts(3)) == len(parts_of(kind))
    assert_parts_agree(by_triple(ours, directions), expected, parts_of(kind))
    used = [part for part in trunk.parts(3) if (kind, part) != ("cp", "entity_cross")]
    assert [p for p, v in zip(trunk.parts(3), ours, strict=True) if v.abs().max() > 0] == used


@pytest.mark.parametrize("form", FORMS[2:6], ids=str)
@pytest.mark.parametrize("kind", ["cp", "tucker", "transe", "rotate", "rote"])
def test_aligned_and_preconditioned_pairs_of_every_kind(kind, form):
    model, epsilon = simple(kind), 1e-3
    moments = {n: torch.rand_like(p) * 1e-4 for n, p in model.named_parameters()}
    scale = {n: 1 / (v.sqrt() + epsilon) for n, v in moments.items()}
    for name in {"entity.weight", "head_entity.weight", "core"} & moments.keys():
        scale[name] = rank_one(moments[name], epsilon)
    scale["scorer"] = scale["entity.weight"]
    trunk, train, test = build(model, form, 2)
    preconditioner = Preconditioner.from_moments(moments, trunk.layout, epsilon=epsilon)
    kernel = Kernel(trunk, trunk.parts(3), preconditioner)
    grid = kernel(Grid, train, test)
    expected = brute_force(*both_gradients(model, form, 2), scale)
    assert_parts_agree(by_triple(grid, 2), expected, parts_of(kind))
    same, own = (kernel(meet, train, train) for meet in (Grid, Aligned))
    torch.testing.assert_close(own, same.diagonal(dim1=1, dim2=2), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("form", FORMS[1:6:2], ids=str)
def test_the_trunk_of_tucker_agrees_with_the_one_for_every_model(form):
    model = simple("tucker")
    generic, train, test = build(model, form, 2, trunk=Trunk(model))
    ours = Kernel(generic, generic.parts(3))(Grid, train, test)
    for keep in (True, False):
        trunk, train, test = build(model, form, 2, keep=keep)
        expected = Kernel(trunk, trunk.parts(3))(Grid, train, test)
        joined = torch.cat([expected[:4], expected[4:].sum(0, keepdim=True)])
        torch.testing.assert_close(ours, joined, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS[1:6:2], ids=str)
def test_the_trunk_for_every_model_agrees_with_the_fast_one_of_conve(form):
    model = network()
    trunk = Trunk(model)
    generic, train, test = build(model, form, 2, trunk=trunk)
    ours = Kernel(generic, generic.parts(3))(Grid, train, test)
    aligned = Kernel(generic, generic.parts(3))(Aligned, train, train)
    fast, train, test = build(model, form, 2)
    kernel = Kernel(fast, CONVE_PARTS)
    expected = kernel(Grid, train, test)
    own = kernel(Aligned, train, train)
    assert generic.parts(3) == (*SCORER_PARTS, NETWORK_PART)
    for few, whole in ((ours, expected), (aligned, own)):
        joined = torch.cat([whole[:4], whole[4:].sum(0, keepdim=True)])
        torch.testing.assert_close(few, joined, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "overrides",
    [
        {"convolution_bias": False, "projection_bias": False, "entity_bias": False},
        {"kernel_height": 2, "kernel_width": 1},
        {"embedding_dim": 10, "embedding_height": 2},
    ],
    ids=str,
)
def test_other_shapes(overrides):
    model, form = network(**overrides), FORMS[2]
    for keep in (True, False):
        trunk, train, test = build(model, form, 2, keep=keep)
        ours = Kernel(trunk, trunk.parts(3))(Grid, train, test)
        a = [triple_gradient(model, form, t, TRAIN, 2) for t in TRAIN[:5]]
        b = [triple_gradient(model, form, t, None, 2) for t in TEST]
        assert_parts_agree(by_triple(ours, 2)[:, :5], brute_force(a, b, None))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_aligned_pairs_are_the_grid_s_diagonal(form, keep):
    model = network()
    trunk, train, _ = build(model, form, 2, keep=keep)
    test = build(model, form, 2)[1]
    kernel = Kernel(trunk, trunk.parts(3))
    grid = kernel(Grid, train, test)
    aligned = kernel(Aligned, train, test)
    torch.testing.assert_close(aligned, grid.diagonal(dim1=1, dim2=2), rtol=1e-11, atol=1e-12)


def rank_one(v: Tensor, epsilon: float) -> Tensor:
    mean = v.mean()
    rows = 1 / ((v.mean(1) / mean.sqrt()).sqrt() + epsilon)
    columns = 1 / ((v.mean(0) / mean.sqrt()).sqrt() + epsilon)
    return torch.outer(rows, columns)


@pytest.mark.parametrize("form", FORMS[2:6], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_preconditioned_second_side(form, biased):
    model = network(convolution_bias=biased, projection_bias=biased, entity_bias=biased)
    moments = {n: torch.rand_like(p) * 1e-4 for n, p in model.named_parameters()}
    epsilon = 1e-3
    scale = {n: 1 / (v.sqrt() + epsilon) for n, v in moments.items()}
    scale["projection.weight"] = rank_one(moments["projection.weight"], epsilon)
    scale["entity.weight"] = scale["scorer"] = rank_one(moments["entity.weight"], epsilon)
    scale |= {n: torch.zeros_like(scale[n]) for n in ConvETrunk.layout.without_effect if n in scale}
    trunk, train, test = build(model, form, 2)
    preconditioner = Preconditioner.from_moments(moments, ConvETrunk.layout, epsilon=epsilon)
    ours = Kernel(trunk, CONVE_PARTS, preconditioner)(Grid, train, test)
    a = [triple_gradient(model, form, t, TRAIN, 2) for t in TRAIN[:6]]
    b = [triple_gradient(model, form, t, None, 2) for t in TEST]
    assert_parts_agree(by_triple(ours, 2)[:, :6], brute_force(a, b, scale))


@pytest.mark.parametrize(
    ("depth", "parts"), [(1, CONVE_PARTS[:1]), (2, ("entity_output", "dense"))]
)
def test_last_layers_alone_are_the_same_numbers(depth, parts):
    model, form = network(), FORMS[2]
    trunk, train, test = build(model, form, 2)
    whole = Kernel(trunk, trunk.parts(3))(Grid, train, test)
    trunk, train, test = build(model, form, 2, depth=depth)
    few = Kernel(trunk, parts)(Grid, train, test)
    torch.testing.assert_close(few, whole[[CONVE_PARTS.index(part) for part in parts]])


def test_subset_of_rows_gives_a_subset_of_the_grid():
    model, form = network(), FORMS[3]
    trunk, train, test = build(model, form, 2)
    whole = Kernel(trunk, trunk.parts(3))(Grid, train, test)
    picked = torch.tensor([3, 17, 4])
    rows = RowBuilder(trunk, Scorer(model, MatrixProduct()), form).build(train.rows.of(picked))
    few = Kernel(trunk, trunk.parts(3))(Grid, rows, test)
    expected = whole[:, torch.cat([picked, picked + len(TRAIN)])]
    torch.testing.assert_close(few, expected, rtol=1e-11, atol=1e-12)


def test_rows_keep_their_coefficients():
    rows = training_rows(TRAIN, FORMS[1], Directions(3, True))
    assert rows.num_triples == len(TRAIN)
    assert len(rows.of(torch.tensor([1, 2]))) == 4
