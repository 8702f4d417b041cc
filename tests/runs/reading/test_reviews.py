"""Reviews: simultaneous writers overwrite nothing; summaries and exports."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from clew.errors import DataError, TrackingError
from clew.runs.reading.disagreements import WrongFact, wrong_facts, wrong_facts_tsv
from clew.runs.reading.reviews import (
    FOLDER,
    DataOrigin,
    Fact,
    Review,
    append_review,
    by_data,
    count_verdicts,
    latest_of_each,
    read_reviews,
    reviews_csv,
)
from clew.runs.reading.search import RunQuery, find_runs, search_runs
from tests.recorded import Recorded

TEST = Fact("D1", "treats", "X1", "Metformin", "treats", "Diabetes")
FACT = Fact("D1", "inhibits", "P1", "Metformin", "inhibits", "=cmd()")
OTHER = Fact("D2", "treats", "X1")


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


def review(run_id: str, **changes: object) -> Review:
    base = Review(run_id=run_id, test=TEST, verdict="plausible", reviewer="Ada")
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_review_comes_back_as_written(store: Recorded) -> None:
    run_id = store.runs["trace"]
    comment = 'ünï\n<b>"quoted"</b>'
    written = append_review(review(run_id, comment=comment, convincing=(FACT,), wrong=(OTHER,)))
    found = read_reviews(run_id)
    assert found.records == (written,)
    assert found.problems == ()
    assert written.created
    assert written.review_id


def test_a_reviewed_run_is_found_by_its_review(store: Recorded) -> None:
    reviewed = RunQuery(reviewed=True)
    assert search_runs(reviewed).runs == ()
    for comment in ("one", "two"):
        append_review(review(store.runs["trace"], comment=comment))
    (found,) = search_runs(reviewed).runs
    assert found.run_id == store.runs["trace"]


def test_two_reviewers_at_once_lose_nothing(store: Recorded) -> None:
    run_id = store.runs["trace"]
    reviews = [review(run_id, reviewer=f"reviewer {n}", comment=str(n)) for n in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append_review, reviews))
    found = read_reviews(run_id).records
    assert {r.comment for r in found} == {str(n) for n in range(24)}


def test_files_that_are_no_reviews_are_named(store: Recorded) -> None:
    run_id = store.runs["trace"]
    append_review(review(run_id))
    later = {"schema_version": 7}
    half = {"schema_version": 1, "verdict": "unsure"}
    for name, text in (
        ("broken", "{"),
        ("later", json.dumps(later)),
        ("half", json.dumps(half)),
        ("list", "[1]"),
    ):
        store.client.log_text(run_id, text, f"{FOLDER}/{name}.json")
    found = read_reviews(run_id)
    assert len(found.records) == 1
    assert sorted(problem.split(".")[0] for problem in found.problems) == [
        "broken",
        "half",
        "later",
        "list",
    ]


def test_a_review_is_of_the_run_that_keeps_it(store: Recorded) -> None:
    """A tool that copies runs to another store gives them other ids."""
    written, copied = append_review(review(store.runs["trace"])), store.runs["trace hostile"]
    text = json.dumps({"schema_version": 1} | asdict(written))
    store.client.log_text(copied, text, f"{FOLDER}/copied.json")
    (found,) = read_reviews(copied).records
    assert found == replace(written, run_id=copied)


def test_what_is_refused(store: Recorded) -> None:
    run_id = store.runs["trace"]
    with pytest.raises(DataError, match="verdict is 'maybe'"):
        append_review(review(run_id, verdict="maybe"))
    with pytest.raises(DataError, match="comment has 10001 characters"):
        append_review(review(run_id, comment="x" * 10_001))
    with pytest.raises(TrackingError, match="no run"):
        append_review(review("0" * 32))
    assert read_reviews(run_id).records == ()


def test_a_change_of_mind_replaces() -> None:
    reviews = [
        review("r", created="1", verdict="plausible"),
        review("r", created="2", verdict="unsure"),
        review("r", created="1", verdict="implausible", reviewer="Grace"),
        review("r", created="1", reviewer="", review_id="a"),
        review("r", created="2", reviewer="", review_id="b"),
        review("other", created="3"),
    ]
    kept = latest_of_each(reviews)
    assert len(kept) == 5
    assert count_verdicts(kept) == {"treats": {"plausible": 3, "implausible": 1, "unsure": 1}}
    by_run = count_verdicts(kept, "run")
    assert [(run, count.total()) for run, count in by_run.items()] == [("r", 4), ("other", 1)]


def test_exports() -> None:
    tab = Fact("a\tb", "r", "t")
    reviews = [
        review("r", convincing=(FACT,), wrong=(FACT, OTHER), comment="=HYPERLINK(1)"),
        review("r", wrong=(OTHER, tab), reviewer="Grace"),
    ]
    assert wrong_facts(reviews) == [WrongFact(OTHER, 2)]
    facts = "D2\ttreats\tX1\n"
    origin = "# data set: my data\n# fingerprint: 0123456789abcdef\n"
    assert wrong_facts_tsv(reviews, DataOrigin("my\ndata", "0123456789abcdef")) == origin + facts
    assert wrong_facts_tsv(reviews, DataOrigin("", "")) == facts
    text = reviews_csv(reviews)
    assert "'=HYPERLINK(1)" in text
    assert text.count("\n") == 3


def test_reviews_are_told_apart_by_the_data_of_their_runs(store: Recorded) -> None:
    runs = find_runs([store.runs["trace"], store.runs["trace hostile"]])
    reviews = [review(store.runs["trace"]), review(store.runs["trace hostile"])]
    found = by_data([*reviews, reviews[0]], runs)
    assert found[DataOrigin("umls", "c68b546f56cdaeed")] == [reviews[0]] * 2
    assert [origin.name for origin in found] == ["umls", "hostile"]
