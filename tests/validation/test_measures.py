"""Measures against scipy and manual results; a linear model's true effects reach a score of 1."""

import numpy as np
import pytest
from scipy.stats import spearmanr, ttest_1samp

from clew.influence.outcomes import (
    Outcomes,
    adamic_adar,
    ceiling,
    datamodelling_scores,
    fall_for_each_unit,
    measured,
    measured_over_both,
    random_scores,
    rank_correlations,
    resampled_scores,
    siblings,
    strongest,
    touching,
)
from clew.influence.retraining import KeptRetrainings, Retraining
from clew.link_prediction.triples import KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.validation_record import Measured
from clew.workflows.explaining.validation_plan import (
    ValidationPlan,
    deletion_effects,
    deletions,
    random_subsets,
)


def test_rank_correlations_are_scipys_with_ties() -> None:
    generator = np.random.default_rng(0)
    first = generator.integers(0, 5, (7, 20)).astype(float)
    second = first + generator.normal(size=first.shape)
    found = rank_correlations(first, second)
    expected = [spearmanr(one, other).statistic for one, other in zip(first, second, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_equal_values_correlate_with_nothing() -> None:
    assert rank_correlations(np.ones((1, 4)), np.arange(4.0)[None]).tolist() == [0.0]


def test_interval_is_that_of_students_t() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 25)
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = measured(values)
    assert found.mean == pytest.approx((low + high) / 2)
    assert found.half_width == pytest.approx((high - low) / 2)


def test_one_test_has_no_interval() -> None:
    assert measured(np.array([0.4])) == Measured(mean=0.4, half_width=None)
    draws = resampled_scores([np.ones((1, 3))], np.ones((3, 1)))[:, 0]
    assert measured_over_both(0.4, draws, 1, 3) == Measured(mean=0.4, half_width=None)


def test_resampled_scores_are_those_of_tests_and_subsets_drawn_again() -> None:
    generator = np.random.default_rng(3)
    predicted, losses = generator.normal(size=(2, 4, 6)), generator.normal(size=(6, 4))
    num_draws = 20
    found = resampled_scores(list(predicted), losses, num_draws)
    drawn, expected = np.random.default_rng(0), []
    for _ in range(num_draws):
        tests = [int(test) for test in drawn.integers(4, size=(4, 1))[:, 0]]
        subsets = [int(subset) for subset in drawn.integers(6, size=6)]
        if len(set(subsets)) == 1:  # of equal values, which correlate with nothing
            expected.append([0.0, 0.0])
            continue
        expected.append(
            [
                sum(
                    spearmanr([form[t][s] for s in subsets], [losses[s][t] for s in subsets])[0]
                    for t in tests
                )
                / len(tests)
                for form in predicted.tolist()
            ]
        )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    mean = sum(each[0] for each in expected) / num_draws
    spread = (sum((each[0] - mean) ** 2 for each in expected) / (num_draws - 1)) ** 0.5
    half_width = measured_over_both(0.1, found[:, 0], 4, 6).half_width
    assert half_width == pytest.approx(3.182446 * spread, rel=1e-6), "Student's t, 3 degrees"


def test_an_interval_over_tests_alone_is_too_narrow_where_subsets_are_shared() -> None:
    """About 95 % of the intervals should contain the truth, here 0."""
    generator, found = np.random.default_rng(4), {"tests": 0, "both": 0}
    for _ in range(60):
        shared = generator.normal(size=(2, 1, 20))  # what a subset does to every test triple
        predicted, effect = shared + generator.normal(size=(2, 30, 20))
        correlations = rank_correlations(predicted, effect)
        mean = float(correlations.mean())
        draws = resampled_scores([predicted], effect.T, 50)[:, 0]
        both = measured_over_both(mean, draws, 30, 20)
        for name, interval in (("tests", measured(correlations)), ("both", both)):
            found[name] += abs(mean) <= (interval.half_width or 0.0)
    assert found["both"] >= 54
    assert found["tests"] < 45


def least_squares_losses(
    features: np.ndarray, labels: np.ndarray, tests: np.ndarray, dropped: np.ndarray
) -> np.ndarray:
    """Return squared errors of ridge regressions trained without each subset."""
    losses = []
    for without in dropped:
        kept, target = features[~without], labels[~without]
        gram = kept.T @ kept + np.eye(features.shape[1])
        weights = np.linalg.solve(gram, kept.T @ target)
        losses.append((tests @ weights - 3.0) ** 2)
    return np.array(losses)


def test_true_effects_of_a_linear_model_reach_one_and_chance_reaches_zero() -> None:
    generator = np.random.default_rng(2)
    features, tests = generator.normal(size=(200, 5)), generator.normal(size=(40, 5))
    labels = features @ np.ones(5) + generator.normal(size=200)
    alone = np.eye(200, dtype=bool)
    whole = least_squares_losses(features, labels, tests, np.zeros((1, 200), bool))
    effects = (least_squares_losses(features, labels, tests, alone) - whole).T
    dropped = random_subsets(200, 0.02, 60)
    losses = least_squares_losses(features, labels, tests, dropped)
    found = measured(datamodelling_scores(effects, dropped, losses))
    assert found.mean > 0.97
    chance = generator.normal(size=effects.shape)
    useless = measured(datamodelling_scores(chance, dropped, losses))
    assert abs(useless.mean) < 3 * (useless.half_width or 0.0)
    assert abs(useless.mean) < 0.1
    assert datamodelling_scores(-effects, dropped, losses).mean() < -0.97


def test_ceiling_is_what_the_truth_reaches() -> None:
    """Losses are truth plus noise; the truth's correlation with their mean is the ceiling."""
    generator = np.random.default_rng(3)
    truth = generator.normal(size=(300, 50))
    losses = truth + 1.5 * generator.normal(size=(3, 300, 50))
    reached = rank_correlations(truth.T, losses.mean(0).T).mean()
    assert ceiling(losses) == pytest.approx(reached, abs=0.02)
    assert ceiling(losses[:1]) is None
    one = rank_correlations(truth.T, losses[0].T).mean()
    pair = rank_correlations(losses[0].T, losses[1].T).mean()
    assert pair**0.5 == pytest.approx(one, abs=0.02)


def test_ceiling_of_noise_is_zero() -> None:
    losses = np.stack([np.arange(6.0), -np.arange(6.0)])[:, :, None]
    assert ceiling(losses) == 0.0


def small_graph() -> KnowledgeGraph:
    """Return facts a r b, b r c, a s c and d r b, and the test triple a r c."""
    train = [[0, 0, 1], [1, 0, 2], [0, 1, 2], [3, 0, 1], [3, 1, 3]]
    test = [[0, 0, 2]]
    return KnowledgeGraph(
        "small",
        Vocabulary.from_names("entity", list("abcd")),
        Vocabulary.from_names("relation", ["r", "s"]),
        *(np.array(rows, np.int32) for rows in (train, test, test)),
    )


def test_baselines_by_hand() -> None:
    graph = small_graph()
    assert touching(graph, graph.test).tolist() == [[1, 1, 1, 0, 0]]
    assert siblings(graph, graph.test).tolist() == [[1, 1, 0, 0, 0]]
    # b has the neighbours a, c and d
    weight = 1 / np.log(3)
    np.testing.assert_allclose(adamic_adar(graph, graph.test), [[weight, weight, 0, 0, 0]])
    assert np.array_equal(random_scores(graph, graph.test), random_scores(graph, graph.test))


def test_strongest_breaks_ties() -> None:
    scores, ties = np.array([1.0, 3.0, 3.0, 0.0]), np.array([9.0, 1.0, 2.0, 9.0])
    assert strongest(scores, 3, ties).tolist() == [2, 1, 0]


def test_subsets_have_their_size_and_repeat() -> None:
    subsets = random_subsets(1000, 0.05, 7)
    assert subsets.sum(1).tolist() == [50] * 7
    assert len(np.unique(subsets, axis=0)) == 7
    assert np.array_equal(subsets, random_subsets(1000, 0.05, 7))
    assert random_subsets(10, 0.01, 1).sum() == 1


def test_deletions_take_each_test_triples_strongest_together() -> None:
    scores = np.zeros((7, 100))
    for test in range(7):
        scores[test, test * 10 : test * 10 + 4] = [4, 3, 2, 1]
    found = {
        (d.num_facts, d.tests): d.facts.tolist()
        for d in deletions({"form": scores}, [0, 1, 3, 4, 5, 6], np.zeros_like(scores))
    }
    assert found[1, (0, 1, 3, 4, 5)] == [0, 10, 30, 40, 50]
    assert found[4, (6,)] == [60, 61, 62, 63]
    assert len(found[20, (6,)]) == 20


def test_a_cell_is_named_after_what_is_trained() -> None:
    facts = np.array([1, 5])
    assert Retraining(0, facts).key == Retraining(0, facts.astype(np.int32)).key
    assert (
        len({Retraining(0, facts).key, Retraining(1, facts).key, Retraining(0, facts[:1]).key}) == 3
    )


class LinearModel(KeptRetrainings):
    """Retrainings in which each unit of the deleted facts' scores costs a known amount."""

    def __init__(self, scores: np.ndarray, cost: float, noise: float) -> None:
        self.scores, self.cost, self.noise = scores, cost, noise

    def read(self, retraining: Retraining) -> Outcomes:
        generator = np.random.default_rng([retraining.seed, *retraining.dropped])
        noise = self.noise * generator.normal(size=len(self.scores))
        fall = self.cost * self.scores[:, retraining.dropped].sum(1) + noise
        values = (-1.0 - fall)[None]
        return Outcomes(values, values, np.ones_like(values))


@pytest.mark.parametrize(("noise", "known"), [(0.0, True), (0.3, True), (1000.0, False)])
def test_what_a_unit_of_score_is_worth_is_found_again(noise: float, known: bool) -> None:
    generator = np.random.default_rng(0)
    scores, ties = generator.normal(size=(40, 200)), np.zeros((40, 200))
    plan = ValidationPlan(
        tests=np.zeros((40, 3), np.int32),
        own_seed=0,
        other_seeds=(1, 2),
        forms={"raw": scores},
        baselines={},
        subsets={},
        deletions=tuple(deletions({"raw": scores}, range(40), ties)),
    )
    found = deletion_effects(plan, LinearModel(scores, 0.03, noise), "tail")
    assert [effect.num_facts for effect in found] == [1, 4, 20]
    for effect in found:
        each = effect.for_each_unit
        assert each is not None
        assert each.half_width is not None
        assert abs(each.mean - 0.03) <= each.half_width + 1e-12
        assert (each.half_width < 1e-9) == (noise == 0.0)
    assert any(e.for_each_unit and e.for_each_unit.above(0.0) for e in found) == known
    assert fall_for_each_unit(np.zeros(3), np.ones(3)) is None
