"""Reviews of explanations: a person's judgement, stored permanently with the run.

Each review is a JSON file with a unique name. Two reviewers can therefore write at the same time,
and no review is ever overwritten. A review that is marked final decides what others disagree about;
the last one counts.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.errors import DataError, TrackingError, described, refusing
from clew.runs import store
from clew.runs.reading.runs import RunRecord, client, fetched, find_run, list_artifact_folders
from clew.spreadsheets import csv_text

FOLDER = "reviews"
SCHEMA_VERSION = 1
MAX_COMMENT_CHARACTERS = 10_000
MAX_PERSON_CHARACTERS = 200

Verdict = Literal["plausible", "implausible", "unsure"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FactVerdict = Literal["wrong", "right"]
FACT_VERDICTS: tuple[FactVerdict, ...] = get_args(FactVerdict)
Group = Literal["relation", "run", "reviewer"]


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

    @property
    def labels(self) -> tuple[str, str, str]:
        return (
            self.head_label or self.head,
            self.relation_label or self.relation,
            self.tail_label or self.tail,
        )


@dataclass(frozen=True)
class Review:
    """One person's judgement of the explanation of a test triple."""

    run_id: str
    test: Fact
    verdict: Verdict | None
    """None in a final review that is about a training fact only."""
    reviewer: str
    comment: str = ""
    convincing: tuple[Fact, ...] = ()
    wrong: tuple[Fact, ...] = ()
    created: str = ""
    """Time in ISO 8601 with time zone, set when the review is written."""
    review_id: str = ""
    final: bool = False
    """Whether it counts instead of all other reviews of the same explanation or training fact."""

    @property
    def said(self) -> str:
        """The verdict in a word; of a final review about a training fact, `wrong` or `right`."""
        return self.verdict or ("wrong" if self.wrong else "right")

    @property
    def about(self) -> tuple[str, tuple[str, str, str]]:
        """The explanation that was judged: its run, and the names of its triple."""
        return (self.run_id, self.test.triple)


_REVIEW = TypeAdapter(Review)


@dataclass(frozen=True)
class Kept:
    """The reviews of runs, oldest first, and the problems of files that contain no review."""

    records: tuple[Review, ...]
    problems: tuple[str, ...] = ()


def append_review(review: Review) -> Review:
    """Write a review to its run as a new file, mark the run, and return the review as written."""
    about_fact = review.final and len(review.wrong) + len(review.convincing) == 1
    if review.verdict not in VERDICTS and not (about_fact and review.verdict is None):
        raise DataError(f"verdict is {review.verdict!r}; expected one of {', '.join(VERDICTS)}")
    if review.final and not 0 < len(review.reviewer.strip()) <= MAX_PERSON_CHARACTERS:
        wanted = f"names who decided, in 1 to {MAX_PERSON_CHARACTERS} characters"
        raise DataError(f"a final review {wanted}; give your name")
    if len(review.comment) > MAX_COMMENT_CHARACTERS:
        advice = f"write at most {MAX_COMMENT_CHARACTERS}"
        raise DataError(f"the comment has {len(review.comment)} characters; {advice}")
    now = datetime.now(UTC)
    review = replace(review, created=now.isoformat(), review_id=uuid.uuid4().hex)
    content = {"schema_version": SCHEMA_VERSION} | asdict(review)
    name = f"{FOLDER}/{now:%Y%m%dT%H%M%S}-{review.review_id}.json"
    _mark_reviewed(review.run_id)
    what = f"{FOLDER} of run {review.run_id} could not be written"
    advice = "; is its artifact store writable from here?"
    with refusing(what, MlflowException, OSError, advice=advice, error=TrackingError):
        client().log_text(review.run_id, json.dumps(content, ensure_ascii=False, indent=1), name)
    return review


def _mark_reviewed(run_id: str) -> None:
    """Tag a run, so that its reviews can be found without reading all runs."""
    if names.TAG_REVIEWED in find_run(run_id).tags:
        return
    try:
        with store.using(f"marking run {run_id} as reviewed"):
            client().set_tag(run_id, names.TAG_REVIEWED, "true")
    except TrackingError:
        if names.TAG_REVIEWED not in find_run(run_id).tags:  # another process may have set it
            raise


def read_reviews(run_id: str) -> Kept:
    """Return all reviews of a run, the final ones too."""
    if FOLDER not in list_artifact_folders(run_id):
        return Kept(())
    found, problems = [], []
    with fetched(run_id, FOLDER) as place:
        for path in sorted(place.glob("*.json")):
            try:
                found.append(_decoded(json.loads(path.read_text(encoding="utf-8")), run_id))
            except (OSError, ValueError, RecursionError) as error:
                problems.append(f"{path.name}: {described(error)}")
    return Kept(tuple(sorted(found, key=lambda review: review.created)), tuple(problems))


def _decoded(content: Any, run_id: str) -> Review:
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"not a review of schema version {SCHEMA_VERSION}")
    with refusing("not a complete review", ValidationError):
        review = _REVIEW.validate_python(content)
    if review.verdict is None and not review.final:
        raise DataError("not a complete review (verdict: missing)")
    return replace(review, run_id=run_id)  # a run that was copied has another id


def latest_of_each(reviews: Iterable[Review]) -> list[Review]:
    """Return the last review of each reviewer for each test triple of a run; final ones left out.

    Reviews without a name are all returned.
    """
    latest: dict[object, Review] = {}
    for review in sorted(reviews, key=lambda review: review.created):
        if not review.final:
            latest[review.about, review.reviewer or review.review_id] = review
    return list(latest.values())


def group_of(review: Review, by: Group) -> str:
    relation = review.test.labels[1]
    return {"relation": relation, "run": review.run_id, "reviewer": review.reviewer}[by]


def count_verdicts(reviews: Iterable[Review], by: Group = "relation") -> dict[str, Counter[str]]:
    """Count the verdicts in each group, the group with most reviews first."""
    counts: dict[str, Counter[str]] = {}
    for review in reviews:
        counts.setdefault(group_of(review, by), Counter())[review.said] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])))


def reviews_csv(reviews: Sequence[Review]) -> str:
    header = ["created", "reviewer", "run_id", "head", "relation", "tail"]
    header += ["head_label", "relation_label", "tail_label"]
    header += ["verdict", "convincing", "wrong", "comment", "review_id", "final"]
    rows = [
        [
            *(review.created, review.reviewer, review.run_id),
            *(getattr(review.test, key) for key in Fact.__dataclass_fields__),
            review.verdict or "",
            "; ".join(" | ".join(fact.triple) for fact in review.convincing),
            "; ".join(" | ".join(fact.triple) for fact in review.wrong),
            *(review.comment, review.review_id, "final" if review.final else ""),
        ]
        for review in reviews
    ]
    return csv_text(header, rows)


@dataclass(frozen=True)
class DataOrigin:
    """Name and fingerprint of the data set of the facts; empty if the run does not record them."""

    name: str
    fingerprint: str


def origins_of(runs: Iterable[RunRecord]) -> dict[str, DataOrigin]:
    """Return the data set of the model that each run explains, by run id."""
    keys = (names.TAG_DATASET, names.TAG_DATA_FINGERPRINT)
    return {run.run_id: DataOrigin(*(run.tags.get(key, "") for key in keys)) for run in runs}


def by_data(reviews: Iterable[Review], runs: Iterable[RunRecord]) -> dict[DataOrigin, list[Review]]:
    """Group reviews by the data set of the model that their run explains."""
    origins = origins_of(runs)
    found: dict[DataOrigin, list[Review]] = {}
    for review in reviews:
        found.setdefault(origins[review.run_id], []).append(review)
    return found
