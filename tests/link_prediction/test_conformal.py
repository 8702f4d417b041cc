"""Answer sets: the exact quantile, its guaranteed coverage, groups, and a plain loop."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from clew.errors import ConfigError, DataError
from clew.link_prediction.calibration import (
    MIN_TRIPLES,
    AnswerSets,
    conformal_threshold,
)
from clew.link_prediction.prediction import Query
from tests.link_prediction.test_prediction import (
    NUM_ENTITIES,
    NUM_RELATIONS,
    predictor,
    scores_of,
)

LEVELS = (0.07, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


def plain_threshold(values: list[float], level: str) -> float:
    """Return the smallest value with at least (n + 1) level values up to it, by definition."""
    for value in sorted(values):
        if sum(other <= value for other in values) >= Fraction(level) * (len(values) + 1):
            return value
    return math.inf


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("num_values", [0, 1, 8, 9, 10, 19, 99, 100, 257])
def test_the_threshold_is_the_exact_quantile(level: float, num_values: int) -> None:
    values = np.random.default_rng(num_values).normal(size=num_values)
    assert conformal_threshold(values, level) == plain_threshold(values.tolist(), str(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("distinct", [True, False])
def test_the_promised_share_of_exchangeable_values_is_covered(level: float, distinct: bool) -> None:
    """Each of n + 1 exchangeable values is equally likely the new one: count all n + 1 cases."""
    for count in (2, 11, 40, 101):
        generator = np.random.default_rng(count)
        values = generator.permutation(count).astype(float)
        if not distinct:
            values = np.floor(values / 3)
        covered = sum(
            values[new] <= conformal_threshold(np.delete(values, new), level)
            for new in range(count)
        )
        assert covered >= Fraction(str(level)) * count
        if distinct:
            assert covered == math.ceil(Fraction(str(level)) * count)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, math.nan])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        conformal_threshold(np.array([1.0]), level)


def answer_sets(*counts: int) -> AnswerSets:
    """Return sets for two relations with these numbers of validation queries per table row."""
    rows = np.repeat(np.arange(4), counts)
    values = rows * 100.0 + np.concatenate([np.arange(count) for count in counts])
    test = np.repeat(np.arange(4), 10)
    is_test = np.repeat([False, True], [len(rows), len(test)])
    relation, surprise = np.append(rows, test), np.append(values, test * 100.0 + 18.0)
    return AnswerSets(2, is_test, relation, surprise)


def test_a_relation_with_enough_triples_has_its_own_threshold() -> None:
    sets = answer_sets(MIN_TRIPLES, 99, 50, 50)
    own = sets.guarantee(1, 0.9)
    assert (own.threshold, own.num_valid, own.num_test) == (100.0 + 89, 99, 10)
    assert own.coverage == 1.0
    assert own.num_own >= MIN_TRIPLES
    assert "calibrated on 99 validation triples of this relation" in own.sentence
    few = sets.guarantee(0, 0.9)
    assert (few.threshold, few.coverage) == (18.0, 1.0)
    assert sets.guarantee(0, 0.5).coverage == 0.0


def test_one_with_too_few_takes_those_of_all_relations_for_that_end() -> None:
    sets = answer_sets(MIN_TRIPLES - 1, 40, 50, 3)
    tails, heads = sets.guarantee(0, 0.9), sets.guarantee(3, 0.9)
    assert (tails.num_own, tails.num_valid, tails.num_test) == (MIN_TRIPLES - 1, 59, 20)
    assert (heads.num_own, heads.num_valid, heads.num_test) == (3, 53, 20)
    assert tails.threshold < 200 <= heads.threshold
    assert "on average over relations" in heads.sentence
    assert "53 validation triples of all relations (3 of this one" in heads.sentence


def test_a_level_is_told_as_it_was_given() -> None:
    sets = answer_sets(30, 30, 30, 30)
    for level, told in ((0.9, " 90 %"), (0.55, " 55 %"), (0.999999999, " 99.9999999 %")):
        assert told in sets.guarantee(0, level).sentence


def test_with_too_few_triples_in_all_the_set_is_everything() -> None:
    nothing = answer_sets(3, 2, 0, 0).guarantee(0, 0.9)
    assert math.isinf(nothing.threshold)
    assert "too few for this level, so it contains every candidate" in nothing.sentence
    zeros = np.zeros(30, np.int64)
    untested = AnswerSets(2, zeros > 0, zeros, np.arange(30.0)).guarantee(0, 0.9)
    assert untested.coverage is None
    assert "There are no test triples to measure its coverage" in untested.sentence


def test_answer_sets_round_trip(tmp_path: Path) -> None:
    written = answer_sets(30, 2, 5, 0)
    written.write(tmp_path / "sets.parquet")
    read = AnswerSets.read(tmp_path / "sets.parquet")
    assert [read.guarantee(row, 0.8) for row in range(4)] == [
        written.guarantee(row, 0.8) for row in range(4)
    ]
    (tmp_path / "other.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a file of answer sets"):
        AnswerSets.read(tmp_path / "other.parquet")


def random_triples(count: int, seed: int) -> np.ndarray:
    """Return independently drawn triples, so that any two of them are exchangeable."""
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, NUM_ENTITIES, (count, 2))
    relations = generator.integers(0, NUM_RELATIONS, count)
    return np.stack([ends[:, 0], relations, ends[:, 1]], axis=1).astype(np.int32)


def plain_surprise(entity: int, relation: int, answer: int) -> float:
    """Return -log softmax of an answer among all entities except the other known answers."""
    known = {(0, 1): {4, 5}, (2, 0): {4}, (0, 2): {0}, (4, 4): {0}, (5, 4): {0}}
    known |= {(4, 3): {2}, (0, 5): {0}}
    scores = scores_of(entity, relation)
    hidden = known.get((entity, relation), set()) - {answer}
    kept = [scores[e] for e in range(NUM_ENTITIES) if e not in hidden]
    return float(np.log(np.exp(kept).sum()) - scores[answer])


def test_surprises_equal_the_plain_loop() -> None:
    triples = np.concatenate([random_triples(5, 1), [[0, 1, 7], [0, 1, 4]]]).astype(np.int32)
    found = predictor().measure_answer_sets(triples, triples[:0])
    for_tails = [plain_surprise(h, r, t) for h, r, t in triples.tolist()]
    for_heads = [plain_surprise(t, r + NUM_RELATIONS, h) for h, r, t in triples.tolist()]
    assert found.surprise == pytest.approx(np.array(for_tails + for_heads), abs=1e-5)
    assert found.relation.tolist() == [
        *triples[:, 1].tolist(),
        *(triples[:, 1] + NUM_RELATIONS).tolist(),
    ]
    assert not found.is_test.any()


def test_the_set_of_a_query_equals_the_plain_loop() -> None:
    asked = predictor()
    asked.answer_sets = asked.measure_answer_sets(random_triples(300, 2), random_triples(300, 3))
    queries = [Query("causes", head="e00", about="e09"), Query("causes", head="e00", about="e05")]
    new, known = asked.predict(queries, top_k=NUM_ENTITIES, level=0.8)
    threshold = asked.answer_sets.guarantee(1, 0.8).threshold
    expected = {e for e in range(NUM_ENTITIES) if plain_surprise(0, 1, e) <= threshold} - {4, 5}
    assert new.answer_set is not None
    assert {int(a.name[1:]) for a in new.answers if a.in_set} == expected
    assert (new.answer_set.size, new.answer_set.num_candidates) == (len(expected), 21)
    assert 0 < len(expected) < 21
    assert new.place is not None
    assert new.place.in_set == (9 in expected)
    assert known.place is not None
    assert known.place.in_set == (plain_surprise(0, 1, 5) <= threshold)
    best = [a.name for a in new.answers if not a.known][: new.answer_set.size]
    assert best == [a.name for a in new.answers if a.in_set]
    assert new.answer_set.num_shown == new.answer_set.size
    assert "among these answers" not in new.answer_set.sentence
    (short,) = asked.predict(queries[:1], top_k=len(expected) - 1, level=0.8)
    assert short.answer_set is not None
    inside = sum(bool(a.in_set) for a in short.answers)
    assert 0 < inside == short.answer_set.num_shown < short.answer_set.size == len(expected)
    assert f"; {inside} of them are among these answers" in short.answer_set.sentence


def test_sets_cover_what_they_promise_and_say_what_they_cover() -> None:
    """The model was not trained on these triples, but the guarantee still holds."""
    asked, test = predictor(), random_triples(400, 5)
    asked.answer_sets = asked.measure_answer_sets(random_triples(400, 4), test)
    names = asked.entities, asked.relations
    triples = [
        Query(names[1].name(r), names[0].name(h), names[0].name(t)) for h, r, t in test.tolist()
    ]
    for level in (0.5, 0.9):
        found = asked.predict([way for triple in triples for way in triple.ways()], level=level)
        inside = [prediction.place.in_set for prediction in found if prediction.place is not None]
        share = np.mean(inside)
        # Threshold and test triples are both random: 4 standard deviations of their difference.
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) * (1 / 800 + 1 / 800))
        for relation in range(2 * NUM_RELATIONS):
            side, own = divmod(relation, NUM_RELATIONS)
            measured = np.mean(np.array(inside)[side::2][test[:, 1] == own])
            assert asked.answer_sets.guarantee(relation, level).coverage == pytest.approx(measured)


def test_of_very_many_triples_a_sample_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.link_prediction.query_scores.MAX_HELD_OUT_TRIPLES", 30)
    one, two = (predictor().measure_answer_sets(random_triples(200, 6), KNOWN) for _ in range(2))
    assert (~one.is_test).sum() == 2 * 30
    assert one.surprise.tolist() == two.surprise.tolist()


KNOWN = random_triples(3, 7)


def test_no_set_without_calibration() -> None:
    with pytest.raises(DataError, match="none was calibrated"):
        predictor().predict([Query("causes", head="e00")], level=0.9)
