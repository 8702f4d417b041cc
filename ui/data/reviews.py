"""Reviews for the pages."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from clew.runs import store
from clew.runs.reading.reviewer_agreement import ReviewerAgreement, reviewer_agreement
from clew.runs.reading.reviews import (
    VERDICTS,
    DataOrigin,
    Fact,
    Review,
    Reviews,
    Verdict,
    VerdictCount,
    append_review,
    by_data,
    count_verdicts,
    latest_of_each,
    read_reviews,
    reviews_csv,
    wrong_facts,
    wrong_facts_tsv,
)

__all__ = [
    "VERDICTS",
    "DataOrigin",
    "Fact",
    "Review",
    "ReviewerAgreement",
    "Reviews",
    "Verdict",
    "VerdictCount",
    "by_data",
    "count_verdicts",
    "latest_of_each",
    "reviewer_agreement",
    "reviews_csv",
    "wrong_facts",
    "wrong_facts_tsv",
]


@st.cache_data(ttl=10, max_entries=128, show_spinner=False)
def _reviews(uri: str, run_id: str) -> Reviews:
    return read_reviews(run_id, uri=uri)


def reviews_of(run_id: str) -> Reviews:
    """Return the reviews of a run."""
    return _reviews(store.tracking_uri(), run_id)


def reviews_of_all(run_ids: Sequence[str]) -> Reviews:
    """Return the reviews of several runs together."""
    found = [reviews_of(run_id) for run_id in run_ids]
    return Reviews(
        tuple(review for reviews in found for review in reviews.reviews),
        tuple(problem for reviews in found for problem in reviews.problems),
    )


def add_review(review: Review) -> Review:
    """Write a review to its run."""
    written = append_review(review, uri=store.tracking_uri())
    _reviews.clear(store.tracking_uri(), review.run_id)
    return written


def fact_of(row: pd.Series) -> Fact:
    """Return a row of a frame of triples as a fact."""
    return Fact(
        *(str(row[key]) for key in ("head_id", "relation_id", "tail_id")),
        *(str(row[key]) for key in ("head", "relation", "tail")),
    )
