"""Krippendorff's alpha: its author's example, a plain loop, and reviews."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from clew.runs.reading.disagreements import krippendorff_alpha, reviewer_agreement
from clew.runs.reading.reviews import Fact, Review

# Krippendorff (2011), section C: four observers, twelve units; a dot is a missing value.
OBSERVERS = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")


def units() -> list[list[str]]:
    return [[value for value in column if value != "."] for column in zip(*OBSERVERS, strict=True)]


def plain_alpha(values: list[list[str]]) -> float:
    """Return 1 - observed / expected disagreement, pair by pair."""
    values = [unit for unit in values if len(unit) > 1]
    pooled = [value for unit in values for value in unit]
    observed = sum(
        sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in values
    ) / len(pooled)
    expected = np.mean([a != b for a, b in permutations(pooled, 2)])
    return 1 - observed / float(expected)


def test_the_worked_example() -> None:
    assert krippendorff_alpha(units()) == pytest.approx(0.743, abs=5e-4)


def test_it_equals_the_plain_loop() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        sizes = generator.integers(0, 5, 12)
        values = [[str(value) for value in generator.integers(0, 3, size)] for size in sizes]
        assert krippendorff_alpha(values) == pytest.approx(plain_alpha(values))


@pytest.mark.parametrize("values", [[], [["a"], ["b"]], [["a", "a"], ["a", "a", "a"]]])
def test_where_nothing_can_be_said(values: list[list[str]]) -> None:
    assert krippendorff_alpha(values) is None


def test_perfect_and_opposite() -> None:
    assert krippendorff_alpha([["a", "a"], ["b", "b"]]) == 1
    assert krippendorff_alpha([["a", "b"]] * 9) == pytest.approx(-8 / 9)


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
