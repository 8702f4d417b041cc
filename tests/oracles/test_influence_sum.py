"""Complete TracIn on a small graph: against the plain reference, and its invariances."""

import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import spearmanr
from torch import Tensor

from clew.config.graph_models import GRAPH_MODELS
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, NonFiniteLossError
from clew.influence.kernel import FactoredGradients, InfluenceError, example_gradients
from clew.influence.link_prediction.tracin import Tracer, tiles
from clew.influence.scores import Everything, Explanation, Strongest
from clew.influence.window_tracer import WindowCheckpoint, last_layers
from clew.layers.products import MatrixProduct
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_report import CONVE_PARTS
from clew.training.checkpoints import TrainingState, load_model, write_checkpoint
from clew.training.manifest import MODEL_FILE, Manifest, list_checkpoints
from clew.training.progress import TrainingValues
from clew.training.task import LossSum
from tests.edited import edit_manifest, edit_weights
from tests.oracles.plain_tracin import tracin_reference

CPU = torch.device("cpu")
ENTITIES, RELATIONS, TRIPLES = 14, 3, 60
WEIGHTS = (0.02, 0.005, 0.01)


class DoubleTask(LinkPrediction):
    """The same task in float64."""

    def build_model(self) -> ConvE:
        return super().build_model().double()


def random_graph(seed: int = 0) -> KnowledgeGraph:
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, (ENTITIES, RELATIONS, ENTITIES), (4 * TRIPLES, 3))
    distinct = generator.permutation(np.unique(rows, axis=0)).astype(np.int32)
    return KnowledgeGraph(
        "random",
        Vocabulary.from_names("entity", [f"e{i}" for i in range(ENTITIES)]),
        Vocabulary.from_names("relation", [f"r{i}" for i in range(RELATIONS)]),
        distinct[:TRIPLES],
        no_triples(),
        distinct[TRIPLES : TRIPLES + 12],
    )


def config_of(
    *,
    inverse: bool = True,
    kind: str = "one_vs_all",
    function: str = "binary_cross_entropy",
    triples_per_row: int = 1,
    model: dict[str, object] | None = None,
    **influence: object,
) -> RunConfig:
    return from_mapping(
        {
            "data": {"kind": "triples", "name": "umls", "inverse_relations": inverse},
            "model": model or {"embedding_dim": 12, "embedding_height": 3, "output_channels": 4},
            "loss": {
                "kind": kind,
                "function": function,
                "label_smoothing": 0.1,
                "implementation": "plain",
            }
            | ({"triples_per_row": triples_per_row} if kind == "one_vs_all" else {}),
            "influence": {"memory_budget_mib": 16.0, "direction": "both", "score": "raw"}
            | influence,
        },
        source="test",
    )


def write_checkpoints(task: LinkPrediction, config: RunConfig, folder: Path, seed: int = 1) -> None:
    """Write three checkpoints of a short training, with running statistics and moments."""
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    source = task.train_examples()
    for number, weight in enumerate(WEIGHTS):
        for _ in range(15):
            model.train()
            optimizer.zero_grad()
            batch = source.batch(np.random.default_rng(number).permutation(len(source))[:40])
            task.loss(model, batch).total.backward()
            optimizer.step()
        step = 15 * (number + 1)
        manifest = Manifest(
            step=step,
            epoch=number + 1,
            learning_rate_weight=weight,
            task=task.kind,
            config={},
            config_hash="",
            data_fingerprint=task.data_fingerprint,
        )
        moments = {
            f"{name}/exp_avg_sq": optimizer.state[p]["exp_avg_sq"]
            for name, p in model.named_parameters()
            if optimizer.state[p]
        }
        state = TrainingState(moments, {}, TrainingValues())
        write_checkpoint(folder / f"epoch-{number + 1:04d}", model, manifest, state)


def fixture_of(
    tmp_path: Path, task_type: type[LinkPrediction], **options: object
) -> SimpleNamespace:
    config = config_of(**options)
    task = task_type(random_graph(), config)
    write_checkpoints(task, config, tmp_path)
    return traced(tmp_path, task, config)


def traced(folder: Path, task: LinkPrediction, config: RunConfig) -> SimpleNamespace:
    """Return the objects that a test needs for a folder of checkpoints."""

    def tracer(records: list | None = None, **influence: object) -> Tracer:
        settings = config.influence.model_copy(update=influence)
        records = list_checkpoints(folder) if records is None else records
        return Tracer(task, config, settings=settings, checkpoints=records, device=CPU)

    return SimpleNamespace(task=task, tracer=tracer, folder=folder, tests=task.graph.test)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    fixture_of(folder, DoubleTask)
    return folder


@pytest.fixture
def small(trained_once: Path, tmp_path: Path) -> SimpleNamespace:
    """Return a small task with a copy of its checkpoints, which the test can change."""
    shutil.copytree(trained_once, tmp_path / "trained")
    config = config_of()
    return traced(tmp_path / "trained", DoubleTask(random_graph(), config), config)


def matrix(explanations: list[Explanation]) -> np.ndarray:
    """Return all scores `(test, train)` from complete explanations."""
    rows = []
    for explanation in explanations:
        scored = explanation.proponents
        assert explanation.complete
        for train, influence in zip(scored.train, scored.influence, strict=True):
            row = np.full(TRIPLES, np.nan)
            row[train[train >= 0]] = influence[train >= 0]
            rows.append(row)
    return np.array(rows)


def reference(small: SimpleNamespace, train: np.ndarray, tests: np.ndarray) -> Tensor:
    """Compute scores by backward passes over the rows of both directions, summed by triple."""
    models = []
    for record in list_checkpoints(small.folder):
        model = small.task.build_model()
        load_model(record.path, model)
        models.append((model.eval(), record.learning_rate_weight))
    rows = [own_rows(small.task, triples) for triples in (train, tests)]
    scores = tracin_reference(small.task, models, *rows)
    directions = len(rows[1].head) // len(tests)
    return scores.view(directions, len(tests), directions, len(train)).sum((0, 2))


def own_rows(task: LinkPrediction, triples: np.ndarray) -> TripleBatch:
    rows = task.graph.with_inverses(triples) if task.inverse_relations else triples
    head, relation, tail = torch.from_numpy(rows.astype(np.int64)).T
    index = torch.arange(len(rows))
    return TripleBatch(head, relation, index, tail, index)


@pytest.mark.parametrize("inverse", [True, False])
def test_sum_over_checkpoints_equals_the_plain_reference(tmp_path, inverse):
    small = fixture_of(tmp_path, DoubleTask, inverse=inverse)
    ours = matrix(small.tracer(top_k=0).explain(small.tests))
    expected = reference(small, small.task.graph.train, small.tests).numpy()
    assert np.abs(ours - expected).max() <= 1e-10 * np.abs(expected).max()


@pytest.mark.parametrize("kind", GRAPH_MODELS[1:])
def test_every_graph_model_agrees_with_the_plain_reference_and_the_generic_engine(tmp_path, kind):
    small = fixture_of(tmp_path, DoubleTask, model={"kind": kind, "embedding_dim": 6})
    ours = matrix(small.tracer(top_k=0).explain(small.tests))
    expected = reference(small, small.task.graph.train, small.tests).numpy()
    assert np.abs(ours - expected).max() <= 1e-10 * np.abs(expected).max()
    total = np.zeros_like(expected)
    for record in list_checkpoints(small.folder):
        model = small.task.build_model()
        load_model(record.path, model)
        rows, tests = small.task.train_examples(), own_rows(small.task, small.tests)
        gradients = FactoredGradients(small.task, model, rows)
        generic = WindowCheckpoint(gradients, rows, [tests], MatrixProduct())
        products = generic.products(np.arange(2 * TRIPLES), norms=False).by_part.sum(0)
        summed = products.view(2, 12, 2, TRIPLES).sum((0, 2)).numpy()
        total += record.learning_rate_weight * summed
    assert np.abs(total - expected).max() <= 1e-9 * np.abs(expected).max()


def test_checkpoints_and_parts_add_up(small):
    tracer = small.tracer(top_k=5)
    (explanation,) = tracer.explain(small.tests)
    assert explanation.parts == CONVE_PARTS
    for scored in (explanation.proponents, explanation.opponents):
        assert scored.by_checkpoint.shape[0] == len(WEIGHTS)
        np.testing.assert_allclose(scored.by_checkpoint.sum(0), scored.influence, rtol=1e-4)
        np.testing.assert_allclose(scored.by_part.sum(0), scored.influence, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 60, None])
def test_streamed_strongest_are_those_of_the_full_matrix(tmp_path, batch_size):
    small = fixture_of(tmp_path, DoubleTask, function="softmax_cross_entropy")
    full = matrix(small.tracer(top_k=0).explain(small.tests))
    (explanation,) = small.tracer(top_k=4, batch_size=batch_size).explain(small.tests)
    assert (full < 0).any(1).sum() > 6
    for sign, scored in ((1, explanation.proponents), (-1, explanation.opponents)):
        order = np.argsort(-sign * full, axis=1, kind="stable")[:, :4]
        best = np.take_along_axis(full, order, 1)
        np.testing.assert_array_equal(scored.train, np.where(sign * best > 0, order, -1))
        np.testing.assert_allclose(scored.influence, np.where(sign * best > 0, best, 0), rtol=1e-9)


def test_result_does_not_depend_on_tests_beside_it(small):
    full = matrix(small.tracer(top_k=0).explain(small.tests))
    backwards = matrix(small.tracer(top_k=0).explain(small.tests[::-1]))[::-1]
    one_by_one = np.concatenate(
        [matrix(small.tracer(top_k=0).explain(small.tests[i : i + 1])) for i in range(12)]
    )
    tight = small.tracer(top_k=0, memory_budget_mib=0.05)
    assert tight.plan(12).tests_per_pass < 12
    for other in (backwards, one_by_one, matrix(tight.explain(small.tests))):
        np.testing.assert_allclose(other, full, rtol=1e-9, atol=1e-12)


def test_self_influence_is_the_diagonal(small):
    train = small.task.graph.train
    tracer = small.tracer(top_k=0)
    explanations = tracer.explain(train)
    diagonal = matrix(explanations).diagonal()
    np.testing.assert_allclose(tracer.self_influence(), diagonal, rtol=1e-10)
    own = np.concatenate([explanation.self_influence for explanation in explanations])
    np.testing.assert_allclose(own, diagonal, rtol=1e-10)


def test_cosine_is_the_score_over_both_norms(small):
    tracer = small.tracer(top_k=0)
    (explanation,) = tracer.explain(small.tests)
    scored, norms = explanation.proponents, tracer.self_influence()
    expected = scored.influence / np.sqrt(explanation.self_influence[:, None] * norms[scored.train])
    np.testing.assert_allclose(scored.cosine, expected, rtol=1e-5)
    assert np.abs(scored.cosine).max() <= 1 + 1e-6
    (normalised,) = small.tracer(top_k=0, score="cosine").explain(small.tests)
    np.testing.assert_allclose(normalised.proponents.influence, normalised.proponents.cosine, 1e-5)
    np.testing.assert_allclose(
        normalised.proponents.by_part.sum(0), normalised.proponents.influence, 1e-4, 1e-6
    )
    assert np.isnan(matrix([explanation])).sum() == 0


def test_candidates_leave_the_other_scores_as_they_are(small):
    full = matrix(small.tracer(top_k=0).explain(small.tests))
    allowed = np.random.default_rng(0).random(full.shape) < 0.4
    (explanation,) = small.tracer(top_k=0).explain(small.tests, candidates=allowed)
    ours = matrix([explanation])
    np.testing.assert_array_equal(np.isnan(ours), ~allowed)
    np.testing.assert_allclose(ours[allowed], full[allowed], rtol=1e-10)
    (explanation,) = small.tracer(top_k=3).explain(small.tests, candidates=allowed)
    hidden = np.where(allowed, full, -np.inf)
    best = np.argsort(-hidden, axis=1)[:, :3]
    np.testing.assert_array_equal(explanation.proponents.train, best)


@pytest.mark.parametrize("index", [3, 41])
def test_one_sgd_step_lowers_the_test_loss_as_predicted(small, index):
    """L(theta - r g_i) = L(theta) - r K + O(r^2): the error over r vanishes as r halves."""
    record = list_checkpoints(small.folder)[-1]
    model = small.task.build_model()
    load_model(record.path, model)
    model.eval()
    train = own_rows(small.task, small.task.graph.train[index : index + 1])
    test = own_rows(small.task, small.tests[:1])
    gradients = {n: g.sum(0) for n, g in example_gradients(small.task, model, train).items()}
    weighted = small.tracer([record], top_k=0).explain(small.tests[:1])
    kernel = matrix(weighted)[0, index] / record.learning_rate_weight

    def loss_after(rate: float) -> float:
        stepped = small.task.build_model().eval()
        stepped.load_state_dict(model.state_dict())
        with torch.no_grad():
            for name, parameter in stepped.named_parameters():
                parameter.sub_(rate * gradients[name])
            return float(small.task.example_losses(stepped, test).sum())

    before = loss_after(0.0)
    rates = [2.0**-k for k in range(12, 18)]
    errors = [abs((loss_after(r) - before) / r + kernel) for r in rates]
    assert errors[-1] < 0.02 * abs(kernel)
    ratios = [a / b for a, b in pairwise(errors)]
    assert all(1.6 < ratio < 2.5 for ratio in ratios), ratios


def test_kvs_all_runs_and_differs(tmp_path):
    small = fixture_of(tmp_path, DoubleTask, kind="kvs_all")
    ours = matrix(small.tracer(top_k=0).explain(small.tests))
    own = reference(small, small.task.graph.train, small.tests).numpy()
    assert np.isfinite(ours).all()
    assert np.abs(ours - own).max() > 1e-3 * np.abs(own).max()


def test_triples_in_groups_are_rows_of_their_own(tmp_path):
    small = fixture_of(tmp_path, DoubleTask, function="softmax_cross_entropy", triples_per_row=4)
    assert len(small.task.train_examples()) < 2 * TRIPLES
    ours = matrix(small.tracer(top_k=0).explain(small.tests))
    own = reference(small, small.task.graph.train, small.tests).numpy()
    np.testing.assert_allclose(ours, own, rtol=1e-9, atol=1e-12)


def test_generic_engine_agrees_with_the_kernel(small):
    records = list_checkpoints(small.folder)
    model = small.task.build_model()
    load_model(records[-1].path, model)
    train, tests = small.task.train_examples(), own_rows(small.task, small.tests)
    gradients = FactoredGradients(small.task, model, train)
    generic = WindowCheckpoint(gradients, train, [tests], MatrixProduct())
    rows = generic.products(np.arange(2 * TRIPLES), norms=True)
    total = rows.by_part.sum(0).view(2, 12, 2, TRIPLES).sum((0, 2)).numpy()
    tracer = small.tracer(records[-1:], top_k=0)
    ours = matrix(tracer.explain(small.tests)) / WEIGHTS[-1]
    np.testing.assert_allclose(ours, total, rtol=1e-9, atol=1e-9)
    assert rows.squared_norm is not None
    assert len(generic.test_squared_norm) == 24
    gradients = FactoredGradients(small.task, model, train, select=last_layers(model, 2))
    few = WindowCheckpoint(gradients, train, [tests], MatrixProduct())
    assert set(few.parts) == {"projection", "projection_norm"}


@pytest.mark.parametrize("operand", ["bfloat16", "float16"])
def test_half_precision_orders_the_strongest_alike(tmp_path, operand):
    small = fixture_of(tmp_path, LinkPrediction)
    exact = matrix(small.tracer(top_k=0).explain(small.tests))
    half = small.tracer(top_k=0, use_mixed_precision=True, mixed_precision_dtype=operand)
    rounded = matrix(half.explain(small.tests))
    assert not np.array_equal(exact, rounded)
    largest = [(a, b, np.argsort(-np.abs(a))[:100]) for a, b in zip(exact, rounded, strict=True)]
    agreement = [spearmanr(a[top], b[top]).statistic for a, b, top in largest]
    assert np.mean(agreement) >= 0.99
    assert min(agreement) >= 0.97


def test_deviation_of_half_precision_is_measured(tmp_path):
    small = fixture_of(tmp_path, LinkPrediction)
    tracer = small.tracer(use_mixed_precision=True, mixed_precision_dtype="float16")
    deviation = tracer.half_precision_deviation(small.tests)
    assert 0.99 <= deviation["spearman_top_100"] <= 1.0
    assert 0.0 < deviation["relative_error"] < 0.01
    with pytest.raises(ConfigError, match="use_mixed_precision"):
        small.tracer().half_precision_deviation(small.tests)


def test_checkpointing_changes_no_score(small):
    kept = matrix(small.tracer(top_k=0).explain(small.tests))
    again = matrix(small.tracer(top_k=0, use_gradient_checkpointing=True).explain(small.tests))
    np.testing.assert_allclose(again, kept, rtol=1e-10)


def test_last_layers_are_the_sum_of_their_parts(small):
    (whole,) = small.tracer(top_k=0).explain(small.tests)
    parts = {}
    for index, part in enumerate(CONVE_PARTS):
        parts[part] = np.empty((12, TRIPLES))
        np.put_along_axis(parts[part], whole.proponents.train, whole.proponents.by_part[index], 1)
    for count, names in ((1, ["entity_output"]), (2, ["entity_output", "dense"]), (9, CONVE_PARTS)):
        tracer = small.tracer(top_k=0, use_last_layers_only=True, num_last_layers=count)
        (few,) = tracer.explain(small.tests)
        assert list(few.parts) == list(names)
        expected = sum(parts[name] for name in names)
        np.testing.assert_allclose(matrix([few]), expected, rtol=1e-4, atol=1e-6)


def test_preconditioned_scores_need_moments(small):
    scores = matrix(small.tracer(top_k=0, score="preconditioned").explain(small.tests))
    assert np.isfinite(scores).all()
    record = list_checkpoints(small.folder)[0]
    (record.path / "optimizer.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        small.tracer(score="preconditioned")


def test_score_and_rank_of_the_test_triples(small):
    graph = small.task.graph
    model = small.task.build_model()
    load_model(list_checkpoints(small.folder)[-1].path, model)
    scores, ranks = small.tracer(direction="tail").scores_and_ranks(small.tests)
    known = np.concatenate([graph.train, graph.test])
    with torch.no_grad():
        for (head, relation, tail), score, rank in zip(small.tests, scores, ranks, strict=True):
            query = model.eval().queries(torch.tensor([head]), torch.tensor([relation]))
            row = (query @ model.entity.weight.T + model.entity_bias)[0]
            same = (known[:, 0] == head) & (known[:, 1] == relation)
            others = set(range(ENTITIES)) - set(known[same, 2].tolist())
            assert score == pytest.approx(float(row[tail]), rel=1e-9)
            assert rank == 1 + sum(bool(row[e] > row[tail]) for e in others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("learning_rate_weight"), "missing"),
        (
            lambda m: m.update(learning_rate_weight=None),
            "expected a number",
        ),
        (
            lambda m: m.update(learning_rate_weight=-0.1),
            "expected at least 0",
        ),
    ],
)
def test_missing_or_senseless_weight_is_named(small, change, message):
    edit_manifest(list_checkpoints(small.folder)[1].path, change)
    with pytest.raises(CheckpointError, match=f"learning_rate_weight: {message}"):
        small.tracer()


def test_no_checkpoint_and_no_learning(small):
    with pytest.raises(CheckpointError, match="has no checkpoints"):
        small.tracer([])
    for record in list_checkpoints(small.folder):
        edit_manifest(record.path, lambda m: m.update(learning_rate_weight=0.0))
    with pytest.raises(CheckpointError, match="nothing was learned"):
        small.tracer()


def test_missing_buffers_are_named(small):
    path = list_checkpoints(small.folder)[0].path
    edit_weights(path, lambda tensors: tensors.pop("feature_norm.running_mean"))
    with pytest.raises(CheckpointError, match=r"missing .*feature_norm\.running_mean"):
        small.tracer()


def test_checkpoint_that_overflowed_is_refused(tmp_path):
    small = fixture_of(tmp_path, LinkPrediction)
    path = list_checkpoints(tmp_path)[0].path
    edit_weights(path, lambda tensors: tensors["entity.weight"][0, 0].fill_(torch.inf))
    with pytest.raises(NonFiniteLossError, match="NaN or infinity"):
        small.tracer().explain(small.tests)


def test_wrong_task_is_detected(tmp_path):
    class WrongTask(DoubleTask):
        """A task whose loss is not the sum of its example losses."""

        def example_losses(self, model, batch):
            return 2.0 * super().example_losses(model, batch)

        def loss(self, model, batch):
            return LossSum(super().example_losses(model, batch).sum(), batch.count)

    with pytest.raises(InfluenceError, match="differ from the influence kernel's"):
        fixture_of(tmp_path, WrongTask).tracer()


class Wider(DoubleTask):
    def build_model(self) -> ConvE:
        model = super().build_model()
        model.register_parameter("extra", torch.nn.Parameter(torch.zeros(2).double()))
        return model


class Frozen(DoubleTask):
    def build_model(self) -> ConvE:
        model = super().build_model()
        model.relation.weight.requires_grad_(False)
        return model


@pytest.mark.parametrize(
    ("changed", "message"),
    [(Wider, "extra is not covered"), (Frozen, r"relation\.weight is frozen")],
)
def test_changed_models_are_refused(small, changed, message):
    task = changed(small.task.graph, config_of())
    records = list_checkpoints(small.folder)
    for record in records:
        extra = task.build_model().state_dict().keys() - load_file(record.path / MODEL_FILE).keys()
        added = {name: torch.zeros(2) for name in extra}
        edit_weights(record.path, lambda tensors, added=added: tensors.update(added))
    with pytest.raises(InfluenceError, match=message):
        Tracer(task, config_of(), settings=config_of().influence, checkpoints=records, device=CPU)


def test_ties_go_to_the_smaller_index():
    from clew.influence.scores import Tile

    generator = np.random.default_rng(0)
    scores = torch.from_numpy(generator.integers(-3, 4, (5, 40)).astype(float))
    order = torch.from_numpy(generator.permutation(40))
    for sign in (1, -1):
        sink = Strongest(6, sign)
        for start in range(0, 40, 9):
            index = order[start : start + 9]
            part = scores[:, index]
            sink.add(Tile(index, part, part[None], part[None], None, None))
        ours = sink.result()
        for row in range(5):
            signed = sign * scores[row].numpy()
            best = [i for i in np.lexsort((np.arange(40), -signed)) if signed[i] > 0][:6]
            assert ours.train[row][ours.train[row] >= 0].tolist() == best
    everything = Everything(details=False)
    everything.add(Tile(order, scores[:, order], scores[None], scores[None], None, None))
    assert everything.result().by_part.shape[0] == 0


def test_tiles_cover_every_candidate_once():
    train = random_graph().train
    seen = np.concatenate(list(tiles(train, None, 7)))
    assert sorted(seen) == list(range(len(train)))
    assert (np.diff(train[seen, 1]) >= 0).all()
    some = np.array([5, 2, 9])
    assert sorted(np.concatenate(list(tiles(train, some, 2)))) == [2, 5, 9]
