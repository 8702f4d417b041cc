"""Which facts are dropped in which retraining: random subsets, and the strongest of some tests."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from clew.validation.dropped_facts import Facts
from clew.validation.measures import strongest

TESTS_PER_GROUP = 5
"""Test triples whose strongest facts are deleted together."""
NUM_DELETED = (1, 4, 20)
"""Strongest facts that are deleted for each test triple."""
NOTHING: Facts = np.empty(0, np.int64)
SPREAD_OF_TESTS = 0.1
"""Standard deviation of the true correlation between test triples that the forecast assumes."""


@dataclass(frozen=True, eq=False)
class Retraining:
    """One retraining."""

    seed: int
    dropped: Facts
    """In ascending order."""

    @property
    def key(self) -> str:
        """Name of the retraining among those of a run, from what is trained."""
        digest = hashlib.sha256(self.dropped.astype("<i8").tobytes()).hexdigest()[:16]
        return f"seed-{self.seed}-{digest}"


@dataclass(frozen=True)
class Deletion:
    """Strongest facts of a group of test triples, deleted together."""

    form: str
    num_facts: int
    """For each test triple."""
    tests: tuple[int, ...]
    facts: Facts


def random_subsets(num_facts: int, fraction: float, count: int) -> Bool[np.ndarray, "subset fact"]:
    """Return which facts each subset drops; the same for the same arguments."""
    size = max(1, round(fraction * num_facts))
    generator = np.random.default_rng([count, size, num_facts])
    dropped = np.zeros((count, num_facts), bool)
    for row in dropped:
        row[generator.permutation(num_facts)[:size]] = True
    return dropped


def deletions(
    scores: Mapping[str, Float[np.ndarray, "test fact"]],
    tests: Sequence[int],
    ties: Float[np.ndarray, "test fact"],
) -> Iterator[Deletion]:
    """Yield what each form of score deletes for each group of test triples.

    Args:
        scores: Scores by form.
        tests: Places of the test triples that take part.
        ties: What decides between facts of equal score.
    """
    groups = [tuple(tests[i : i + TESTS_PER_GROUP]) for i in range(0, len(tests), TESTS_PER_GROUP)]
    for form, values in scores.items():
        for count in NUM_DELETED:
            for group in groups:
                facts = [strongest(values[test], count, ties[test]) for test in group]
                yield Deletion(form, count, group, np.unique(np.concatenate(facts)))


def expected_half_width(num_subsets: int, num_tests: int) -> float:
    """Forecast the half-width of a datamodelling score's 95 % interval.

    A rank correlation over n subsets has a standard error of about 1 / sqrt(n - 1); test triples
    differ by `SPREAD_OF_TESTS` besides.
    """
    variance = 1.0 / max(1, num_subsets - 1) + SPREAD_OF_TESTS**2
    return 1.96 * math.sqrt(variance / max(1, num_tests))
