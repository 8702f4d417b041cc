"""Stacked retraining equals the product's trainer; without dropped facts it equals the run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.graph_models import GRAPH_MODELS
from clew.config.load import from_mapping, with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.influence.outcomes import Examiner, WithoutFacts
from clew.influence.retraining import KeptRetrainings, Retrainer, train_stack, why_not_stacked
from clew.influence.verify import (
    Group,
    Queue,
    agreement_of,
    effects_of,
    fine_tuning,
    groups_of,
    recipe_of,
    sharing,
)
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_report import Term, TripleRecord
from clew.runs.validation_record import Measured, Recipe
from clew.runs.verification import (
    Answer,
    Effect,
    Kind,
    Pair,
    Removal,
    Verification,
    VerifiedTriple,
    _percent,
)
from clew.training.manifest import Manifest
from clew.training.task import Task
from tests.oracles.plain_training import train_plainly

NOTHING = np.empty(0, np.int64)
MODELS: dict[str, dict[str, Any]] = {
    # The gradient of a bias before batch normalisation is rounding noise; Adam turns it into steps.
    "conve": {"output_channels": 4, "embedding_dim": 12, "convolution_bias": False},
    "distmult": {"embedding_dim": 8, "input_dropout": 0.3},
    "complex": {"embedding_dim": 8, "input_dropout": 0.2, "entity_bias": True},
}


def graph_of(num_facts: int = 60) -> KnowledgeGraph:
    generator = np.random.default_rng(0)
    triples = generator.integers(0, [12, 3, 12], (4 * num_facts, 3))
    triples = np.unique(triples, axis=0)[generator.permutation(num_facts)].astype(np.int32)
    return KnowledgeGraph(
        "random",
        Vocabulary.from_names("entity", [f"e{i}" for i in range(12)]),
        Vocabulary.from_names("relation", ["a", "b", "c"]),
        train=triples,
        valid=triples[:5],
        test=triples[:8],
    )


def config_of(kind: str = "conve", **changes: Any) -> RunConfig:
    content: dict[str, Any] = {
        "data": {"kind": "triples", "name": "umls"},
        "model": {"kind": kind, **MODELS.get(kind, {"embedding_dim": 8})},
        "loss": {"kind": "kvs_all", "function": "softmax_cross_entropy"},
        "optimizer": {"kind": "adam", "learning_rate": 0.02},
        "schedule": {"kind": "warmup_cosine"},
        "training": {"num_epochs": 4, "batch_size": 16, "seed": 3, "device": "cpu"},
        "tracking": {"log_mfu": False},
    }
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return from_mapping(content, overrides, source="a test")


def retrainer(config: RunConfig, graph: KnowledgeGraph) -> Retrainer:
    origin = Manifest(
        step=0, epoch=0, learning_rate_weight=0.0, task="link_prediction",
        config=config.model_dump(mode="json"), config_hash="", data_fingerprint=graph.fingerprint,
        optimizer="adam", device="cpu", clew_version="", commit="", run_id="",
    )  # fmt: skip
    return Retrainer(graph, config, origin, torch.device("cpu"))


def one_by_one(config: RunConfig, dropped: list[np.ndarray], seed: int) -> list[dict[str, Any]]:
    graph = graph_of()
    source = retrainer(config, graph)
    own = source.configured(seed)
    return [source._train_one(own, facts).state_dict() for facts in dropped]


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-4, rtol=2e-3)


LOSSES = ("kvs_all", "one_vs_all")
FUNCTIONS = ("softmax_cross_entropy", "binary_cross_entropy")


@pytest.mark.parametrize(
    ("kind", "function", "loss"),
    [
        (kind, function, LOSSES[(n + m) % 2])
        for n, kind in enumerate(GRAPH_MODELS)
        for m, function in enumerate(FUNCTIONS)
    ],
)
def test_stack_equals_the_products_trainer(kind: str, function: str, loss: str) -> None:
    """The cases cover each pair of model, function and loss."""
    config = config_of(kind, loss__kind=loss, loss__function=function, training__max_steps=6)
    dropped = [NOTHING, np.arange(0, 60, 2), np.arange(45)]
    expected = one_by_one(config, dropped, seed=5)
    stack = list(train_stack(graph_of(), retrainer(config, graph_of()).configured(5), dropped))
    for model, single in zip(stack, expected, strict=True):
        assert_equal(model.state_dict(), single)
    assert not torch.allclose(expected[0]["entity.weight"], expected[1]["entity.weight"])


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer__kind": "adamw", "optimizer__weight_decay": 0.1},
        {"optimizer__kind": "sgd", "optimizer__momentum": 0.9},
        {"optimizer__kind": "adagrad", "schedule__kind": "exponential"},
        {"data__inverse_relations": False},
    ],
)
def test_stack_follows_optimizer_and_schedule(changes: dict[str, Any]) -> None:
    config = config_of("distmult", **changes)
    dropped = [NOTHING, np.arange(0, 60, 3)]
    stack = retrainer(config, graph_of()).train(3, dropped)
    for model, single in zip(stack, one_by_one(config, dropped, seed=3), strict=True):
        assert_equal(model.state_dict(), single)


@pytest.mark.parametrize("loss", ["kvs_all", "one_vs_all"])
def test_dropping_nothing_is_the_products_own_training(loss: str) -> None:
    config, graph = config_of(loss__kind=loss), graph_of()
    (without,) = one_by_one(config, [NOTHING], seed=3)

    class Plain(WithoutFacts):
        loss = LinkPrediction.loss

    source = retrainer(config, graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clew.influence.retraining.WithoutFacts", Plain)
        plain = source._train_one(source.configured(3), NOTHING).state_dict()
    assert all(torch.equal(without[name], plain[name]) for name in plain)


def batches(task: Task[Any]) -> Any:
    examples = task.train_examples()
    return examples.batch(np.arange(len(examples)))


@pytest.mark.parametrize("terms", [{}, {"regularizer": "n3", "relation_prediction_weight": 0.5}])
@pytest.mark.parametrize("loss", ["kvs_all", "one_vs_all"])
def test_loss_without_facts_is_that_of_the_smaller_graph(
    loss: str, terms: dict[str, object]
) -> None:
    """Without batch normalisation, rows without positives have no effect."""
    changes = {f"loss__{name}": value for name, value in terms.items()}
    config = config_of("complex", loss__kind=loss, model__input_dropout=0.0, **changes)
    graph = graph_of()
    assert bool(why_not_stacked(config, graph.num_entities)) == bool(terms)
    dropped = np.arange(0, 60, 2)
    task = WithoutFacts(graph, config, dropped)
    smaller = KnowledgeGraph(
        "smaller", graph.entities, graph.relations,
        train=np.delete(graph.train, dropped, 0), valid=graph.valid, test=graph.test,
    )  # fmt: skip
    other = LinkPrediction(smaller, config)
    torch.manual_seed(0)
    model = task.build_model()
    found, expected = task.loss(model, batches(task)), other.loss(model, batches(other))
    torch.testing.assert_close(found.total, expected.total)
    assert found.count > expected.count


def test_all_facts_dropped_leave_a_loss_of_zero() -> None:
    task = WithoutFacts(graph_of(), config_of(), np.arange(60))
    assert task.loss(task.build_model(), batches(task)).total.item() == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizations__use_mixed_precision": True}, "optimizations.use_mixed_precision is set"),
        ({"training__gradient_accumulation": 2}, "training.gradient_accumulation is set"),
        ({"training__max_grad_norm": 1.0}, "training.max_grad_norm is set"),
        ({"training__batch_size": 20_000}, "a batch keeps 2,120,000 numbers, more than 600,000"),
    ],
)
def test_what_cannot_be_stacked_is_trained_one_at_a_time(changes: Any, reason: str) -> None:
    config = config_of(**changes)
    assert why_not_stacked(config, 10).startswith(reason)
    assert retrainer(config, graph_of()).models_at_once == 1


def test_one_at_a_time_and_together_are_the_same_to_the_caller() -> None:
    graph, dropped = graph_of(), [NOTHING, np.arange(10)]
    clipped = retrainer(config_of("distmult", training__max_grad_norm=1e6), graph)
    stacked = retrainer(config_of("distmult"), graph)
    assert clipped.models_at_once == 1 < stacked.models_at_once
    for one, other in zip(clipped.train(3, dropped), stacked.train(3, dropped), strict=True):
        assert_equal(one.state_dict(), other.state_dict())


def test_a_course_that_validation_steers_is_refused() -> None:
    config = config_of(training__early_stopping_patience=3)
    with pytest.raises(ConfigError, match=r"trained with training\.early_stopping_patience"):
        retrainer(config, graph_of())


@pytest.mark.parametrize(("clipped", "shared"), [(None, False), (1e6, False), (None, True)])
def test_going_on_without_facts_is_a_plain_loop_that_drops_them(
    clipped: float | None, shared: bool, tmp_path: Path
) -> None:
    """The product's falls and ranks equal those of explicit steps, trained together or alone.

    Explanations that share a run lose the facts of all of them.
    """
    graph = graph_of()
    changes = {"model__input_dropout": 0.0, "loss__kind": "one_vs_all"}
    config = config_of("complex", training__max_grad_norm=clipped, **changes)
    task = LinkPrediction(graph, config)
    start = train_plainly(config, task, torch.ones(60))
    recipe = recipe_of(config, 8, 0.05)
    going_on = fine_tuning(config, recipe)
    assert recipe_of(config, None, None) == Recipe(epochs=1, learning_rate=0.02)
    tests = graph.test[:2]
    groups = [Group(0, "strongest", np.arange(5)), Group(1, "touching", np.arange(20, 50))]
    if shared:
        first, second = groups
        groups = [replace(first, others=second.facts), replace(second, others=first.facts)]
    source = retrainer(going_on, graph)
    source = Retrainer(graph, going_on, source.origin, source.device, start.eval())
    kept = [KeptRetrainings(tmp_path / str(place), str(place)) for place in range(2)]
    queue = Queue(source, Examiner(graph, going_on, tests), groups, (7, 8), kept)
    assert len(queue.missing) == (4 if shared else 6), "two seeds with all facts, and without"
    queue.run(lambda: None)
    assert not queue.missing
    assert (source.models_at_once > 1) == (clipped is None)

    def answers(facts: np.ndarray, seed: int) -> list[tuple[float, float]]:
        weights = torch.ones(60)
        weights[facts] = 0.0
        own = with_settings(going_on, {"training.seed": seed})
        model = train_plainly(own, task, weights, start).eval()
        return [plain_answer(model, graph, test) for test in tests]

    for group, effect in zip(groups, effects_of([queue], "tail"), strict=True):
        before, after = (
            np.array([answers(facts, seed)[group.test] for seed in (7, 8)])
            for facts in (NOTHING, np.union1d(group.facts, group.others))
        )
        falls = before[:, 0] - after[:, 0]
        assert effect.fall.mean == pytest.approx(falls.mean(), abs=1e-4)
        assert effect.before.rank == before[:, 1].mean()
        assert effect.after.rank == after[:, 1].mean()
        # Each explanation has one group here, so its interval is Student's t of two seeds.
        width = 12.7062 * falls.std(ddof=1) / 2**0.5
        assert effect.fall.half_width == pytest.approx(width, abs=2e-3)
    assert max(abs(effect.fall.mean) for effect in effects_of([queue], "tail")) > 0.05

    # An ensemble's effects are means over its members, each with its own seeds here.
    members = [replace(queue, seeds=(seed,)) for seed in (7, 8)]
    assert effects_of(members, "tail") == effects_of([queue], "tail")


@torch.no_grad()
def plain_answer(model: Any, graph: KnowledgeGraph, test: np.ndarray) -> tuple[float, float]:
    """Return the log-probability and the filtered rank of a tail."""
    head, relation, tail = (int(part) for part in test)
    scores = model.scores(model.queries(torch.tensor([head]), torch.tensor([relation])))[0]
    known = {
        int(t)
        for triples in (graph.train, graph.valid, graph.test)
        for h, r, t in triples
        if (h, r) == (head, relation)
    }
    others = [e for e in range(graph.num_entities) if e != tail and e not in known]
    better = sum(float(scores[e]) > float(scores[tail]) for e in others)
    return float(scores.double().log_softmax(0)[tail]), 1.0 + better


def test_groups_are_the_strongest_facts_siblings_and_neighbours() -> None:
    """A list shorter than twenty gives smaller groups; facts that do not exist are no group."""
    graph = graph_of()
    listed = np.arange(36, 29, -1)
    for place, test in enumerate(graph.test[:3]):
        found = list(groups_of(graph, graph.test, place, listed))
        top = [group.facts.tolist() for group in found if group.kind == "strongest"]
        assert top == [[36], [32, 33, 34, 35, 36], [*range(30, 37)]]
        ends = graph.train[:, [0, 2]]
        near = (ends == test[0]).any(1) | (ends == test[2]).any(1)
        same = (graph.train[:, 0] == test[0]) | (graph.train[:, 2] == test[2])
        same &= graph.train[:, 1] == test[1]
        is_other = (graph.train != test).any(1)
        is_other[listed] = False
        by_kind = {group.kind: group for group in found}
        for kind, wanted in (("touching", near & is_other), ("siblings", same & is_other)):
            assert kind in by_kind or not wanted.any()
            if kind in by_kind:
                assert len(by_kind[kind].facts) == min(7, wanted.sum())
                assert by_kind[kind].drawn_from == wanted.sum()
                assert wanted[by_kind[kind].facts].all()
    assert not [g for g in groups_of(graph, graph.test, 0, listed[:0]) if g.kind == "strongest"]


def test_explanations_share_a_run_if_no_fact_of_one_has_an_end_of_the_other() -> None:
    """Three explanations of pairs of entities; the third's facts have an end of the first."""
    facts = [(0, 0, 9), (1, 0, 9), (2, 0, 9), (3, 0, 9), (4, 0, 1), (5, 0, 9)]
    graph = replace(graph_of(), train=np.array(facts, np.int32))
    tests = np.array([(0, 0, 1), (2, 0, 3), (4, 0, 5)], np.int32)
    own = [(0, [0]), (0, [0, 1]), (1, [2, 3]), (1, [2]), (2, [4, 5]), (2, [5])]
    groups = [Group(test, "strongest", np.array(facts)) for test, facts in own]
    found = sharing(graph, tests, groups, 5)
    assert [(group.test, group.facts.tolist()) for group in found] == own
    assert [group.taken.tolist() for group in found] == [
        [0], [0, 1, 2, 3, 5], [0, 1, 2, 3, 5], [2, 4, 5], [2, 4, 5], [0, 1, 2, 3, 5]
    ]  # fmt: skip
    for most in (1, 2):
        runs = [tuple(group.taken.tolist()) for group in sharing(graph, tests, groups, most)]
        assert max(runs.count(run) for run in runs) == most


def test_controls_hold_neither_the_triple_nor_a_strongest_fact_nor_a_copy() -> None:
    """Nine facts at the ends: the triple, twice; two strongest, one of them twice; four others."""
    siblings = [(0, 0, tail) for tail in (2, 3, 4)]
    facts = [(0, 0, 1), *siblings, (0, 0, 2), (5, 1, 1), (0, 0, 1), (6, 1, 0), (1, 1, 7), (8, 1, 9)]
    train = np.array(facts, np.int32)
    graph = replace(graph_of(), train=train)
    found = [*groups_of(graph, train[:1], 0, np.array([1, 5]))]
    assert [(g.kind, g.facts.tolist()) for g in found if g.kind != "touching"] == [
        ("strongest", [1]), ("strongest", [1, 5]), ("siblings", [2, 3])
    ]  # fmt: skip
    copied = groups_of(graph, train[:1], 0, np.array([1, 4, 5]))
    assert [g.facts.tolist() for g in copied if g.kind == "strongest"] == [[1], [1, 5]]
    touching = found[-1]
    assert touching.drawn_from == 4
    assert len(touching.facts) == 2
    assert set(touching.facts.tolist()) < {2, 3, 7, 8}
    every = [*groups_of(graph, train[:1], 0, np.array([1, 5, 2, 3, 7, 8]))]
    assert {group.kind for group in every} == {"strongest"}


def verdict_of(*removals: tuple[Kind, int, float, int | None], scored: int | None = None) -> str:
    """Return the verdict on groups of a kind, a number of facts, a fall, and `drawn_from`."""
    answer, first, made = Answer(rank=1, log_probability=-1), 0, []
    for kind, number, fall, drawn_from in removals:
        effect = Effect(before=answer, after=answer, fall=Measured(mean=fall, half_width=0.1))
        facts = tuple(range(first, first + number))
        made.append(Removal(kind=kind, facts=facts, tuned=effect, drawn_from=drawn_from))
        first += number
    term = Term("e", "e")
    triple = TripleRecord(term, term, term)
    test = VerifiedTriple(
        test=triple, direction="tail", model=answer, removals=tuple(made), scored=scored
    )
    recipe = Recipe(epochs=1, learning_rate=0.1)
    found = Verification(run_id="t", source_run="m", recipe=recipe, seeds=2, tests=(test,))
    return found.verdict(test)


def test_a_control_of_less_than_half_as_many_facts_leaves_it_open() -> None:
    top: tuple[Kind, int, float, int | None] = ("strongest", 7, 2.0, None)
    assert verdict_of(top, ("touching", 3, 0.0, 3)) == (
        "Open: 3 other facts at its ends, too few to compare with its 7 strongest facts."
    )
    assert verdict_of(top, ("touching", 4, 0.0, 4)) == (
        "Confirmed by fine-tuning: its 7 strongest facts cost +2.00 more log-probability than all "
        "4 other facts that touch an end (± 0.14)."
    )
    assert "than 7 random facts that touch" in verdict_of(top, ("touching", 7, 0.0, 8))
    assert "than all 7 other facts that" in verdict_of(top, ("touching", 7, 0.0, 7))
    assert "than 7 random facts that touch" in verdict_of(top, ("touching", 7, 0.0, None))
    assert verdict_of(top).startswith("Open: 0 other facts at its ends, too few to compare with ")


@pytest.mark.parametrize(
    ("probability", "percent"),
    [(1.0, "100"), (0.99999, "99.99"), (0.9951, "99.51"), (0.5, "50"), (0.0312, "3.1")],
)
def test_no_probability_is_rounded_to_certainty(probability: float, percent: str) -> None:
    assert _percent(math.log(probability)) == percent


@pytest.mark.parametrize(
    ("scored", "which"), [(3, "none of the 3 scored facts"), (None, "no scored fact")]
)
def test_it_is_said_of_how_many_facts_none_raised_the_answer(
    scored: int | None, which: str
) -> None:
    said = verdict_of(("touching", 4, 0.0, 4), scored=scored)
    assert said == f"Nothing to compare: {which} raised the answer."


def test_agreement_is_spearmans_and_the_slope_through_zero() -> None:
    generator = np.random.default_rng(0)
    tuned = generator.random(40)
    recipe = Recipe(epochs=1, learning_rate=0.1)
    pairs = [
        Pair(test=(str(i // 4), "r", "t"), facts=(i,), tuned=x, whole=1.5 * x)
        for i, x in enumerate(tuned.tolist())
    ]
    found = agreement_of(recipe, tuple(pairs))
    assert found is not None
    assert (found.correlation, found.factor) == pytest.approx((1.0, 1.5))
    assert found.low == pytest.approx(found.high) == pytest.approx(1.5)
    assert (found.num_tests, found.corrects) == (10, True)
    few = agreement_of(recipe, tuple(pairs[:8]))
    assert few is not None
    assert not few.corrects
    assert ("95 %" in found.sentence, "95 %" in few.sentence) == (True, False)
    assert agreement_of(recipe, tuple(pairs[:2])) is None


def test_only_fine_tuned_sizes_are_corrected_and_called_so() -> None:
    recipe = Recipe(epochs=1, learning_rate=0.1)
    tuned = np.random.default_rng(2).random(12).tolist()
    pairs = tuple(
        Pair(test=(str(i), "r", "t"), facts=(i,), tuned=x, whole=1.5 * x)
        for i, x in enumerate(tuned)
    )
    one = tuple(pair.model_copy(update={"test": ("e", "r", "t")}) for pair in pairs)
    known, few = agreement_of(recipe, pairs), agreement_of(recipe, one)
    term = Term("e", "e")
    answer = Answer(rank=1, log_probability=-1)
    effect = Effect(before=answer, after=answer, fall=Measured(mean=0.1, half_width=0.01))
    said, falls = {}, {}
    for whole in (None, effect):
        removal = Removal(kind="strongest", facts=(1,), tuned=effect, whole=whole)
        test = VerifiedTriple(
            test=TripleRecord(term, term, term), direction="tail", model=answer, removals=(removal,)
        )
        found = Verification(
            run_id="t", source_run="m", recipe=recipe, seeds=2, tests=(test,), agreement=known
        )
        said[whole is not None] = found.method
        falls[whole is not None] = found.fall(removal)[1].mean
    assert falls == {False: pytest.approx(0.15), True: 0.1}
    assert ["corrected by it" in said[is_whole] for is_whole in (False, True)] == [True, False]
    assert ["this run" in said[is_whole] for is_whole in (False, True)] == [True, False]
    for agreement in (few, None):
        unscaled = found.model_copy(update={"agreement": agreement, "tests": ()})
        assert "not corrected" in unscaled.method
