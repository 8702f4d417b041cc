"""The unrolled score against central differences of whole retrainings, in float64."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clew.config.load import from_mapping, with_settings
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError
from clew.influence.linearization import FEW_ROWS, ExampleFacts
from clew.influence.link_prediction.unrolled import (
    TripleFacts,
    TunedTracer,
    UnrolledTracer,
    triples_loss,
)
from clew.influence.outcomes import Examiner
from clew.influence.retraining import NOTHING, Retrainer
from clew.influence.unrolling import KeptInFile, Unrolling
from clew.influence.verify import fine_tuning
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import Triples
from clew.runs.base import Tracker
from clew.runs.validation_record import Recipe
from clew.training.distributed import World
from clew.training.manifest import Manifest, list_checkpoints
from clew.training.replay import Replay, State
from clew.training.setup import build_trainer
from clew.training.task import ExampleValues, LossSum
from tests.edited import edit_weights
from tests.oracles import plain_training
from tests.oracles.plain_training import explained_loss, row, train_plainly

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
STEP = 1e-5
ENTITIES, RELATIONS, FACTS = 9, 3, 26


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def write_graph(folder: Path, *, extra_relation: bool = False) -> dict[str, str]:
    rng = np.random.default_rng(5)
    every = [(h, r, t) for h in range(ENTITIES) for r in range(RELATIONS) for t in range(ENTITIES)]
    chosen = [every[i] for i in rng.permutation(len(every))[: FACTS + 8]]
    splits = {"train": chosen[:FACTS], "valid": chosen[FACTS:-4], "test": chosen[-4:]}
    for name, triples in splits.items():
        lines = [f"e{h}\tr{r}\te{t}\n" for h, r, t in triples]
        if extra_relation and name == "test":
            lines.append("e0\tnever trained\te1\n")
        (folder / f"{name}.txt").write_text("".join(lines))
    return {f"data.{name}": str(folder / f"{name}.txt") for name in splits}


def train(folder: Path, *, extra_relation: bool = False, **overrides: object) -> SimpleNamespace:
    """Train with the product in float64, and return everything that an explanation needs."""
    folder.mkdir(exist_ok=True)
    values = {
        "data.kind": "triples",
        "model.embedding_dim": 6,
        "model.output_channels": 3,
        "model.activation": "silu",
        "loss.kind": "one_vs_all",
        "loss.function": "softmax_cross_entropy",
        "optimizer.learning_rate": 0.02,
        "schedule.kind": "warmup_cosine",
        "training.batch_size": 8,
        "training.num_epochs": 4,
        "training.checkpoint_frequency": 2,
        "training.device": "cpu",
        "tracking.log_mfu": False,
    }
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    merged = values | write_graph(folder, extra_relation=extra_relation) | named
    if merged.get("model.kind", "conve") != "conve":
        merged = {k: v for k, v in merged.items() if k not in CONVE_ONLY}
    config = from_mapping({"data": {"kind": "triples"}}, merged)
    task = LinkPrediction(load_graph(config.data), config)
    return train_on(config, task, folder)


def train_on(config: RunConfig, task, folder: Path) -> SimpleNamespace:
    trainer = build_trainer(
        config,
        task,
        Tracker(),
        device=CPU,
        world=World(),
        folder=folder,
        origin=Manifest(0, 0, 0.0, task.kind, {}, "", task.data_fingerprint),
        keep_all_checkpoints=True,
    )
    trainer.train()
    records = list_checkpoints(folder / "checkpoints")
    return SimpleNamespace(config=config, task=task, trainer=trainer, records=records)


CONVE_ONLY = ("model.output_channels", "model.activation", "model.feature_map_dropout")


def facts(run: SimpleNamespace) -> TripleFacts:
    return TripleFacts(run.task, run.config)


def loss_of(run: SimpleNamespace, triples: Triples, weights: np.ndarray, direction: str = "both"):
    return triples_loss(run.task, triples, weights, CPU, direction=direction)


def unroll(
    run: SimpleNamespace, *, budget: float = 1e9, kept=None, progress=lambda done, total: None
) -> np.ndarray:
    replay = Replay(run.config, run.task, run.records, CPU)
    objective = loss_of(run, run.task.graph.test[:1], np.ones(1))
    unrolling = Unrolling(replay, facts(run), budget, kept)
    return unrolling.explain([objective], progress=progress)[:, 0]


def retrained(run: SimpleNamespace, fact: int, change: float) -> float:
    weights = torch.ones(FACTS)
    weights[fact] += change
    model = train_plainly(run.config, run.task, weights)
    with torch.no_grad():
        return float(explained_loss(run.config, run.task, model, run.task.graph.test[0]))


KVS = {"loss__kind": "kvs_all"}
WITHOUT_DROPOUT = {"model__input_dropout": 0.0, "model__projection_dropout": 0.0}
SGD = {"optimizer__kind": "sgd", "optimizer__learning_rate": 0.5}
BCE = {"loss__function": "binary_cross_entropy"}
CASES = {
    "adam": {},
    "adam with decay": {"optimizer__weight_decay": 0.01},
    "adamw": {"optimizer__kind": "adamw", "optimizer__weight_decay": 0.1},
    "adagrad": {"optimizer__kind": "adagrad", "optimizer__learning_rate": 0.1},
    "adagrad by row": {"optimizer__kind": "adagrad", "optimizer__row_wise": True},
    "sgd": SGD,
    "sgd with momentum and decay": {
        "optimizer__kind": "sgd",
        "optimizer__momentum": 0.8,
        "optimizer__weight_decay": 0.01,
        "optimizer__learning_rate": 0.1,
    },
    "accumulation and clipping": {
        "training__gradient_accumulation": 3,
        "training__max_grad_norm": 0.5,
        "training__batch_size": 4,
    },
    "clipping of some steps": {"training__max_grad_norm": 2.0},
    "average": {"training__ema_decay": 0.9},
    "many tails": KVS,
    "many tails, binary": KVS | BCE,
    "triples in groups": {"loss__triples_per_row": 3},
    "one tail, binary": BCE | {"schedule__kind": "constant"},
    "no smoothing": {"loss__label_smoothing": 0.0},
    "relu": {"model__activation": "relu"},
    "distmult": {"model__kind": "distmult", "model__input_dropout": 0.2},
    "complex": {"model__kind": "complex"} | KVS,
    "transe, binary": {"model__kind": "transe"} | KVS | BCE,
    "tucker": {"model__kind": "tucker"},
    "fused loss": {"loss__implementation": "fused"},
    # Adam would turn the rounding in the gradients of cancelled shifts into steps of a retraining.
    "sgd without dropout": WITHOUT_DROPOUT | SGD,
}


@pytest.mark.parametrize("case", CASES)
def test_equals_central_differences_of_retrainings(case, tmp_path):
    run = train(tmp_path / "run", **CASES[case])
    influence = unroll(run)
    assert influence.shape == (2, FACTS)
    whole = influence.sum(0)
    facts = [*np.argsort(-np.abs(whole))[:2], 3]
    expected = [
        -(retrained(run, fact, STEP) - retrained(run, fact, -STEP)) / (2 * STEP) for fact in facts
    ]
    np.testing.assert_allclose(whole[facts], expected, rtol=1e-6, atol=1e-6 * np.abs(whole).max())


def test_a_last_batch_of_two_rows_is_a_constant(tmp_path, monkeypatch):
    """Its gradient and its batch statistics stay as they were when a fact's weight changes."""
    run = train(tmp_path / "run", training__batch_size=10)
    assert 2 * FACTS % 10 == 2
    plain, recorded, again = plain_training.weighted_loss, [], iter(())

    def frozen(config, task, model, batch, weights):
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        before = [b.clone() for b in buffers]
        loss = plain(config, task, model, batch, weights)
        if batch.num_examples >= FEW_ROWS:
            return loss
        parameters = list(model.parameters())
        if (known := next(again, None)) is None:
            gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
            shares = [b - 0.9 * was for b, was in zip(buffers, before, strict=True)]
            recorded.append(known := (gradient, shares))
        for b, was, share in zip(buffers, before, known[1], strict=True):
            b.copy_(0.9 * was + share)
        pairs = zip(parameters, known[0], strict=True)
        return torch.stack([(p * g).sum() for p, g in pairs if g is not None]).sum()

    monkeypatch.setattr(plain_training, "weighted_loss", frozen)
    retrained(run, 0, 0.0)
    whole, losses = unroll(run).sum(0), []
    facts = [*np.argsort(-np.abs(whole))[:2], 3]
    for fact in facts:
        for change in (-STEP, STEP):
            again = iter(recorded)
            losses.append(retrained(run, fact, change))
    expected = -np.diff(np.reshape(losses, (-1, 2)))[:, 0] / (2 * STEP)
    np.testing.assert_allclose(whole[facts], expected, rtol=1e-6, atol=1e-6 * np.abs(whole).max())


class InFloat64(Unrolling):
    """Goes back in float64 through the states of a float32 training."""

    def _leave_step(self, step, after, adjoints, totals) -> None:
        step = replace(step, before=in_float64(step.before))
        super()._leave_step(step, in_float64(after), adjoints, totals)

    def _last_state(self) -> State:
        return in_float64(super()._last_state())


def in_float64(state: State) -> State:
    groups = {name: getattr(state, name) for name in ("model", "optimizer", "average")}
    return replace(
        state,
        **{
            name: {key: t.double() if t.is_floating_point() else t for key, t in tensors.items()}
            for name, tensors in groups.items()
        },
    )


@pytest.mark.parametrize(
    "case", ["adam", "adagrad", "many tails, binary", "relu", "complex", "without dropout"]
)
def test_float32_equals_float64_over_the_same_states(case, tmp_path):
    torch.set_default_dtype(torch.float32)
    # The masks of feature maps are drawn in the maps' type; all other masks are the same.
    run = train(
        tmp_path / "run", model__feature_map_dropout=0.0, **CASES.get(case, WITHOUT_DROPOUT)
    )
    losses = [loss_of(run, run.task.graph.test[:1], np.ones(1))]
    replay = Replay(run.config, run.task, run.records, CPU)
    single, double = (
        kind(replay, facts(run), 1e9).explain(losses).sum((0, 1)) for kind in (Unrolling, InFloat64)
    )
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, rtol=0.0, atol=1e-3 * np.abs(double).max())


def test_plain_loop_is_the_product_s(tmp_path):
    run = train(tmp_path / "run", training__max_grad_norm=1.0, training__gradient_accumulation=2)
    model = train_plainly(run.config, run.task, torch.ones(FACTS))
    for name, value in model.named_parameters():
        trained = run.trainer.model.get_parameter(name)
        torch.testing.assert_close(value, trained, rtol=1e-10, atol=1e-12)


def test_blocks_of_an_interval_change_nothing(tmp_path):
    run = train(tmp_path / "run", training__checkpoint_frequency=0)
    told: list[tuple[int, int]] = []
    whole, blocks = unroll(run), unroll(run, budget=0.0, progress=lambda *done: told.append(done))
    np.testing.assert_array_equal(whole, blocks)
    (last,) = run.records
    assert told[-1] == (3 * last.step, 3 * last.step)


def test_several_losses_in_one_pass(tmp_path):
    run = train(tmp_path / "run", **KVS)
    triples = run.task.graph.test[:3]
    weights = np.array([0.5, 2.0, -1.0])
    one_each = [loss_of(run, triples[i : i + 1], np.ones(1)) for i in range(3)]
    together = loss_of(run, triples, weights)
    unrolling = Unrolling(Replay(run.config, run.task, run.records, CPU), facts(run), 1e9)
    found = unrolling.explain([*one_each, together]).sum(0)
    np.testing.assert_allclose(weights @ found[:3], found[3], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[0], unroll(run).sum(0), rtol=1e-12)


def test_tail_and_head_add_up_to_both(tmp_path):
    run = train(tmp_path / "run")
    triple = run.task.graph.test[:1]
    losses = [loss_of(run, triple, np.ones(1), way) for way in ("tail", "head", "both")]
    queries = [
        run.trainer.model.eval().queries(*map(torch.tensor, query)) for query in asked(run, triple)
    ]
    for loss, query, answer in zip(losses, queries, (triple[0, 2], triple[0, 0]), strict=False):
        scores = run.trainer.model.scores(query)[0]
        expected = row(run.config, scores, [int(answer)])
        torch.testing.assert_close(loss(run.trainer.model), expected)
    unrolling = Unrolling(Replay(run.config, run.task, run.records, CPU), facts(run), 1e9)
    tail, head, both = unrolling.explain(losses).sum(0)
    assert np.abs(tail - head).max() > 0.1 * np.abs(both).max()
    np.testing.assert_allclose(tail + head, both, rtol=1e-9, atol=1e-12)


def asked(run: SimpleNamespace, triple: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Return entity and relation of the tail's question and of the head's question."""
    head, relation, tail = map(int, triple[0])
    return [([head], [relation]), ([tail], [relation + run.task.graph.num_relations])]


def test_a_regularizer_is_refused(tmp_path):
    run = train(tmp_path / "run", model__kind="complex", loss__regularizer="n3")
    with pytest.raises(ConfigError, match=r"loss\.regularizer"):
        UnrolledTracer(run.task, run.config, run.records, CPU, tmp_path)


def test_a_killed_pass_goes_on_behind_the_last_interval(tmp_path):
    run = train(tmp_path / "run", training__checkpoint_frequency=1, training__ema_decay=0.9)
    kept = KeptInFile(tmp_path / "cache" / "pass.safetensors", CPU)
    total = unroll(run)

    def kill(done: int, total: int) -> None:
        if done > 0.6 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unroll(run, kept=kept, progress=kill)
    left = kept.read()
    assert left is not None
    assert left.intervals_left == 2
    told: list[int] = []
    resumed = unroll(run, kept=kept, progress=lambda done, total: told.append(done / total))
    assert told[0] > 0.5
    np.testing.assert_array_equal(resumed, total)
    assert not kept.path.exists()


def test_a_replay_that_differs_is_refused_with_the_step(tmp_path):
    run = train(tmp_path / "run")
    path = run.records[0].path
    edit_weights(path, lambda tensors: tensors["relation.weight"][0, 0].add_(1e-12))
    with pytest.raises(CheckpointError, match=r"epoch-0004\b.*\bstep 28\b"):
        unroll(run)


def test_a_plateau_sees_the_recorded_validations(tmp_path):
    run = train(
        tmp_path / "run",
        schedule__kind="plateau",
        schedule__patience=0,
        schedule__factor=0.5,
        training__checkpoint_frequency=0,
    )
    assert run.trainer.schedule.current < 1.0
    assert np.isfinite(unroll(run)).all()  # a wrong rate would be refused


def test_parameters_that_never_had_a_gradient_have_no_derivative(tmp_path):
    run = train(tmp_path / "run", extra_relation=True)
    seconds = run.trainer.optimizer.state[run.trainer.model.relation.weight]["exp_avg_sq"]
    assert (seconds == 0).any()
    assert np.isfinite(unroll(run)).all()


TUNED = {
    "conve, 1-vs-all": {},
    "conve, k-vs-all": KVS | BCE,
    "complex, k-vs-all": CASES["complex"],
    "rotate, 1-vs-all": {"model__kind": "rotate"},
    "average, accumulation and clipping": CASES["average"] | CASES["accumulation and clipping"],
}
SEEDS = (3, 8)


def tuned(run: SimpleNamespace, folder: Path, **influence: object) -> TunedTracer:
    settings = {"influence.direction": "both", "influence.top_k": 0}
    config = with_settings(run.config, settings | influence)
    recipe = Recipe(epochs=3, learning_rate=0.01)
    origin = Manifest(0, 0, 0.0, run.task.kind, {}, "", run.task.data_fingerprint)
    model = run.trainer.model.eval()
    retrainer = Retrainer(run.task.graph, fine_tuning(config, recipe), origin, CPU, model)
    return TunedTracer(run.task, config, run.records, CPU, folder, retrainer, SEEDS)


def scores_of(tracer: TunedTracer, tests: Triples, **further: Any) -> np.ndarray:
    (found,) = tracer.explain(tests, **further)
    order = np.argsort(found.proponents.train, axis=1)
    return np.take_along_axis(found.proponents.influence, order, 1)


@pytest.mark.parametrize("case", TUNED)
def test_tuned_equals_central_differences_of_whole_fine_tunings(case, tmp_path):
    run = train(tmp_path / "run", **TUNED[case])
    tracer, tests = tuned(run, tmp_path / "kept"), run.task.graph.test[:2]
    found = scores_of(tracer, tests)

    def losses(seed: int, fact: int, change: float) -> np.ndarray:
        weights = torch.ones(FACTS)
        weights[fact] += change
        config = tracer.retrainer.configured(seed)
        model = train_plainly(config, run.task, weights, run.trainer.model)
        with torch.no_grad():
            return np.array([float(explained_loss(config, run.task, model, t)) for t in tests])

    for fact in (*np.argsort(-np.abs(found[0]))[:2], 3):
        slopes = [losses(seed, fact, -STEP) - losses(seed, fact, STEP) for seed in SEEDS]
        expected = np.mean(slopes, axis=0) / (2 * STEP)
        np.testing.assert_allclose(
            found[:, fact], expected, rtol=1e-6, atol=1e-6 * np.abs(found).max()
        )


def test_what_is_differentiated_is_the_fine_tuning_that_takes_facts_away(tmp_path):
    run = train(tmp_path / "run")
    tracer, folder = tuned(run, tmp_path / "kept"), tmp_path / "tuning"
    config, records = tracer.retrainer.record(SEEDS[0], folder)
    (model,) = tracer.retrainer.train(SEEDS[0], [NOTHING])
    replay = Replay(config, run.task, records, CPU)
    replay.begin(len(records))
    examiner = Examiner(run.task.graph, config, run.task.graph.test)
    here, there = (examiner.examine(each.eval()) for each in (replay.trainer.model, model))
    np.testing.assert_allclose(here.loss, there.loss, rtol=1e-9)
    assert len(records) == 3


def test_tests_in_parts_and_candidates_change_no_score(tmp_path):
    run = train(tmp_path / "run")
    tests = run.task.graph.test[:3]
    whole = scores_of(tuned(run, tmp_path), tests)
    told: list[float] = []
    parts = tuned(run, tmp_path, **{"influence.memory_budget_mib": 1e-3})
    found = scores_of(parts, tests, progress=lambda done, total: told.append(done / total))
    np.testing.assert_allclose(found, whole, rtol=1e-9)
    assert told == sorted(told)
    assert told[-1] == 1.0
    few = np.zeros((3, FACTS), bool)
    few[:, [2, 7]] = True
    top = tuned(run, tmp_path, **{"influence.top_k": 5})
    (listed,) = top.explain(tests, candidates=few)
    for side in (listed.proponents, listed.opponents):
        assert set(side.train.ravel()) <= {-1, 2, 7}
    assert (listed.proponents.train >= 0).sum() + (listed.opponents.train >= 0).sum() == 6


def test_a_killed_fine_tuning_goes_on_where_it_was(tmp_path):
    run = train(tmp_path / "run")
    tracer, tests = tuned(run, tmp_path / "kept"), run.task.graph.test[:1]
    total = scores_of(tracer, tests)

    def kill(done: int, total: int) -> None:
        if done > 0.8 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scores_of(tracer, tests, progress=kill)
    told: list[float] = []
    again = scores_of(tracer, tests, progress=lambda done, total: told.append(done / total))
    assert told[0] > 0.5
    np.testing.assert_array_equal(again, total)
    assert not list((tmp_path / "kept").iterdir())


@dataclass(frozen=True)
class ToyBatch:
    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def num_examples(self) -> int:
        return len(self.inputs)

    count = num_examples

    def to(self, device: torch.device) -> "ToyBatch":
        return self

    def pin_memory(self) -> "ToyBatch":
        return self

    def units(self) -> dict[str, int]:
        return {"examples": len(self.inputs)}

    def describe(self) -> str:
        return "rows"


class ToyRows:
    """Rows of a regression, as the examples of a task without a graph."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(21, 4, generator=generator)
        self.targets = self.inputs.sum(1).sin()

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: np.ndarray) -> ToyBatch:
        ids = torch.from_numpy(indices)
        return ToyBatch(self.inputs[ids], self.targets[ids])


class ToyTask:
    """A regression by a small network with batch normalisation and dropout."""

    kind = dataset = "toy"
    data_fingerprint = "0" * 16

    def __init__(self, weights: torch.Tensor | None = None) -> None:
        self.rows = ToyRows()
        self.weights = torch.ones(21) if weights is None else weights

    def describe(self) -> dict[str, str]:
        return {}

    def has_examples(self, split: str) -> bool:
        return False

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        return {}

    def example_values(
        self, model: nn.Module, split: str, name: str, device: torch.device
    ) -> ExampleValues | None:
        return None

    def write_artifacts(self, folder: Path) -> None:
        raise NotImplementedError

    def write_report(self, split: str, folder: Path) -> None:
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        layers = (
            nn.Linear(4, 5, bias=False),
            nn.BatchNorm1d(5),
            nn.SiLU(),
            nn.Dropout(0.2),
            nn.Linear(5, 1),
        )
        return nn.Sequential(*layers)

    def train_examples(self) -> ToyRows:
        return self.rows

    def example_losses(self, model: nn.Module, batch: ToyBatch) -> torch.Tensor:
        return (model(batch.inputs)[:, 0] - batch.targets).square()

    def loss(self, model: nn.Module, batch: ToyBatch) -> LossSum:
        fact = (batch.inputs[:, None] == self.rows.inputs).all(2).nonzero()[:, 1]
        losses = self.example_losses(model, batch) * self.weights[fact]
        return LossSum(losses.sum(), batch.count)


def test_any_task_by_its_example_losses_against_the_product_s_own_trainer(tmp_path):
    config = from_mapping(
        {"data": {"name": "umls"}},
        {
            "evaluation.enabled": False,
            "optimizer.learning_rate": 0.02,
            "training.batch_size": 8,
            "training.num_epochs": 4,
            "training.checkpoint_frequency": 2,
            "training.device": "cpu",
            "tracking.log_mfu": False,
        },
    )

    def objective(model: nn.Module) -> torch.Tensor:
        return model(torch.ones(1, 4)).square().sum()

    def trained(name: str, weights: torch.Tensor) -> SimpleNamespace:
        return train_on(config, ToyTask(weights), tmp_path / name)

    def loss_of(name: str, weights: torch.Tensor) -> float:
        return float(objective(trained(name, weights).trainer.model.eval()).detach())

    run = trained("run", torch.ones(21))
    replay = Replay(config, run.task, run.records, CPU)
    found = Unrolling(replay, ExampleFacts(run.task), 0.0).explain([objective]).sum((0, 1))
    for fact in (0, 8, 20):
        up, down = (
            loss_of(f"{fact}{change}", torch.ones(21).index_fill(0, torch.tensor(fact), 1 + change))
            for change in (STEP, -STEP)
        )
        assert found[fact] == pytest.approx(-(up - down) / (2 * STEP), rel=1e-6, abs=1e-8)
