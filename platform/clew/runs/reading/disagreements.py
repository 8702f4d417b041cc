"""What reviewers disagree about, and how far they agree beyond chance.

They disagree about an explanation, if their last verdicts differ; about a training fact, if one
marks it wrong that convinced another, in whatever explanations of models of the same data. Reviews
without a name are left out: two of them may be from one person.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from clew.runs.reading.decisions import About, Decision, Key, opinion_of
from clew.runs.reading.reviews import Fact, Review, Verdict, latest_of_each, origins_of
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
    decisions: tuple[Decision, ...] = ()
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


@dataclass(frozen=True)
class ReviewerAgreement:
    """Agreement over the explanations that at least two reviewers judged."""

    alpha: float | None
    """None if there are no such explanations, or if all their verdicts are the same: chance would
    give that too."""
    num_explanations: int
    """Explanations with at least two verdicts."""


def reviewer_agreement(reviews: Iterable[Review]) -> ReviewerAgreement:
    """Return how far the last verdicts of different reviewers agree.

    Reviews without a reviewer's name are left out: two of them may be from one person.
    """
    verdicts: dict[tuple[str, Fact], list[Verdict]] = {}
    for review in latest_of_each(review for review in reviews if review.reviewer):
        verdicts.setdefault((review.run_id, review.test), []).append(review.verdict)
    judged = [found for found in verdicts.values() if len(found) > 1]
    return ReviewerAgreement(krippendorff_alpha(judged), len(judged))


def krippendorff_alpha(units: Sequence[Sequence[object]]) -> float | None:
    """Return Krippendorff's alpha of nominal values; those of one thing are a list.

    Reviewers may have judged different things, and any number of them. A thing with m > 1 values
    counts each ordered pair of them with the weight 1 / (m - 1), one with fewer is left out; with n
    values in all such things, n_c of them of kind c, and o the total weight of the pairs that
    differ,

        alpha = 1 - (n - 1) o / (n^2 - sum over c of n_c^2).

    1 is perfect agreement, 0 what chance gives, below 0 is worse than chance (Krippendorff, 2011,
    Computing Krippendorff's Alpha-Reliability, section C, nominal data). None if no thing has two
    values, or if all values are the same.
    """
    paired = [Counter(unit) for unit in units if len(unit) > 1]
    totals = sum(paired, Counter[object]())
    count = totals.total()
    expected = count**2 - sum(number**2 for number in totals.values())
    if not expected:
        return None
    differing = sum(
        (unit.total() ** 2 - sum(number**2 for number in unit.values())) / (unit.total() - 1)
        for unit in paired
    )
    return 1 - (count - 1) * differing / expected
