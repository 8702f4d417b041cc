"""Decisions about disagreements: stored with the reviews, counted instead of them, revised."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew.errors import DataError, TrackingError
from clew.runs.reading.decisions import (
    FOLDER,
    Decision,
    append_decision,
    decisions_csv,
    read_decisions,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.runs.reading.disagreements import Disagreement, find_disagreements
from clew.runs.reading.reviews import (
    DataOrigin,
    Fact,
    Review,
    append_review,
    count_verdicts,
    read_reviews,
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
    return find_disagreements(
        read_reviews(run_id).records,
        read_decisions(run_id).records,
        find_runs([run_id]),
    )


def decision(about: Disagreement, verdict: str, **changes: object) -> Decision:
    ids = tuple(opinion.review.review_id for opinion in about.opinions)
    base = Decision(about.run_ids[-1], about.about, about.triple, verdict, "Edsger", review_ids=ids)  # type: ignore[arg-type]
    return replace(base, **changes)  # type: ignore[arg-type]


def decide(store: Recorded, about: Disagreement, verdict: str, **changes: object) -> Decision:
    reviews = read_reviews(store.runs["trace"]).records
    wanted = decision(about, verdict, **changes)
    return append_decision(wanted, reviews, earlier=about.decisions)


def listed(store: Recorded) -> str:
    run_id = store.runs["trace"]
    reviews = read_reviews(run_id).records
    decisions = read_decisions(run_id).records
    return wrong_facts_tsv(reviews, DataOrigin("", ""), decisions)


def test_disagreements_are_found_with_what_each_says(store: Recorded) -> None:
    explanation, fact = found(store)
    assert [(each.said, each.review.reviewer) for each in explanation.opinions] == [
        ("plausible", "Ada"),
        ("implausible", "Grace"),
    ]
    assert [(each.said, each.review.reviewer) for each in fact.opinions] == [
        ("convincing", "Ada"),
        ("wrong", "Grace"),
    ]
    assert (explanation.triple, fact.triple) == (TEST, FACT)
    assert explanation.is_open
    assert explanation.key != fact.key


def test_a_decision_counts_in_place_of_the_verdicts_and_nothing_is_overwritten(
    store: Recorded,
) -> None:
    before = read_reviews(store.runs["trace"])
    assert listed(store) == "D1\tinhibits\tP1\nD2\ttreats\tX1\n"
    explanation, fact = found(store)
    written = decide(store, fact, "right", comment="ünï <b>")
    assert listed(store) == "D2\ttreats\tX1\n"
    decide(store, explanation, "unsure")
    assert read_reviews(store.runs["trace"]) == before
    kept = read_decisions(store.runs["trace"])
    assert kept.records[0] == written
    assert (written.person, bool(written.created)) == ("Edsger", True)
    (count,) = count_verdicts(settled(before.records, kept.records))
    assert (count.plausible, count.implausible, count.unsure) == (0, 0, 1)


def test_a_decision_is_revised_and_the_last_one_counts(store: Recorded) -> None:
    fact = found(store)[1]
    decide(store, fact, "right")
    decide(store, found(store)[1], "wrong", person="Barbara")
    assert listed(store) == "D1\tinhibits\tP1\nD2\ttreats\tX1\n"
    decided = next(each for each in found(store) if each.about == "fact")
    assert [each.verdict for each in decided.decisions] == ["right", "wrong"]
    assert decided.decision is not None
    assert decided.decision.person == "Barbara"
    (first, _) = wrong_facts(read_reviews(store.runs["trace"]).records, decided.decisions)
    assert (first.num_reviews, first.decision) == (1, decided.decision)


def test_a_decision_stands_when_reviewers_speak_again(store: Recorded) -> None:
    decide(store, found(store)[1], "right")
    run_id = store.runs["trace"]
    append_review(Review(run_id, TEST, "implausible", "Ada", wrong=(FACT,)))
    (fact,) = found(store)
    assert {each.said for each in fact.opinions} == {"wrong"}
    assert [each.review.reviewer for each in fact.newer] == ["Ada"]
    assert "inhibits" not in listed(store)
    decide(store, fact, "wrong")
    assert "inhibits" in listed(store)


def test_the_decision_on_a_fact_is_for_all_runs_of_its_data(store: Recorded) -> None:
    other = store.runs["trace bf16"]
    strange = store.runs["trace hostile"]
    for run_id in (other, strange):
        append_review(Review(run_id, OTHER, "unsure", "Ada", wrong=(OTHER,)))
        append_review(Review(run_id, TEST, "unsure", "Ada", convincing=(OTHER,)))
    ids = [store.runs["trace"], other, strange]
    reviews = [r for run_id in ids for r in read_reviews(run_id).records]
    disagreements = find_disagreements(reviews, (), find_runs(ids))
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
    append_review(Review(run_id, TEST, "unsure", "Grace", wrong=(FACT,)))
    reviews = read_reviews(run_id).records
    assert find_disagreements(reviews, (), find_runs([run_id])) == []


def test_what_is_refused(store: Recorded) -> None:
    explanation, fact = found(store)
    ids = tuple(each.review.review_id for each in explanation.opinions)
    for about, verdict, changes, message in (
        (explanation, "wrong", {}, "decision on an explanation is 'wrong'; expected one of plaus"),
        (fact, "plausible", {}, "decision on a fact is 'plausible'; expected one of wrong, right"),
        (fact, "right", {"person": "  "}, "names who decided"),
        (fact, "right", {"comment": "x" * 10_001}, "comment has 10001 characters"),
        (fact, "right", {"review_ids": ("0" * 32,)}, f"no review {'0' * 32} says anything"),
        (
            explanation,
            "unsure",
            {"review_ids": ids[:1]},
            r"nobody disagrees .*\(Ada says plausible\)",
        ),
        (explanation, "unsure", {"review_ids": ()}, "nobody disagrees"),
        (fact, "right", {"triple": TEST}, "says anything about fact D1 treats X1"),
    ):
        with pytest.raises(DataError, match=message) as refused:
            decide(store, about, verdict, **changes)
        assert "\n" not in str(refused.value)
    with pytest.raises(TrackingError, match="no run"):
        decide(store, fact, "right", run_id="0" * 32)
    assert read_decisions(store.runs["trace"]).records == ()


def test_files_that_are_no_decisions_are_named(store: Recorded) -> None:
    written = decide(store, found(store)[1], "right")
    whole = json.loads(
        next(store.files("trace", FOLDER).glob("*.json")).read_text(encoding="utf-8")
    )
    for name, text in {
        "broken": "{",
        "half": json.dumps({"schema_version": 1}),
        "later": json.dumps(whole | {"schema_version": 2}),
        "odd": json.dumps(whole | {"about": "explanation"}),
    }.items():
        store.client.log_text(store.runs["trace"], text, f"{FOLDER}/{name}.json")
    kept = read_decisions(store.runs["trace"])
    assert kept.records == (written,)
    assert [problem.split(".")[0] for problem in kept.problems] == [
        "broken",
        "half",
        "later",
        "odd",
    ]


def test_the_table_of_decisions(store: Recorded) -> None:
    decide(store, found(store)[1], "right", comment="=HYPERLINK(1)")
    lines = decisions_csv(read_decisions(store.runs["trace"]).records).splitlines()
    assert lines[0].startswith("created,person,about,verdict,head,relation,tail")
    assert "Edsger,fact,right,D1,inhibits,P1" in lines[1]
    assert "'=HYPERLINK(1)" in lines[1]
