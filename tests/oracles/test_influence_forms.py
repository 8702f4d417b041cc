"""`deflated`, `kronecker`, directions and the filtered loss against whole gradients, in float64.

The reference stores every gradient as a matrix for each parameter, and computes means, second
moments and eigenvectors of all training rows explicitly. It shares only the models with the
product.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clew.config.graph_models import ComplExModel, ConvEModel, DistMultModel
from clew.errors import ConfigError
from clew.influence.link_prediction.geometry import Geometry
from clew.influence.link_prediction.moments import (
    MomentSettings,
    deflated,
    drawn_delta,
    kronecker,
)
from clew.influence.link_prediction.rows import (
    Directions,
    LossForm,
    known_tails,
    own_rows,
    training_rows,
)
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
    build_trunk,
)
from clew.influence.link_prediction.trunk import Scorer
from clew.layers.products import MatrixProduct
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.triples import FilterIndex
from clew.training.checkpoints import load_model
from clew.training.manifest import list_checkpoints
from tests.oracles.test_influence_graph_models import alternating
from tests.oracles.test_influence_sum import DoubleTask, fixture_of, matrix

ENTITIES, RELATIONS = 7, 3
FORMS = [
    LossForm(function, smoothing, kvs)
    for function, smoothing, kvs in product(
        ("binary_cross_entropy", "softmax_cross_entropy"), (0.0, 0.2), (False, True)
    )
]
KINDS = {
    "conve": ConvEModel(embedding_dim=12, embedding_height=3, output_channels=5),
    "distmult": DistMultModel(embedding_dim=6, initial_deviation=0.5),
    "complex": ComplExModel(embedding_dim=6, initial_deviation=0.5, entity_bias=True),
}
Change = Callable[[Tensor], Tensor]
Changes = dict[str, Change]
Gradient = dict[str, Tensor]
FACTORS = ("h", "f", "gq", "ga", "gr", "delta", "head", "relation")


def network(kind: str) -> GraphModel:
    torch.manual_seed(3)
    model = build_graph_model(KINDS[kind], ENTITIES, 2 * RELATIONS).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.train()
    for _ in range(3):
        model.queries(torch.randint(0, ENTITIES, (32,)), torch.randint(0, 2 * RELATIONS, (32,)))
    return model.eval()


def graph(count: int, seed: int) -> np.ndarray:
    every = np.array(list(product(range(ENTITIES), range(RELATIONS), range(ENTITIES))), np.int32)
    return every[np.random.default_rng(seed).permutation(len(every))[:count]]


TRAIN, TEST = graph(40, 0), graph(5, 1)


def rows_of(triples: np.ndarray, directions: int) -> list[tuple[int, int, int]]:
    """Return the rows in the product's order: all triples, then all inverses."""
    rows = [(int(h), int(r), int(t)) for h, r, t in triples]
    return rows + [(t, r + RELATIONS, h) for h, r, t in rows] * (directions == 2)


def smoothed_loss(form: LossForm, scores: Tensor, tails: list[int]) -> Tensor:
    if not tails:
        return scores.sum() * 0.0
    size = len(tails) if form.function == "softmax_cross_entropy" else 1
    labels = torch.full_like(scores, form.label_smoothing / len(scores))
    labels[tails] += (1.0 - form.label_smoothing) / size
    if form.function == "softmax_cross_entropy":
        return labels.sum() * scores.logsumexp(0) - labels @ scores
    return F.softplus(scores).sum() - labels @ scores


def filtered_loss(form: LossForm, scores: Tensor, tail: int, known: set[int]) -> Tensor:
    kept = [e for e in range(len(scores)) if e == tail or e not in known]
    if form.function == "softmax_cross_entropy":
        return scores[kept].logsumexp(0) - scores[tail]
    return F.softplus(scores[kept]).sum() - scores[tail]


def factors(
    model: GraphModel, head: int, relation: int, delta_of: Callable[[Tensor], Tensor]
) -> Gradient:
    """Return h, f, delta and the gradients of embeddings and projection, by autograd."""
    a = model.entity.weight[head].detach()[None].requires_grad_()
    rho = model.relation.weight[relation].detach()[None].requires_grad_()
    if model.config.kind == "conve":
        image = torch.cat([a, rho], 1).view(1, 1, 6, 4)
        maps = F.relu(model.feature_norm(model.convolution(model.input_norm(image))))
        f = maps.flatten(1)
        z = F.linear(f, model.projection.weight, model.projection.bias)
        h = F.relu(model.projection_norm(z))
    else:
        h = model.encode(a, rho)
        f, z = h[:, :0], h
    bias = 0.0 if model.entity_bias is None else model.entity_bias
    scores = (h @ model.entity.weight.detach().T + bias)[0]
    delta = delta_of(scores.detach())
    ga, gr, gq = torch.autograd.grad(scores, [a, rho, z], grad_outputs=delta)
    values = {"h": h, "f": f, "gq": gq[:, : h.shape[1] * (f.shape[1] > 0)], "ga": ga, "gr": gr}
    return {name: value[0].detach() for name, value in values.items()} | {"delta": delta}


def derivative(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def of(scores: Tensor) -> Tensor:
        scores = scores.clone().requires_grad_()
        return torch.autograd.grad(loss(scores), scores)[0]

    return of


def whole(model: GraphModel, found: Gradient, head: int, relation: int, by: Changes) -> Gradient:
    """Return every parameter's gradient of a row as a matrix, with changed factors."""
    new = {name: by[name](value) for name, value in found.items()}
    one = {"head": torch.zeros(ENTITIES), "relation": torch.zeros(2 * RELATIONS)}
    one["head"][head], one["relation"][relation] = 1.0, 1.0
    one = {name: by[name](value.double()) for name, value in one.items()}
    result = {
        "table": torch.outer(new["delta"], new["h"]) + torch.outer(one["head"], new["ga"]),
        "relation": torch.outer(one["relation"], new["gr"]),
        "dense": torch.outer(new["gq"], new["f"]),
        "dense_bias": new["gq"],
    }
    if model.entity_bias is not None:
        result["entity_bias"] = new["delta"]
    return result


def triple_gradients(
    model: GraphModel,
    form: LossForm,
    triples: np.ndarray,
    directions: int,
    by: Changes,
    *,
    train: np.ndarray | None = None,
    only: int | None = None,
    known: set[tuple[int, int, int]] | None = None,
) -> list[Gradient]:
    """Return the contribution of each triple to the gradient.

    With `train`, it is part of its query's row; with `known`, it uses the filtered loss; with
    `only`, it has one direction.
    """
    asked = set(rows_of(train, directions)) if train is not None else set()
    rows = rows_of(triples, directions)
    totals: list[Gradient] = [{} for _ in triples]
    for number, (head, relation, tail) in enumerate(rows):
        if only is not None and number // len(triples) != only:
            continue
        tails = [tail]
        if train is not None and form.one_query_a_row:
            tails = [t for h, r, t in asked if (h, r) == (head, relation)]
        others = [t for t in tails if t != tail]

        def loss(scores: Tensor, tails=tails, others=others, row=rows[number]) -> Tensor:
            if known is not None:
                answers = {t for h, r, t in known if (h, r) == row[:2]}
                return filtered_loss(form, scores, row[2], answers)
            return smoothed_loss(form, scores, tails) - smoothed_loss(form, scores, others)

        found = factors(model, head, relation, derivative(loss))
        total = totals[number % len(triples)]
        for name, value in whole(model, found, head, relation, by).items():
            total[name] = total.get(name, 0.0) + value
    return totals


def products(a: list[Gradient], b: list[Gradient]) -> Tensor:
    return torch.stack(
        [torch.stack([sum((x[name] * y[name]).sum() for name in x) for y in b]) for x in a]
    )


def same(value: Tensor) -> Tensor:
    return value


UNCHANGED: Changes = dict.fromkeys(FACTORS, same)


def deflation(model: GraphModel, directions: int) -> Changes:
    rows = [factors(model, h, r, torch.zeros_like) for h, r, _ in rows_of(TRAIN, directions)]

    def without(name: str) -> Change:
        mean = torch.stack([row[name] for row in rows]).mean(0)
        return lambda x: x - (x @ mean) * mean / (mean @ mean)

    features = {"f": without("f")} if model.config.kind == "conve" else {}
    return UNCHANGED | {"h": without("h")} | features


def labels_drawn(form: LossForm, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    def delta(scores: Tensor) -> Tensor:
        if form.function == "binary_cross_entropy":
            drawn = torch.rand(len(scores), generator=generator) < scores.sigmoid()
            return scores.sigmoid() - drawn.double()
        place = float(torch.rand(1, generator=generator))
        chance = scores.softmax(0)
        entity = int((chance.cumsum(0) <= place).sum())
        return chance - F.one_hot(torch.tensor(entity), len(scores)).double()

    return delta


def whitening(model: GraphModel, form: LossForm, directions: int, rank: int) -> Changes:
    generator = torch.Generator().manual_seed(0)
    pairs = [(h, r) for h, r, _ in rows_of(TRAIN, directions)]
    rows = [factors(model, h, r, labels_drawn(form, generator)) for h, r in pairs]

    def root(name: str, leading: int | None) -> Change:
        values = torch.stack([row[name] for row in rows])
        if values.shape[1] == 0:
            return same
        found, vectors = torch.linalg.eigh(values.T @ values / len(values))
        damped = 0.1 * found.mean()
        if leading is not None:
            found[:-leading] = found[:-leading].mean()
        power = vectors @ torch.diag((found + damped) ** -0.5) @ vectors.T
        return lambda x: power @ x

    def diagonal(second_moment: Tensor) -> Change:
        scale = (second_moment + 0.1 * second_moment.mean()) ** -0.5
        return lambda x: scale * x

    variances = []
    for h, r in pairs:
        scores = (model.queries(torch.tensor([h]), torch.tensor([r])) @ model.entity.weight.T)[0]
        scores = scores + (0.0 if model.entity_bias is None else model.entity_bias)
        softmax = form.function == "softmax_cross_entropy"
        chance = scores.softmax(0) if softmax else scores.sigmoid()
        variances.append((chance * (1 - chance)).detach())
    heads, relations = (torch.tensor(column) for column in zip(*pairs, strict=True))
    return {name: root(name, None) for name in ("h", "gq", "ga", "gr")} | {
        "f": root("f", rank),
        "delta": diagonal(torch.stack(variances).mean(0)),
        "head": diagonal(F.one_hot(heads, ENTITIES).double().mean(0)),
        "relation": diagonal(F.one_hot(relations, 2 * RELATIONS).double().mean(0)),
    }


def triple_rows(form: LossForm, directions: int, **more: object) -> TripleRows:
    kind = Directions(RELATIONS, directions == 2)
    several = form.one_query_a_row and form.function == "softmax_cross_entropy"
    to = (torch.device("cpu"), torch.float64)
    return TripleRows(
        form,
        training_rows(TRAIN, form, kind).to(*to),
        own_rows(TEST, form, kind).to(*to),
        known_tails(TRAIN, kind) if several else None,
        **more,
    )


def geometry(score: str, model: GraphModel, rows: TripleRows, rank: int) -> Geometry:
    settings = MomentSettings(rank=rank)
    with torch.no_grad():
        if score == "deflated":
            return deflated(build_trunk(model), rows.train, settings)
        scorer = Scorer(model, MatrixProduct())
        function = rows.form.function
        return kronecker(build_trunk(model), scorer, rows.train, function, settings)


def changes(score: str, model: GraphModel, form: LossForm, directions: int, rank: int) -> Changes:
    if score == "deflated":
        return deflation(model, directions)
    return whitening(model, form, directions, rank)


@pytest.mark.parametrize(("kind", "form", "directions"), alternating(KINDS), ids=str)
@pytest.mark.parametrize("score", ["deflated", "kronecker"])
def test_factored_products_equal_whole_gradients(score, kind, form, directions):
    model, rank = network(kind), 5
    rows = triple_rows(form, directions)
    ours = GraphModelCheckpoint(model, rows, KernelOptions(), geometry(score, model, rows, rank))
    found = ours.products(np.arange(len(TRAIN)), norms=True)
    by = changes(score, model, form, directions, rank)
    train = triple_gradients(model, form, TRAIN, directions, by, train=TRAIN)
    test = triple_gradients(model, form, TEST, directions, by)
    expected = products(test, train)
    assert (found.by_part.sum(0) - expected).abs().max() <= 1e-9 * expected.abs().max()
    norms = torch.stack([products([g], [g])[0, 0] for g in train])
    assert found.squared_norm is not None
    assert (found.squared_norm - norms).abs().max() <= 1e-9 * norms.max()
    own = torch.stack([products([g], [g])[0, 0] for g in test])
    assert (ours.test_squared_norm - own).abs().max() <= 1e-9 * own.max()
    assert not {"convolution", "network"} & set(ours.parts)


@pytest.mark.parametrize("known", [None, "some"])
@pytest.mark.parametrize(
    ("form", "only"), [(form, n.bit_count() % 2) for n, form in enumerate(FORMS)], ids=str
)
def test_one_direction_and_the_filtered_loss(form, known, only):
    """Raw scores of the covered parts; deflation without a mean would be the same.

    Each direction is tested with each pair of values of a form's three settings.
    """
    model = network("conve")
    facts = np.concatenate([TRAIN, TEST[:3]])  # the last two test triples are not known answers
    index = FilterIndex.from_triples(np.array(rows_of(facts, 2), np.int32), 2 * RELATIONS)
    rows = triple_rows(form, 2, answers=index if known else None)
    rows = TripleRows(form, rows.train, rows.test.direction(only), rows.known, answers=rows.answers)
    ours = GraphModelCheckpoint(model, rows, KernelOptions())
    raw = ours.products(np.arange(len(TRAIN)), norms=False).by_part
    found = sum(
        values for part, values in zip(ours.parts, raw, strict=True) if part != "convolution"
    )
    train = triple_gradients(model, form, TRAIN, 2, UNCHANGED, train=TRAIN)
    answers = set(rows_of(facts, 2)) if known else None
    test = triple_gradients(model, form, TEST, 2, UNCHANGED, only=only, known=answers)
    expected = products(test, train)
    assert (found - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize("score", ["deflated", "kronecker"])
def test_scores_are_divided_by_the_training_gradient_s_norm(tmp_path, score):
    small = fixture_of(tmp_path, DoubleTask)
    tracer = small.tracer(top_k=0, score=score)
    ours = matrix(tracer.explain(small.tests))
    products, norms = 0.0, 0.0
    rows = tracer._rows(small.tests)
    for kernel, weight in zip(tracer.runs[0].kernels(rows), tracer.runs[0].weights, strict=True):
        every = kernel.products(np.arange(len(small.task.graph.train)), norms=True)
        products += weight * every.by_part.sum(0).numpy()
        norms += weight * every.squared_norm.numpy()
    np.testing.assert_allclose(ours, products / np.sqrt(norms), rtol=1e-9)
    (explanation,) = tracer.explain(small.tests)
    scored = explanation.proponents
    np.testing.assert_allclose(scored.by_part.sum(0), scored.influence, rtol=1e-4, atol=1e-6)
    own = np.sqrt(explanation.self_influence)[:, None]
    np.testing.assert_allclose(scored.cosine, scored.influence / own, rtol=1e-5)


@pytest.mark.parametrize("score", ["deflated", "kronecker"])
def test_forms_do_not_depend_on_tiles_memory_or_precision(tmp_path, score):
    small = fixture_of(tmp_path, DoubleTask)
    expected = matrix(small.tracer(top_k=0, score=score).explain(small.tests))
    for options in ({"batch_size": 7}, {"use_gradient_checkpointing": True}):
        found = matrix(small.tracer(top_k=0, score=score, **options).explain(small.tests))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_labels_are_drawn_as_the_model_believes():
    torch.manual_seed(0)
    scores = torch.randn(1, 6, dtype=torch.float64).expand(20_000, 6)
    for function in ("binary_cross_entropy", "softmax_cross_entropy"):
        generator = torch.Generator().manual_seed(1)
        delta, variance = drawn_delta(scores, function, generator)
        assert delta.mean(0).abs().max() < 0.02
        torch.testing.assert_close(delta.square().mean(0), variance[0], rtol=0.05, atol=0.01)


def test_tail_and_head_add_up_to_both(tmp_path):
    small = fixture_of(tmp_path, DoubleTask)
    tail, head, both = (
        matrix(small.tracer(top_k=0, direction=direction).explain(small.tests))
        for direction in ("tail", "head", "both")
    )
    np.testing.assert_allclose(tail + head, both, rtol=1e-9, atol=1e-12)
    assert np.abs(tail - head).max() > 0.1 * np.abs(both).max()


def test_rank_and_score_are_of_the_question_that_is_explained(tmp_path):
    small = fixture_of(tmp_path, DoubleTask)
    model = small.task.build_model()
    load_model(list_checkpoints(small.folder)[-1].path, model)
    graph = small.task.graph
    known = np.concatenate([graph.train, graph.test])
    scores, ranks = small.tracer(direction="head").scores_and_ranks(small.tests)
    with torch.no_grad():
        for (head, relation, tail), score, rank in zip(small.tests, scores, ranks, strict=True):
            inverse = torch.tensor([relation + graph.num_relations])
            query = model.eval().queries(torch.tensor([tail]), inverse)
            row = (query @ model.entity.weight.T + model.entity_bias)[0]
            same = (known[:, 2] == tail) & (known[:, 1] == relation)
            others = set(range(len(row))) - set(known[same, 0].tolist())
            assert score == pytest.approx(float(row[head]), rel=1e-9)
            assert rank == 1 + sum(bool(row[e] > row[head]) for e in others)
    of_tail = small.tracer(direction="tail").scores_and_ranks(small.tests)
    of_both = small.tracer(direction="both").scores_and_ranks(small.tests)
    np.testing.assert_allclose(of_both[0], (of_tail[0] + scores) / 2)
    np.testing.assert_allclose(of_both[1], (of_tail[1] + ranks) / 2)


def test_a_model_without_inverse_relations_has_no_question_for_heads(tmp_path):
    small = fixture_of(tmp_path, DoubleTask, inverse=False)
    with pytest.raises(ConfigError, match=r"direction.*head.*inverse_relations"):
        small.tracer(direction="head")
