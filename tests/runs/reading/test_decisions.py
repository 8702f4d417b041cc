"""Final reviews: stored with the others, counted instead of them, revised; older records too."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew.errors import DataError, TrackingError
from clew.runs.reading.disagreements import (
    Disagreement,
    agreement_by,
    find_disagreements,
    reviewer_agreement,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.runs.reading.reviews import (
    FOLDER,
    DataOrigin,
    Fact,
    Review,
    append_review,
    count_verdicts,
    read_reviews,
    reviews_csv,
)
from clew.runs.reading.search import find_runs
from tests.recorded import Recorded

TEST = Fact("D1", "treats", "X1", "Metformin", "treats", "Diabetes")
FACT = Fact("D1", "inhibits", "P1", "Metformin", "inhibits", "=cmd()")
OTHER = Fact("D2", "treats", "X1")


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    """Return a store where Ada and Grace disagree about an explanation and about a fact."""
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    ada = Review(store.runs["trace"], TEST, "plausible", "Ada", "why not", convincing=(FACT,))
    grace = replace(
        ada, verdict="implausible", reviewer="Grace", convincing=(), wrong=(FACT, OTHER)
    )
    for review in (ada, grace):
        append_review(review)
    return store


def found(store: Recorded) -> list[Disagreement]:
    run_id = store.runs["trace"]
    return find_disagreements(read_reviews(run_id).records, find_runs([run_id]))


def decide(about: Disagreement, verdict: str, person: str = "Edsger", comment: str = "") -> Review:
    return append_review(about.final_review(verdict, person, comment))


def listed(store: Recorded) -> str:
    reviews = read_reviews(store.runs["trace"]).records
    return wrong_facts_tsv(reviews, DataOrigin("", ""))


def test_disagreements_are_found_with_what_each_says(store: Recorded) -> None:
    explanation, fact, alone = found(store)
    assert (alone.triple, [each.said for each in alone.opinions]) == (OTHER, ["wrong"])
    assert [each.needs_promoter for each in (explanation, fact, alone)] == [False, False, True]
    assert [(each.said, each.review.reviewer) for each in explanation.opinions] == [
        ("plausible", "Ada"),
        ("implausible", "Grace"),
    ]
    assert [(each.said, each.review.reviewer) for each in fact.opinions] == [
        ("convincing", "Ada"),
        ("wrong", "Grace"),
    ]
    assert (explanation.triple, fact.triple) == (TEST, FACT)
    assert explanation.decision is None
    assert explanation.key != fact.key


def test_a_decision_counts_in_place_of_the_verdicts_and_nothing_is_overwritten(
    store: Recorded,
) -> None:
    before = read_reviews(store.runs["trace"]).records
    assert listed(store) == "", "one person is not enough"
    explanation, fact, _ = found(store)
    written = decide(fact, "right", comment="ünï <b>")
    assert listed(store) == ""
    decide(explanation, "unsure")
    kept = read_reviews(store.runs["trace"]).records
    assert kept[:2] == before
    assert kept[2] == written
    assert (written.reviewer, bool(written.created), written.final) == ("Edsger", True, True)
    (count,) = count_verdicts(settled(kept)).values()
    assert count == {"unsure": 1}


def test_a_decision_is_revised_and_the_last_one_counts(store: Recorded) -> None:
    decide(found(store)[1], "right")
    (decided,) = [each for each in found(store) if each.triple == FACT]
    decide(decided, "wrong", "Barbara")
    assert listed(store) == "D1\tinhibits\tP1\n"
    (decided,) = [each for each in found(store) if each.triple == FACT]
    assert [each.said for each in decided.decisions] == ["right", "wrong"]
    assert decided.decision is not None
    assert decided.decision.reviewer == "Barbara"
    (first,) = wrong_facts(read_reviews(store.runs["trace"]).records)
    assert (first.num_people, first.decision) == (1, decided.decision)


def test_two_named_people_make_a_fact_wrong(store: Recorded) -> None:
    run_id, bf16 = store.runs["trace"], store.runs["trace bf16"]

    def counted() -> list[Fact]:
        reviews = [r for run in (run_id, bf16) for r in read_reviews(run).records]
        return [each.fact for each in wrong_facts(reviews)]

    append_review(Review(bf16, TEST, "unsure", "Grace", wrong=(OTHER,)))
    append_review(Review(bf16, TEST, "unsure", "", wrong=(OTHER,)))
    append_review(Review(bf16, OTHER, "unsure", "", wrong=(OTHER,)))
    assert counted() == []
    append_review(Review(bf16, TEST, "unsure", "Barbara", wrong=(OTHER,)))
    assert counted() == [OTHER]


def test_a_fact_that_nobody_named_marked_waits_for_a_promoter(store: Recorded) -> None:
    run_id = store.runs["trace hostile"]
    for _ in range(2):
        append_review(Review(run_id, TEST, "unsure", "", wrong=(FACT,)))
    (alone,) = find_disagreements(read_reviews(run_id).records, find_runs([run_id]))
    assert (alone.triple, alone.needs_promoter) == (FACT, True)


def test_agreement_by_relation_run_and_reviewer() -> None:
    other = replace(TEST, relation="causes", relation_label="causes")
    said = {
        TEST: {"Ada": "plausible", "Grace": "implausible", "Barbara": "implausible"},
        OTHER: {"Ada": "unsure", "Grace": "unsure"},
        other: {"Barbara": "unsure", "": "plausible"},
    }
    reviews = [
        Review("r", test, verdict, reviewer)  # type: ignore[arg-type]
        for test, verdicts in said.items()
        for reviewer, verdict in verdicts.items()
    ]
    assert agreement_by(reviews, "run") == {"r": reviewer_agreement(reviews)}
    by_relation = agreement_by(reviews, "relation")
    assert [each.num_explanations for each in by_relation.values()] == [2, 0]
    by_reviewer = agreement_by(reviews, "reviewer")
    assert by_reviewer["Ada"] == by_relation["treats"]
    assert by_reviewer["Barbara"] == reviewer_agreement(reviews[:3])


def test_a_decision_stands_when_reviewers_speak_again(store: Recorded) -> None:
    decide(found(store)[1], "right")
    run_id = store.runs["trace"]
    append_review(Review(run_id, TEST, "implausible", "Ada", wrong=(FACT,)))
    (fact,) = [each for each in found(store) if each.triple == FACT]
    assert {each.said for each in fact.opinions} == {"wrong"}
    assert [each.review.reviewer for each in fact.newer] == ["Ada"]
    assert "inhibits" not in listed(store)
    decide(fact, "wrong")
    assert "inhibits" in listed(store)


def test_the_decision_on_a_fact_is_for_all_runs_of_its_data(store: Recorded) -> None:
    other = store.runs["trace bf16"]
    strange = store.runs["trace hostile"]
    for run_id in (other, strange):
        append_review(Review(run_id, OTHER, "unsure", "Ada", wrong=(OTHER,)))
        append_review(Review(run_id, TEST, "unsure", "Ada", convincing=(OTHER,)))
    ids = [store.runs["trace"], other, strange]
    reviews = [r for run_id in ids for r in read_reviews(run_id).records]
    disagreements = find_disagreements(reviews, find_runs(ids))
    facts = [each for each in disagreements if each.about == "fact"]
    assert {each.triple for each in facts} == {FACT, OTHER}
    about = next(each for each in facts if each.triple == OTHER)
    # Ada's last review counts, and her reviews of other data do not.
    assert [(each.said, each.review.run_id) for each in about.opinions] == [
        ("wrong", store.runs["trace"]),
        ("convincing", other),
    ]


def test_what_is_no_disagreement(store: Recorded) -> None:
    run_id = store.runs["trace hostile"]
    append_review(Review(run_id, TEST, "plausible", "Ada"))
    append_review(Review(run_id, TEST, "unsure", "Ada"))
    append_review(Review(run_id, TEST, "implausible", ""))
    for name in ("Grace", "Barbara"):
        append_review(Review(run_id, TEST, "unsure", name, wrong=(FACT,)))
    reviews = read_reviews(run_id).records
    assert find_disagreements(reviews, find_runs([run_id])) == []


def test_what_is_refused(store: Recorded) -> None:
    explanation, fact, _ = found(store)
    for about, verdict, changes in (
        (explanation, "wrong", {}),
        (fact, "right", {"reviewer": "  "}),
        (fact, "right", {"reviewer": "x" * 201}),
        (fact, "right", {"comment": "x" * 10_001}),
        (fact, "right", {"convincing": ()}),
        (fact, "right", {"final": False}),
    ):
        final = replace(about.final_review(verdict, "Edsger", ""), **changes)  # type: ignore[arg-type]
        with pytest.raises(DataError) as refused:
            append_review(final)
        assert "\n" not in str(refused.value)
    with pytest.raises(TrackingError):
        append_review(replace(fact.final_review("right", "Edsger", ""), run_id="0" * 32))
    assert not any(review.final for review in read_reviews(store.runs["trace"]).records)


def test_the_table_of_reviews_marks_final_ones(store: Recorded) -> None:
    decide(found(store)[1], "right", comment="=HYPERLINK(1)")
    lines = reviews_csv(read_reviews(store.runs["trace"]).records).splitlines()
    assert [line.endswith(",final") for line in lines] == [True, False, False, True]
    assert "'=HYPERLINK(1)" in lines[-1]


def test_files_that_are_no_reviews_are_named(store: Recorded) -> None:
    run_id = store.runs["trace"]
    kept = read_reviews(run_id).records
    for name, content in {
        "half": {"schema_version": 1},
        "later": {"schema_version": 2} | vars(kept[0]),
        "unsaid": {"schema_version": 1} | vars(kept[0]) | {"verdict": None},
    }.items():
        text = json.dumps(content, default=vars)
        store.client.log_text(run_id, text, f"{FOLDER}/{name}.json")
    read = read_reviews(run_id)
    assert read.records == kept
    assert [problem.split(".")[0] for problem in read.problems] == ["half", "later", "unsaid"]
