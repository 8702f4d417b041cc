"""Decisions about explanations and facts that reviewers disagree on, and their consequences.

A decision is stored as a file with the run, next to the reviews. The reviews are not changed, and a
later decision about the same thing replaces an earlier one. The training facts that count as wrong
form a list that the next training can leave out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from clew import names
from clew.errors import DataError
from clew.runs.reading import records
from clew.runs.reading.records import Kept
from clew.runs.reading.reviews import VERDICTS, DataOrigin, Fact, Review, Verdict
from clew.spreadsheets import FactList, csv_text

FOLDER = "decisions"
MAX_PERSON_CHARACTERS = 200

About = Literal["explanation", "fact"]
FactVerdict = Literal["wrong", "right"]
CHOICES: dict[About, tuple[str, ...]] = {"explanation": VERDICTS, "fact": get_args(FactVerdict)}
Key = tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """A person's decision about an explanation or about a training fact."""

    run_id: str
    """The run that the decision is stored with."""
    about: About
    triple: Fact
    """The explained triple, or the training fact."""
    verdict: Verdict | FactVerdict
    person: str
    comment: str = ""
    review_ids: tuple[str, ...] = ()
    """The reviews that the decision is about."""
    created: str = ""
    """Time in ISO 8601 with time zone, set when the decision is written."""
    decision_id: str = ""


_DECISION = TypeAdapter(Decision)


def append_decision(
    decision: Decision,
    reviews: Iterable[Review],
    *,
    earlier: Sequence[Decision] = (),
) -> Decision:
    """Write a decision to its run as a new file, and return the decision as written.

    Args:
        decision: The decision, with the ids of its reviews.
        reviews: The reviews in the store.
        earlier: Earlier decisions about the same thing. If there are any, the new decision revises
            them, even if all reviewers now agree.

    Raises:
        DataError: The verdict is invalid, the person's name is missing or too long, a review is
            unknown, or the reviewers do not disagree.
        TrackingError: The run no longer exists, or its artifacts cannot be written.
    """
    choices = CHOICES[decision.about]
    if decision.verdict not in choices:
        raise DataError(
            f"decision on {_article(decision.about)} is {decision.verdict!r}; expected one of "
            f"{', '.join(choices)}"
        )
    if not 0 < len(decision.person.strip()) <= MAX_PERSON_CHARACTERS:
        raise DataError(
            f"a decision names who decided, in 1 to {MAX_PERSON_CHARACTERS} characters; give your "
            "name"
        )
    _check_disagreement(decision, {review.review_id: review for review in reviews}, earlier)
    now, decision_id = records.stamp()
    decision = replace(
        decision, person=decision.person.strip(), created=now, decision_id=decision_id
    )
    records.append(decision, FOLDER, decision_id)
    return decision


def _check_disagreement(
    decision: Decision, reviews: dict[str, Review], earlier: Sequence[Decision]
) -> None:
    said: dict[str, str] = {}
    what = f"{decision.about} {' '.join(decision.triple.triple)}"
    for review_id in decision.review_ids:
        review = reviews.get(review_id)
        opinion = None if review is None else opinion_of(review, decision.about, decision.triple)
        if review is None or opinion is None:
            raise DataError(
                f"no review {review_id} says anything about {what}; reload the page and decide "
                "between the current reviews"
            )
        said[review.reviewer] = opinion
    if len(set(said.values())) < 2 and not earlier:
        told = ", ".join(f"{who} says {opinion}" for who, opinion in said.items()) or "no review"
        raise DataError(f"nobody disagrees about {what} ({told}); there is nothing to decide")


def _article(about: About) -> str:
    return "an explanation" if about == "explanation" else "a fact"


def opinion_of(review: Review, about: About, triple: Fact) -> str | None:
    """Return a review's opinion about an explained triple or a training fact; None without one."""
    if about == "explanation":
        return review.verdict if review.test.triple == triple.triple else None
    if any(fact.triple == triple.triple for fact in review.wrong):
        return "wrong"
    if any(fact.triple == triple.triple for fact in review.convincing):
        return "convincing"
    return None


def read_decisions(run_id: str) -> Kept[Decision]:
    """Return all decisions that are stored with a run.

    Raises:
        TrackingError: The run no longer exists, or its artifacts cannot be read.
    """
    return records.read(run_id, FOLDER, _decode)


def _decode(content: Any) -> Decision:
    decision = records.validated(content, _DECISION, "decision")
    if decision.verdict not in CHOICES[decision.about]:
        raise DataError(f"not a decision on {_article(decision.about)}: {decision.verdict}")
    return decision


def last_of_each(decisions: Iterable[Decision]) -> list[Decision]:
    """Return the last decision on each explanation, and on each fact of one data set."""
    last: dict[Key, Decision] = {}
    for decision in sorted(decisions, key=lambda decision: decision.created):
        within = decision.run_id if decision.about == "explanation" else ""
        last[decision.about, within, *decision.triple.triple] = decision
    return list(last.values())


def decision_on(triple: tuple[str, str, str], decisions: Iterable[Decision]) -> Decision | None:
    """Return the last of one run's decisions on the explanation of a test triple, or None."""
    last = (each for each in last_of_each(decisions) if each.about == "explanation")
    return next((each for each in last if each.triple.triple == triple), None)


def settled(reviews: Iterable[Review], decisions: Iterable[Decision]) -> list[Review]:
    """Return the reviews, with all reviews of a decided explanation replaced by the decision."""
    decided = {
        (decision.run_id, decision.triple.triple): decision
        for decision in last_of_each(decisions)
        if decision.about == "explanation"
    }
    kept = [review for review in reviews if (review.run_id, review.test.triple) not in decided]
    return kept + [
        Review(
            run_id=decision.run_id,
            test=decision.triple,
            verdict=decision.verdict,  # type: ignore[arg-type]
            reviewer=decision.person,
            comment=decision.comment,
            created=decision.created,
            review_id=decision.decision_id,
        )
        for decision in decided.values()
    ]


@dataclass(frozen=True)
class WrongFact:
    """A training fact that counts as wrong."""

    fact: Fact
    num_reviews: int
    """Number of reviews that mark the fact as wrong."""
    decision: Decision | None = None
    """The decision on the fact, if reviewers disagreed and somebody decided."""


def wrong_facts(reviews: Iterable[Review], decisions: Iterable[Decision] = ()) -> list[WrongFact]:
    """Return the facts of one data set that count as wrong, those with the most reviews first.

    A decision overrides the reviews: a fact that was decided to be right is left out.
    """
    decided = {
        decision.triple.triple: decision
        for decision in last_of_each(decisions)
        if decision.about == "fact"
    }
    facts: dict[tuple[str, str, str], Fact] = {}
    votes: Counter[tuple[str, str, str]] = Counter()
    for review in reviews:
        marked = {fact.triple: fact for fact in review.wrong}
        facts = marked | facts
        votes.update(marked.keys())
    for triple, decision in decided.items():
        facts.setdefault(triple, decision.triple)
    order = sorted(facts, key=lambda triple: -votes[triple])
    found = [WrongFact(facts[triple], votes[triple], decided.get(triple)) for triple in order]
    return [fact for fact in found if fact.decision is None or fact.decision.verdict == "wrong"]


def wrong_facts_tsv(
    reviews: Iterable[Review], origin: DataOrigin, decisions: Iterable[Decision] = ()
) -> str:
    """Return the facts that count as wrong, in the file format of `data.exclude`."""
    triples = [wrong.fact.triple for wrong in wrong_facts(reviews, decisions)]
    return exclusion_list(origin, triples)


def exclusion_list(origin: DataOrigin, triples: Iterable[tuple[str, str, str]]) -> str:
    """Return facts as lines `head<TAB>relation<TAB>tail`, for `data.exclude`.

    The first lines name the data set of the facts. A fact whose names contain a tab or a line break
    is left out, because this format cannot represent it.
    """
    told = {
        names.LIST_DATA_SET_PREFIX: origin.name,
        names.LIST_FINGERPRINT_PREFIX: origin.fingerprint,
    }
    facts = ["\t".join(triple) for triple in triples if not set("\t\r\n") & set("".join(triple))]
    return FactList(facts, told).text()


def decisions_csv(decisions: Iterable[Decision]) -> str:
    """Return CSV with one row per decision, including revised decisions."""
    header = ["created", "person", "about", "verdict", *Fact.__dataclass_fields__]
    header += ["comment", "run_id", "review_ids", "decision_id"]
    rows = [
        [
            *(decision.created, decision.person, decision.about, decision.verdict),
            *(getattr(decision.triple, key) for key in Fact.__dataclass_fields__),
            *(decision.comment, decision.run_id),
            *("; ".join(decision.review_ids), decision.decision_id),
        ]
        for decision in decisions
    ]
    return csv_text(header, rows)
