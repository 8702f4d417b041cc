"""Disagreements between reviewers, final reviews, and the training facts that count as wrong.

Reviewers disagree about an explanation if their last verdicts differ. They disagree about a
training fact if one reviewer marks it as wrong and another as convincing, in any explanations of
models of the same data. A fact that only one person marks as wrong is to be decided too. Reviews
without a name count as those of one person, because two of them may be.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Literal

from clew import names
from clew.runs.reading.reviews import (
    FACT_VERDICTS,
    VERDICTS,
    DataOrigin,
    Fact,
    Group,
    Review,
    group_of,
    latest_of_each,
    origins_of,
)
from clew.runs.reading.runs import RunRecord
from clew.spreadsheets import FactList

About = Literal["explanation", "fact"]
CHOICES: dict[About, tuple[str, ...]] = {"explanation": VERDICTS, "fact": FACT_VERDICTS}
Key = tuple[str, ...]


@dataclass(frozen=True)
class Opinion:
    """The last opinion of one reviewer about an explanation or a training fact."""

    said: str
    """A verdict on an explanation, or `wrong` or `convincing` for a training fact."""
    review: Review


@dataclass(frozen=True)
class Disagreement:
    """An explanation or a fact that reviewers disagree about or that was decided."""

    about: About
    triple: Fact
    opinions: tuple[Opinion, ...]
    """One opinion per reviewer, oldest first."""
    decisions: tuple[Review, ...] = ()
    """All final reviews of it, oldest first; the last one counts."""
    key: str = ""
    """Short identifier for URLs."""

    @property
    def decision(self) -> Review | None:
        return self.decisions[-1] if self.decisions else None

    @property
    def needs_promoter(self) -> bool:
        """Whether it is a fact that fewer than two people have spoken about."""
        return self.about == "fact" and len(self.opinions) < 2

    @property
    def newer(self) -> tuple[Opinion, ...]:
        """Opinions that reviewers gave after the decision."""
        decided = self.decision
        return tuple(o for o in self.opinions if decided and o.review.created > decided.created)

    @property
    def run_ids(self) -> tuple[str, ...]:
        reviews = (*(opinion.review for opinion in self.opinions), *self.decisions)
        return tuple(dict.fromkeys(review.run_id for review in reviews))

    def final_review(self, verdict: str, reviewer: str, comment: str) -> Review:
        """Return the review that decides: a verdict, or whether the fact is wrong or right."""
        last = self.opinions[-1].review if self.opinions else self.decisions[-1]
        said: dict[str, Any] = {"verdict": verdict}
        if self.about == "fact":
            mark = "wrong" if verdict == "wrong" else "convincing"
            said = {"verdict": None, mark: (self.triple,)}
        said |= {"reviewer": reviewer.strip(), "comment": comment}
        return Review(last.run_id, last.test, final=True, **said)


def find_disagreements(reviews: Iterable[Review], runs: Iterable[RunRecord]) -> list[Disagreement]:
    """Return what is to be decided and what was decided, what is open first.

    `runs` are the runs of the reviews. Reviews of other runs are ignored.
    """
    origins = origins_of(runs)
    reviews = [review for review in reviews if review.run_id in origins]
    said: dict[Key, dict[str, Opinion]] = {}
    decided: dict[Key, list[Review]] = {}
    things: dict[Key, tuple[About, Fact]] = {}
    last = latest_of_each(reviews)
    final = [review for review in reviews if review.final]
    for review in sorted((*last, *final), key=lambda review: review.created):
        for about, triple, opinion in _spoken_of(review):
            within = (review.run_id,) if about == "explanation" else astuple(origins[review.run_id])
            key = (about, *within, *triple.triple)
            things.setdefault(key, (about, triple))
            if review.final:
                decided.setdefault(key, []).append(review)
            else:
                said.setdefault(key, {}).pop(review.reviewer, None)
                said[key][review.reviewer] = Opinion(opinion, review)
    disagreements = []
    for key, (about, triple) in things.items():
        spoken = said.get(key, {})
        named = [opinion for name, opinion in spoken.items() if name]
        opinions = tuple(named or (spoken.values() if about == "fact" else ()))
        is_alone = about == "fact" and [each.said for each in opinions] == ["wrong"]
        if key in decided or is_alone or len({each.said for each in named}) > 1:
            short = hashlib.sha256("\n".join(key).encode()).hexdigest()[:12]
            made = tuple(decided.get(key, ()))
            disagreements.append(Disagreement(about, triple, opinions, made, short))
    return sorted(disagreements, key=lambda each: (bool(each.decisions), each.about == "fact"))


def _spoken_of(review: Review) -> list[tuple[About, Fact, str]]:
    """Return what a review says of the explanation and of training facts; wrong outweighs."""
    marked = dict.fromkeys(review.convincing, "convincing") | dict.fromkeys(review.wrong, "wrong")
    facts: list[tuple[About, Fact, str]] = [("fact", fact, said) for fact, said in marked.items()]
    return facts if review.verdict is None else [("explanation", review.test, review.said), *facts]


def _last_final(reviews: Iterable[Review]) -> list[Review]:
    return sorted((review for review in reviews if review.final), key=lambda each: each.created)


def decision_on(triple: tuple[str, str, str], reviews: Iterable[Review]) -> Review | None:
    """Return the last of one run's final reviews of the explanation of a triple, or None."""
    found = [each for each in _last_final(reviews) if each.verdict and each.test.triple == triple]
    return found[-1] if found else None


def settled(reviews: Iterable[Review]) -> list[Review]:
    """Return the last review of each person, and of a decided explanation only the final one."""
    reviews = list(reviews)
    decided = {review.about: review for review in _last_final(reviews) if review.verdict}
    kept = [review for review in latest_of_each(reviews) if review.about not in decided]
    return kept + list(decided.values())


@dataclass(frozen=True)
class WrongFact:
    """A training fact that counts as wrong."""

    fact: Fact
    num_people: int
    """Number of named people whose reviews mark the fact as wrong."""
    decision: Review | None = None
    """The final review of the fact, if somebody decided."""


def wrong_facts(reviews: Iterable[Review]) -> list[WrongFact]:
    """Return the facts of one data set that count as wrong, those that most people marked first.

    A fact counts if two named people marked it, and none has decided that it is right; or if the
    last final review of it says so.
    """
    reviews = list(reviews)
    facts: dict[tuple[str, str, str], Fact] = {}
    people: dict[tuple[str, str, str], set[str]] = {}
    for review in latest_of_each(reviews):
        for fact in review.wrong:
            facts[fact.triple] = fact
            people.setdefault(fact.triple, set()).update({review.reviewer} - {""})
    decided = {}
    for review in _last_final(reviews):
        for fact in (*review.wrong, *review.convincing):
            facts.setdefault(fact.triple, fact)
            decided[fact.triple] = review
    wrong = []
    for triple, fact in facts.items():
        decision, num_people = decided.get(triple), len(people.get(triple, ()))
        if decision.wrong if decision else num_people > 1:
            wrong.append(WrongFact(fact, num_people, decision))
    return sorted(wrong, key=lambda each: -each.num_people)


def wrong_facts_tsv(reviews: Iterable[Review], origin: DataOrigin) -> str:
    """Return the facts that count as wrong, in the file format of `data.exclude`."""
    return exclusion_list(origin, [wrong.fact.triple for wrong in wrong_facts(reviews)])


def exclusion_list(origin: DataOrigin, triples: Iterable[tuple[str, str, str]]) -> str:
    """Return facts as lines `head<TAB>relation<TAB>tail`, for `data.exclude`.

    The first lines name the data set of the facts. A fact whose names contain a tab or a line break
    is left out, because this format cannot represent it.
    """
    told = {names.LIST_DATA_SET_PREFIX: origin.name}
    told[names.LIST_FINGERPRINT_PREFIX] = origin.fingerprint
    facts = ["\t".join(triple) for triple in triples if not set("\t\r\n") & set("".join(triple))]
    return FactList(facts, told).text()


@dataclass(frozen=True)
class ReviewerAgreement:
    """Agreement on the explanations that at least two reviewers judged."""

    alpha: float | None
    """Krippendorff's alpha of the verdicts: 1 is perfect, 0 is chance. None if there are no such
    explanations, or if all their verdicts are the same."""
    num_explanations: int
    """Number of explanations with at least two verdicts."""


def reviewer_agreement(reviews: Iterable[Review]) -> ReviewerAgreement:
    """Return how well the last verdicts of different reviewers agree.

    Reviews without a name are left out, because two of them may be from the same person.
    """
    verdicts: dict[object, Counter[str]] = {}
    for review in latest_of_each(review for review in reviews if review.reviewer):
        verdicts.setdefault(review.about, Counter())[review.said] += 1
    judged = [counts for counts in verdicts.values() if counts.total() > 1]
    alpha = None
    if len(set().union(*judged)) > 1:  # else chance alone would give full agreement
        import krippendorff

        counts = [[each[verdict] for verdict in VERDICTS] for each in judged]
        alpha = float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))
    return ReviewerAgreement(alpha, len(judged))


def agreement_by(reviews: Iterable[Review], by: Group) -> dict[str, ReviewerAgreement]:
    """Return the agreement within each relation or run, or on what each reviewer judged."""
    reviews = [review for review in reviews if review.reviewer]
    judged: dict[str, set[object]] = {}
    for review in reviews:
        judged.setdefault(group_of(review, by), set()).add(review.about)
    return {
        group: reviewer_agreement(review for review in reviews if review.about in judged[group])
        for group in judged
    }
