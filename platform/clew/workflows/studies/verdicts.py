"""Judges claims by the rounds of a study: an estimate, its 95 % interval and a verdict."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from scipy.stats import t as student_t

from clew.config.study import Claim, Study, memory_of

METHOD = (
    "Variants take turns in rounds, one seed per round. A ratio is the geometric mean of the "
    "rounds' ratios; its 95 % interval is Student's t over their logarithms, so a slowdown of a "
    "whole round cancels. Differences and values have the same interval without logarithms. A "
    "claim holds if the whole interval is within its bounds, does not hold if no part of it is, "
    "and cannot be told in between."
)

Values = Mapping[tuple[str, str], Mapping[int, float]]
"""Measured values: (variant, metric) to {seed: value}."""


@dataclass(frozen=True)
class Estimate:
    """A ratio, a difference or a value, with its 95 % interval over rounds."""

    value: float
    low: float
    """Lower end of the interval; minus infinity after a single round."""
    high: float
    rounds: int

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Self | None:
        """Return the mean of the values; None if there are no values."""
        if not values:
            return None
        mean, count = statistics.fmean(values), len(values)
        if count == 1:
            return cls(mean, -math.inf, math.inf, count)
        error = statistics.stdev(values) / math.sqrt(count)
        half = error * float(student_t.ppf(0.975, count - 1))
        return cls(mean, mean - half, mean + half, count)

    @classmethod
    def of_differences(cls, values: Mapping[int, float], base: Mapping[int, float]) -> Self | None:
        return cls.of_values([values[seed] - base[seed] for seed in _common(values, base)])

    @classmethod
    def of_ratios(cls, values: Mapping[int, float], base: Mapping[int, float]) -> Self | None:
        """Return the geometric mean of the ratios of the rounds that both have.

        Returns None if one of the values is zero or negative, because such a ratio has no meaning.
        """
        seeds = _common(values, base)
        if any(values[seed] <= 0 or base[seed] <= 0 for seed in seeds):
            return None
        found = cls.of_values([math.log(values[seed] / base[seed]) for seed in seeds])
        if found is None:
            return None
        return cls(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.rounds)

    def judge(self, claim: Claim) -> str:
        """Return whether the claim holds, as described in `METHOD`."""
        if claim.holds(self.low) and claim.holds(self.high):
            return "holds"
        above = claim.at_most is not None and self.low > claim.at_most
        below = claim.at_least is not None and self.high < claim.at_least
        if above or below:
            return "does not hold"
        return f"cannot be told from {self.rounds} round{'s' if self.rounds > 1 else ''}"


def _common(values: Mapping[int, float], base: Mapping[int, float]) -> list[int]:
    return sorted(values.keys() & base.keys())


@dataclass(frozen=True)
class Verdict:
    """A claim with its estimate."""

    claim: Claim
    estimate: Estimate | None
    """None if nothing was measured that could confirm or refute the claim."""
    verdict: str


def judge(study: Study, values: Values, *, has_gpu: bool) -> list[Verdict]:
    return [_judge(claim, study.reference, values, has_gpu=has_gpu) for claim in study.claims]


def _judge(claim: Claim, reference: str, values: Values, *, has_gpu: bool) -> Verdict:
    if claim.needs == "gpu" and not has_gpu:
        return Verdict(claim, None, "open: needs a GPU")
    own = values.get((claim.variant, claim.metric), {})
    base = values.get((claim.against or reference, claim.metric), {})
    if claim.about == "value":
        estimate = Estimate.of_values(list(own.values()))
    elif claim.about == "difference":
        estimate = Estimate.of_differences(own, base)
    else:
        estimate = Estimate.of_ratios(own, base)
    if estimate is None:
        return Verdict(claim, None, "open: not measured here")
    memory = memory_of(claim.metric)
    return Verdict(claim, estimate, estimate.judge(claim) + (f" ({memory})" if memory else ""))
