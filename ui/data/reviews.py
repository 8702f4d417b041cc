"""Reviews for the pages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pandas as pd
import streamlit as st

from clew import names
from clew.errors import DataError
from clew.runs.reading.decisions import (
    CHOICES,
    Decision,
    WrongFact,
    append_decision,
    decision_on,
    decisions_csv,
    read_decisions,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.runs.reading.disagreements import (
    Disagreement,
    Opinion,
    find_disagreements,
    reviewer_agreement,
)
from clew.runs.reading.records import Kept
from clew.runs.reading.reviews import (
    VERDICTS,
    Fact,
    Review,
    Verdict,
    VerdictCount,
    append_review,
    by_data,
    count_verdicts,
    latest_of_each,
    read_reviews,
    reviews_csv,
)
from clew.ui import access
from clew.ui.data.runs import RunQuery, RunRecord, runs_page

__all__ = [
    "CHOICES",
    "VERDICTS",
    "Decision",
    "Disagreement",
    "Fact",
    "Opinion",
    "Review",
    "Verdict",
    "VerdictCount",
    "WrongFact",
    "by_data",
    "count_verdicts",
    "decision_on",
    "decisions_csv",
    "find_disagreements",
    "latest_of_each",
    "reviewer_agreement",
    "reviews_csv",
    "settled",
    "wrong_facts",
    "wrong_facts_tsv",
]


NUM_LATEST = 50
NUM_PER_PAGE = 200
MAX_CACHED = 1024
Said = TypeVar("Said", Review, Decision)


def explains_triples(run: RunRecord) -> bool:
    """Return whether a run explains triples; explanations of texts and frames have no reviews."""
    kind, task = run.tags.get(names.TAG_KIND), run.tags.get(names.TAG_TASK)
    return (kind, task) == (names.KIND_TRACE, names.TASK_LINK_PREDICTION)


def reviewable_runs() -> list[RunRecord]:
    """Return the latest runs that explain triples, and all older ones with a review.

    The newest comes first. In old stores, where reviewed runs are not marked, only the latest show.
    """
    query = RunQuery(kind=names.KIND_TRACE, task=names.TASK_LINK_PREDICTION)
    found = list(runs_page(query, size=NUM_LATEST).runs)
    query, number, more = replace(query, reviewed=True), 0, True
    while more:
        page = runs_page(query, number, size=NUM_PER_PAGE)
        found += page.runs
        number, more = number + 1, page.more
    each = {run.run_id: run for run in found}
    return sorted(each.values(), key=lambda run: run.started_ms, reverse=True)


@st.cache_data(ttl=10, max_entries=MAX_CACHED, show_spinner=False)
def reviews_of(run_id: str) -> Kept[Review]:
    return read_reviews(run_id)


def reviews_of_all(run_ids: Sequence[str]) -> Kept[Review]:
    """Return the reviews of several runs together."""
    return _together([reviews_of(run_id) for run_id in run_ids])


def _together(found: Sequence[Kept[Said]]) -> Kept[Said]:
    return Kept(
        tuple(record for kept in found for record in kept.records),
        tuple(problem for kept in found for problem in kept.problems),
    )


@st.cache_data(ttl=10, max_entries=MAX_CACHED, show_spinner=False)
def _decisions(run_id: str) -> Kept[Decision]:
    return read_decisions(run_id)


def decisions_of_all(run_ids: Sequence[str]) -> Kept[Decision]:
    """Return the decisions about the reviews of several runs; a run without reviews has none.

    Raises:
        TrackingError: A run is gone or cannot be read.
    """
    return _together([_decisions(run_id) for run_id in run_ids if reviews_of(run_id).records])


def add_decision(
    key: str, verdict: str, person: str, comment: str, runs: Sequence[RunRecord]
) -> Decision:
    """Write a person's decision about a disagreement, after reading the store again.

    Args:
        key: The key of the disagreement.
        verdict: One of the `CHOICES` for its kind.
        person: Who decided, if nobody has to sign in.
        comment: The reason.
        runs: The runs whose reviews are searched for the disagreement.

    Raises:
        AccessError: The person may not decide.
        DataError: The reviewers no longer disagree, the verdict is invalid, or `person` is empty.
    """
    person = access.authorize("decide") or person
    for run in runs:
        reviews_of.clear(run.run_id)
        _decisions.clear(run.run_id)
    ids = [run.run_id for run in runs]
    reviews = reviews_of_all(ids).records
    found = find_disagreements(reviews, decisions_of_all(ids).records, runs)
    about = next((each for each in found if each.key == key), None)
    if about is None:
        raise DataError(f"no reviewers disagree about {key} any more; there is nothing to decide")
    decision = Decision(
        run_id=about.run_ids[-1] if about.run_ids else about.decisions[-1].run_id,
        about=about.about,
        triple=about.triple,
        verdict=verdict,  # type: ignore[arg-type]
        person=person,
        comment=comment,
        review_ids=tuple(opinion.review.review_id for opinion in about.opinions),
    )
    written = append_decision(decision, reviews, earlier=about.decisions)
    _decisions.clear(written.run_id)
    return written


def add_review(review: Review) -> Review:
    """Write a review to its run; a signed-in person is its reviewer."""
    person = access.authorize("review")
    written = append_review(replace(review, reviewer=person or review.reviewer))
    reviews_of.clear(review.run_id)
    return written


def fact_of(row: pd.Series) -> Fact:
    """Return a row of a frame of triples as a fact."""
    return Fact(
        *(str(row[key]) for key in ("head_id", "relation_id", "tail_id")),
        *(str(row[key]) for key in ("head", "relation", "tail")),
    )
