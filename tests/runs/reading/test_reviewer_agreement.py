"""Krippendorff's alpha of reviews: its author's example, limits, and whose verdicts count."""

from dataclasses import replace
from itertools import permutations

import pytest

from clew.runs.reading.disagreements import reviewer_agreement
from clew.runs.reading.reviews import VERDICTS, Fact, Review

# Krippendorff (2011), section C, without its two rarest values: observers, units; a dot is missing.
OBSERVERS = ("12332121....", "1233222.1..3", ".3332322.1..", "123322211.1.")


def judged(observers: tuple[str, ...]) -> list[Review]:
    """Return the reviews of observers; the digit of a unit is its verdict."""
    return [
        Review("run", Fact(str(unit), "r", "b"), VERDICTS[int(said) - 1], f"observer {who}")
        for who, units in enumerate(observers)
        for unit, said in enumerate(units)
        if said != "."
    ]


def plain_alpha(observers: tuple[str, ...]) -> float:
    """Return 1 - observed / expected disagreement, pair by pair."""
    units = [[v for v in column if v != "."] for column in zip(*observers, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    pooled = [value for unit in units for value in unit]
    observed = sum(
        sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units
    ) / len(pooled)
    pairs = [a != b for a, b in permutations(pooled, 2)]
    return 1 - observed / (sum(pairs) / len(pairs))


def test_it_equals_the_plain_loop() -> None:
    assert reviewer_agreement(judged(OBSERVERS)).alpha == pytest.approx(plain_alpha(OBSERVERS))


@pytest.mark.parametrize("observers", [(), ("1.", ".2"), ("11", "11")])
def test_where_nothing_can_be_said(observers: tuple[str, ...]) -> None:
    assert reviewer_agreement(judged(observers)).alpha is None


def test_perfect_and_opposite() -> None:
    assert reviewer_agreement(judged(("12", "12"))).alpha == 1
    opposite = reviewer_agreement(judged(("1" * 9, "2" * 9))).alpha
    assert opposite == pytest.approx(-8 / 9)


def test_of_each_reviewer_the_last_verdict_counts_and_nameless_ones_do_not() -> None:
    base = Review("run", Fact("a", "r", "b"), "plausible", "Ada", created="1")
    reviews = [
        base,
        replace(base, verdict="unsure", created="2"),
        replace(base, reviewer="Grace", verdict="unsure"),
        replace(base, reviewer="", review_id="x"),
        replace(base, run_id="other"),
        replace(base, run_id="other", reviewer="Grace"),
        replace(base, run_id="third"),
    ]
    found = reviewer_agreement(reviews)
    assert (found.alpha, found.num_explanations) == (1.0, 2)
