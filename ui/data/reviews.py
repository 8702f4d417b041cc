"""Reviews for the pages."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from clew import names
from clew.errors import DataError
from clew.runs.reading.disagreements import CHOICES, find_disagreements
from clew.runs.reading.reviews import Fact, Kept, Review, append_review, read_reviews
from clew.ui import access
from clew.ui.data.runs import RunQuery, RunRecord, runs_page

NUM_LATEST = 50
NUM_PER_PAGE = 200
MAX_CACHED = 1024


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
def reviews_of(run_id: str) -> Kept:
    return read_reviews(run_id)


def reviews_of_all(run_ids: Iterable[str]) -> Kept:
    """Return the reviews of several runs together."""
    found = [reviews_of(run_id) for run_id in run_ids]
    return Kept(
        tuple(review for kept in found for review in kept.records),
        tuple(problem for kept in found for problem in kept.problems),
    )


def add_decision(
    key: str, verdict: str, person: str, comment: str, runs: Sequence[RunRecord]
) -> Review:
    """Write a person's final review of a disagreement, after reading the store again.

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
    found = find_disagreements(reviews_of_all(run.run_id for run in runs).records, runs)
    about = next((each for each in found if each.key == key), None)
    if about is None:
        raise DataError(f"no reviewers disagree about {key} any more; there is nothing to decide")
    if verdict not in CHOICES[about.about]:
        expected = ", ".join(CHOICES[about.about])
        raise DataError(f"the decision is {verdict!r}; expected one of {expected}")
    written = append_review(about.final_review(verdict, person, comment))
    reviews_of.clear(written.run_id)
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
