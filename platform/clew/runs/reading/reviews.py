"""Reviews of explanations: what a person thought of one, kept with the run for good.

Each review is a separate JSON file under a name that nobody else has, so two reviewers at once
lose nothing and nothing is ever overwritten.
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
from clew.runs.reading.tables import csv_text

FOLDER = "reviews"

Verdict = Literal["plausible", "implausible", "unsure"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Fact:
    """A triple under the data set's own names, with the texts that people read."""

    head: str
    relation: str
    tail: str
    head_label: str = ""
    relation_label: str = ""
    tail_label: str = ""

    @property
    def triple(self) -> tuple[str, str, str]:
        """Its names: by these it is the same fact, whatever the texts."""
        return (self.head, self.relation, self.tail)


@dataclass(frozen=True)
class Review:
    """One person's judgement of the explanation of one test triple."""

    run_id: str
    test: Fact
    verdict: Verdict
    reviewer: str
    comment: str = ""
    convincing: tuple[Fact, ...] = ()
    wrong: tuple[Fact, ...] = ()
    created: str = ""
    """Time in ISO 8601 with zone; filled in when it is written."""
    review_id: str = ""


_REVIEW = TypeAdapter(Review)


@dataclass(frozen=True)
class VerdictCount:
    """How many reviews of a relation, or of a run, gave which verdict."""

    group: str
    plausible: int
    implausible: int
    unsure: int

    @property
    def total(self) -> int:
        """All reviews."""
        return self.plausible + self.implausible + self.unsure


def append_review(review: Review) -> Review:
    """Write a review to its run, under a new name, and return it as written.

    Raises:
        DataError: the verdict is none, or the comment is too long.
        TrackingError: the run is gone or its artifacts cannot be written.
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
        TrackingError: the run is gone or its artifacts cannot be read.
    """
    return records.read(run_id, FOLDER, lambda each: records.validated(each, _REVIEW, "review"))


def latest_of_each(reviews: Iterable[Review]) -> list[Review]:
    """Return the last review of each reviewer and test triple; a new one replaces a change of mind.

    Reviews without a reviewer's name all count.
    """
    latest: dict[object, Review] = {}
    for review in sorted(reviews, key=lambda review: review.created):
        author = review.reviewer or review.review_id
        latest[review.run_id, author, review.test.triple] = review
    return list(latest.values())


def count_verdicts(
    reviews: Iterable[Review], by: Literal["relation", "run"] = "relation"
) -> list[VerdictCount]:
    """Return the verdicts by relation of the test triple or by run id, the most reviewed first."""
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
    """Return one row a review."""
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
    """The data that facts are from: their name and fingerprint, empty where a run says none."""

    name: str
    fingerprint: str


class OfRun(Protocol):
    """What belongs to a run: a review, a decision."""

    @property
    def run_id(self) -> str:
        """Id of the trace run."""


T = TypeVar("T", bound=OfRun)


def origins_of(runs: Iterable[RunRecord]) -> dict[str, DataOrigin]:
    """Return the data of the model that each run explains, by the run's id."""
    keys = (names.TAG_DATASET, names.TAG_DATA_FINGERPRINT)
    return {run.run_id: DataOrigin(*(run.tags.get(key, "") for key in keys)) for run in runs}


def by_data(things: Iterable[T], runs: Iterable[RunRecord]) -> dict[DataOrigin, list[T]]:
    """Return the reviews or decisions of each data set that the runs explain models of."""
    origins = origins_of(runs)
    found: dict[DataOrigin, list[T]] = {}
    for thing in things:
        found.setdefault(origins[thing.run_id], []).append(thing)
    return found
