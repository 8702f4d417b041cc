"""Finds disagreements between reviewers, and measures their agreement beyond chance.

Reviewers disagree about an explanation if their last verdicts differ. They disagree about a
training fact if one reviewer marks it as wrong and another as convincing, in any explanations of
models of the same data. Reviews without a name are left out, because two of them may be from the
same person.
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
    decisions: tuple[Decision, ...] = ()
    """All decisions about it, oldest first; the last one counts."""
    key: str = ""
    """Short identifier for URLs."""

    @property
    def decision(self) -> Decision | None:
        return self.decisions[-1] if self.decisions else None

    @property
    def is_open(self) -> bool:
        return self.decision is None

    @property
    def newer(self) -> tuple[Opinion, ...]:
        """Opinions that reviewers gave after the decision."""
        known = self.decision.review_ids if self.decision else ()
        return tuple(
            opinion for opinion in self.opinions if known and opinion.review.review_id not in known
        )

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(opinion.review.run_id for opinion in self.opinions))


def find_disagreements(
    reviews: Iterable[Review], decisions: Iterable[Decision], runs: Iterable[RunRecord]
) -> list[Disagreement]:
    """Return what named reviewers disagree about and what was decided, open disagreements first.

    `runs` are the runs of the reviews and decisions. Reviews and decisions of other runs are
    ignored.
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
    """Agreement on the explanations that at least two reviewers judged."""

    alpha: float | None
    """Krippendorff's alpha. None if there are no such explanations, or if all their verdicts are
    the same, because then chance alone would give full agreement."""
    num_explanations: int
    """Number of explanations with at least two verdicts."""


def reviewer_agreement(reviews: Iterable[Review]) -> ReviewerAgreement:
    """Return how well the last verdicts of different reviewers agree.

    Reviews without a name are left out, because two of them may be from the same person.
    """
    verdicts: dict[tuple[str, Fact], list[Verdict]] = {}
    for review in latest_of_each(review for review in reviews if review.reviewer):
        verdicts.setdefault((review.run_id, review.test), []).append(review.verdict)
    judged = [found for found in verdicts.values() if len(found) > 1]
    return ReviewerAgreement(krippendorff_alpha(judged), len(judged))


def krippendorff_alpha(units: Sequence[Sequence[object]]) -> float | None:
    """Return Krippendorff's alpha of nominal values; each unit is the list of its values.

    Reviewers can judge different units, and any number of them. In a unit with m > 1 values, each
    ordered pair of values has the weight 1 / (m - 1); units with fewer values are left out. Let n
    be the number of values in these units, n_c the number of values of kind c, and o the total
    weight of the pairs with different values. Then

        alpha = 1 - (n - 1) o / (n^2 - sum over c of n_c^2).

    1 means perfect agreement, 0 means agreement by chance, and values below 0 are worse than chance
    (Krippendorff, 2011, Computing Krippendorff's Alpha-Reliability, section C, nominal data). The
    result is None if no unit has two values, or if all values are the same.
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
