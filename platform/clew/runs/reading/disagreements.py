"""What reviewers disagree about.

About an explanation, if their last verdicts differ; about a training fact, if one marks it wrong
that convinced another, in whatever explanations of models of the same data. Reviews without a name
are left out: two of them may be from one person.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

from clew.runs.reading.decisions import About, Decision, Key, opinion_of
from clew.runs.reading.reviews import Fact, Review, latest_of_each, origins_of
from clew.runs.reading.runs import RunRecord


@dataclass(frozen=True)
class Opinion:
    """What one reviewer says, last, about a thing."""

    said: str
    """A verdict on an explanation; `wrong` or `convincing` of a training fact."""
    review: Review


@dataclass(frozen=True)
class Disagreement:
    """A thing that reviewers disagree about, or did before it was decided."""

    about: About
    triple: Fact
    opinions: tuple[Opinion, ...]
    """One of each reviewer, oldest first."""
    decisions: tuple[Decision, ...] = field(default=())
    """All that was decided about it, oldest first: the last one counts."""
    key: str = ""
    """Short name for an address."""

    @property
    def decision(self) -> Decision | None:
        """The decision that counts."""
        return self.decisions[-1] if self.decisions else None

    @property
    def is_open(self) -> bool:
        """Whether reviewers disagree and nobody has decided."""
        return self.decision is None

    @property
    def newer(self) -> tuple[Opinion, ...]:
        """What reviewers said since the decision."""
        known = self.decision.review_ids if self.decision else ()
        return tuple(
            opinion for opinion in self.opinions if known and opinion.review.review_id not in known
        )

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs of its reviews, the newest review's last."""
        return tuple(dict.fromkeys(opinion.review.run_id for opinion in self.opinions))


def find_disagreements(
    reviews: Iterable[Review], decisions: Iterable[Decision], runs: Iterable[RunRecord]
) -> list[Disagreement]:
    """Return what named reviewers disagree about, or did before a decision: the open ones first.

    `runs` are those of the reviews and decisions; of a run that is not among them, nothing counts.
    """
    origins = origins_of(runs)

    def key(about: About, run_id: str, triple: Fact) -> Key:
        within = (run_id,) if about == "explanation" else astuple(origins[run_id])
        return (about, *within, *triple.triple)

    said: dict[Key, dict[str, Opinion]] = {}
    things: dict[Key, tuple[About, Fact]] = {}
    last = latest_of_each(review for review in reviews if review.reviewer)
    for review in sorted(last, key=lambda review: review.created):
        for about, triple in _spoken_of(review) if review.run_id in origins else ():
            opinion = opinion_of(review, about, triple)
            assert opinion is not None
            found = key(about, review.run_id, triple)
            things.setdefault(found, (about, triple))
            said.setdefault(found, {}).pop(review.reviewer, None)
            said[found][review.reviewer] = Opinion(opinion, review)
    decided: dict[Key, list[Decision]] = {}
    for decision in sorted(decisions, key=lambda decision: decision.created):
        if decision.run_id in origins:
            found = key(decision.about, decision.run_id, decision.triple)
            things.setdefault(found, (decision.about, decision.triple))
            decided.setdefault(found, []).append(decision)
    disagreements = [
        Disagreement(
            *things[found],
            opinions=tuple(said.get(found, {}).values()),
            decisions=tuple(decided.get(found, ())),
            key=hashlib.sha256("\n".join(found).encode()).hexdigest()[:12],
        )
        for found in things
        if found in decided or len({each.said for each in said[found].values()}) > 1
    ]
    return sorted(disagreements, key=lambda each: (not each.is_open, each.about == "fact"))


def _spoken_of(review: Review) -> list[tuple[About, Fact]]:
    marked = dict.fromkeys((*review.wrong, *review.convincing))
    return [("explanation", review.test), *(("fact", fact) for fact in marked)]
