"""How far reviewers agree beyond chance: Krippendorff's alpha over their verdicts.

Reviewers may have judged different explanations, and any number of them. An explanation with m > 1
verdicts counts each ordered pair of them with the weight 1 / (m - 1); with n verdicts in all such
explanations, n_c of them of kind c, and o the total weight of the pairs that differ,

    alpha = 1 - (n - 1) o / (n^2 - sum over c of n_c^2).

1 is perfect agreement, 0 what chance gives, below 0 is worse than chance (Krippendorff, 2011,
Computing Krippendorff's Alpha-Reliability, section C, nominal data).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clew.runs.reading.reviews import Fact, Review, Verdict, latest_of_each


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
    """Return alpha of nominal values; those of one thing are a list, of fewer than two left out.

    None if no thing has two values, or if all values are the same.
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
