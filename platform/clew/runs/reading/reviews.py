"""Reviews of explanations: a person's judgement, stored permanently with the run.

Each review is a JSON file with a unique name. Two reviewers can therefore write at the same time,
and no review is ever overwritten.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, get_args

from pydantic import TypeAdapter

from clew import names
from clew.errors import DataError
from clew.runs.reading import records
from clew.runs.reading.records import Kept
from clew.runs.reading.runs import RunRecord
from clew.spreadsheets import csv_text

FOLDER = "reviews"

Verdict = Literal["plausible", "implausible", "unsure"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Fact:
    """A triple with the names in the data set and their readable labels."""

    head: str
    relation: str
    tail: str
    head_label: str = ""
    relation_label: str = ""
    tail_label: str = ""

    @property
    def triple(self) -> tuple[str, str, str]:
        """The names of the triple, which identify the fact; the labels do not count."""
        return (self.head, self.relation, self.tail)


@dataclass(frozen=True)
class Review:
    """One person's judgement of the explanation of a test triple."""

    run_id: str
    test: Fact
    verdict: Verdict
    reviewer: str
    comment: str = ""
    convincing: tuple[Fact, ...] = ()
    wrong: tuple[Fact, ...] = ()
    created: str = ""
    """Time in ISO 8601 with time zone, set when the review is written."""
    review_id: str = ""


_REVIEW = TypeAdapter(Review)


@dataclass(frozen=True)
class VerdictCount:
    """Number of reviews with each verdict, for one relation or one run."""

    group: str
    plausible: int
    implausible: int
    unsure: int

    @property
    def total(self) -> int:
        return self.plausible + self.implausible + self.unsure


def append_review(review: Review) -> Review:
    """Write a review to its run as a new file, and return the review as written.

    Raises:
        DataError: The verdict is invalid, or the comment is too long.
        TrackingError: The run no longer exists, or its artifacts cannot be written.
    """
    if review.verdict not in VERDICTS:
        raise DataError(f"verdict is {review.verdict!r}; expected one of {', '.join(VERDICTS)}")
    now, review_id = records.stamp()
    review = replace(review, created=now, review_id=review_id)
    records.append(review, FOLDER, review_id)
    return review


def read_reviews(run_id: str) -> Kept[Review]:
    """Return all reviews of a run.

    Raises:
        TrackingError: The run no longer exists, or its artifacts cannot be read.
    """
    return records.read(run_id, FOLDER, lambda each: records.validated(each, _REVIEW, "review"))


def latest_of_each(reviews: Iterable[Review]) -> list[Review]:
    """Return the last review of each reviewer for each test triple of a run.

    Reviews without a name are all returned.
    """
    latest: dict[object, Review] = {}
    for review in sorted(reviews, key=lambda review: review.created):
        author = review.reviewer or review.review_id
        latest[review.run_id, author, review.test.triple] = review
    return list(latest.values())


def count_verdicts(
    reviews: Iterable[Review], by: Literal["relation", "run"] = "relation"
) -> list[VerdictCount]:
    """Count the verdicts for each relation of the test triples or each run, most reviews first."""
    counters: dict[str, Counter[str]] = {}
    for review in reviews:
        relation = review.test.relation_label or review.test.relation
        group = relation if by == "relation" else review.run_id
        counters.setdefault(group, Counter())[review.verdict] += 1
    counts = [
        VerdictCount(group, *(counter[verdict] for verdict in VERDICTS))
        for group, counter in counters.items()
    ]
    return sorted(counts, key=lambda count: (-count.total, count.group))


def reviews_csv(reviews: Sequence[Review]) -> str:
    """Return CSV with one row per review."""
    header = ["created", "reviewer", "run_id", "head", "relation", "tail"]
    header += ["head_label", "relation_label", "tail_label"]
    header += ["verdict", "convincing", "wrong", "comment", "review_id"]
    rows = [
        [
            *(review.created, review.reviewer, review.run_id),
            *(getattr(review.test, key) for key in Fact.__dataclass_fields__),
            review.verdict,
            "; ".join(_shown(fact) for fact in review.convincing),
            "; ".join(_shown(fact) for fact in review.wrong),
            *(review.comment, review.review_id),
        ]
        for review in reviews
    ]
    return csv_text(header, rows)


def _shown(fact: Fact) -> str:
    return f"{fact.head} | {fact.relation} | {fact.tail}"


@dataclass(frozen=True)
class DataOrigin:
    """Name and fingerprint of the data set of the facts; empty if the run does not record them."""

    name: str
    fingerprint: str


class OfRun(Protocol):
    """An object that belongs to a run: a review or a decision."""

    @property
    def run_id(self) -> str:
        """Id of the trace run."""


T = TypeVar("T", bound=OfRun)


def origins_of(runs: Iterable[RunRecord]) -> dict[str, DataOrigin]:
    keys = (names.TAG_DATASET, names.TAG_DATA_FINGERPRINT)
    return {run.run_id: DataOrigin(*(run.tags.get(key, "") for key in keys)) for run in runs}


def by_data(things: Iterable[T], runs: Iterable[RunRecord]) -> dict[DataOrigin, list[T]]:
    """Group reviews or decisions by the data set of the model that their run explains."""
    origins = origins_of(runs)
    found: dict[DataOrigin, list[T]] = {}
    for thing in things:
        found.setdefault(origins[thing.run_id], []).append(thing)
    return found
