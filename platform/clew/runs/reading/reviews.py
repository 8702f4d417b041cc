"""Reviews of explanations: what a person thought of one, kept with the run for good.

Each review is a separate JSON file under a name that nobody else has, so two reviewers at once
lose nothing and nothing is ever overwritten. This is all that the dashboard writes by itself.
"""

import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.errors import DataError, TrackingError, described
from clew.runs import store
from clew.runs.reading.runs import RunRecord, client, find_run
from clew.runs.reading.tables import csv_text

FOLDER = "reviews"
SCHEMA_VERSION = 1
MAX_COMMENT_CHARACTERS = 10_000

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
class Reviews:
    """The reviews of a run, oldest first, and the files that are none."""

    reviews: tuple[Review, ...]
    problems: tuple[str, ...] = ()


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


def append_review(review: Review, *, uri: str | None = None) -> Review:
    """Write a review to its run, under a new name, and return it as written.

    Raises:
        DataError: the verdict is none, or the comment is too long.
        TrackingError: the run is gone or its artifacts cannot be written.
    """
    if review.verdict not in VERDICTS:
        raise DataError(f"verdict is {review.verdict!r}; expected one of {', '.join(VERDICTS)}")
    if len(review.comment) > MAX_COMMENT_CHARACTERS:
        raise DataError(
            f"comment of {len(review.comment)} characters; at most {MAX_COMMENT_CHARACTERS} fit"
        )
    find_run(review.run_id, uri)
    now = datetime.now(UTC)
    review = replace(review, created=now.isoformat(), review_id=uuid.uuid4().hex)
    content = {"schema_version": SCHEMA_VERSION} | asdict(review)
    name = f"{FOLDER}/{now:%Y%m%dT%H%M%S}-{review.review_id}.json"
    text = json.dumps(content, ensure_ascii=False, indent=1)
    try:
        client(uri).log_text(review.run_id, text, name)
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"review of run {review.run_id} could not be written ({described(error)}); is its "
            "artifact store writable from here?"
        ) from None
    return review


def read_reviews(run_id: str, *, uri: str | None = None) -> Reviews:
    """Return all reviews of a run.

    Raises:
        TrackingError: the run is gone or its artifacts cannot be read.
    """
    find_run(run_id, uri)
    with store.using(f"the reviews of run {run_id}", uri), tempfile.TemporaryDirectory() as folder:
        connected = client(uri)
        if not connected.list_artifacts(run_id, FOLDER):
            return Reviews(())
        try:
            path = Path(connected.download_artifacts(run_id, FOLDER, folder))
        except OSError as error:
            raise TrackingError(f"reviews of run {run_id} cannot be read ({error})") from None
        return _read_folder(path)


def _read_folder(folder: Path) -> Reviews:
    reviews, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            reviews.append(decode_review(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path.name}: {error}")
    reviews.sort(key=lambda review: review.created)
    return Reviews(tuple(reviews), tuple(problems))


def decode_review(content: Any) -> Review:
    """Return the review that parsed JSON holds.

    Raises:
        DataError: it holds none, or one of another schema version.
    """
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"no review of schema {SCHEMA_VERSION}")
    try:
        return _REVIEW.validate_python(content)
    except ValidationError as error:
        raise DataError(f"not a whole review ({described(error)})") from None


def latest_of_each(reviews: Iterable[Review]) -> list[Review]:
    """Return the last review of each reviewer and test triple; a new one replaces a change of mind.

    Reviews without a reviewer's name all count.
    """
    latest: dict[object, Review] = {}
    for review in sorted(reviews, key=lambda review: review.created):
        triple = (review.test.head, review.test.relation, review.test.tail)
        author = review.reviewer or review.review_id
        latest[review.run_id, author, triple] = review
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


def wrong_facts(reviews: Iterable[Review]) -> list[tuple[Fact, int]]:
    """Return the facts that were marked wrong with the number of reviews that did, most first."""
    votes = Counter(fact for review in reviews for fact in set(review.wrong))
    return votes.most_common()


@dataclass(frozen=True)
class DataOrigin:
    """The data that facts are from: their name and fingerprint, empty where a run says none."""

    name: str
    fingerprint: str


def by_data(reviews: Iterable[Review], runs: Iterable[RunRecord]) -> dict[DataOrigin, list[Review]]:
    """Return the reviews of each data set that the reviewed runs explain models of."""
    keys = (names.TAG_DATASET, names.TAG_DATA_FINGERPRINT)
    origins = {run.run_id: DataOrigin(*(run.tags.get(key, "") for key in keys)) for run in runs}
    found: dict[DataOrigin, list[Review]] = {}
    for review in reviews:
        found.setdefault(origins[review.run_id], []).append(review)
    return found


def wrong_facts_tsv(reviews: Iterable[Review], origin: DataOrigin) -> str:
    """Return the facts marked wrong as `head<TAB>relation<TAB>tail` lines, for `data.exclude`.

    Lines before them say from which data they are. A name with a tab or a line break cannot be in
    such a file, so it is left out.
    """
    told = {
        names.LIST_DATA_SET_PREFIX: origin.name,
        names.LIST_FINGERPRINT_PREFIX: origin.fingerprint,
    }
    lines = [f"{key}{' '.join(value.split())}" for key, value in told.items() if value]
    triples = [(fact.head, fact.relation, fact.tail) for fact, _ in wrong_facts(reviews)]
    facts = ["\t".join(triple) for triple in triples if not set("\t\r\n") & set("".join(triple))]
    return "".join(f"{line}\n" for line in [*lines, *dict.fromkeys(facts)])
