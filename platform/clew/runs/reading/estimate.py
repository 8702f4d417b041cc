"""A mean over seeds with its 95 % interval, by Student's t."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from scipy.special import stdtrit

S = TypeVar("S", int, str)


@dataclass(frozen=True)
class Estimate:
    """A ratio or another mean over rounds, with its 95 % interval."""

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
        half = error * float(stdtrit(count - 1, 0.975))
        return cls(mean, mean - half, mean + half, count)

    @classmethod
    def of_ratios(cls, values: Mapping[S, float], base: Mapping[S, float]) -> Self | None:
        """Return the geometric mean of the ratios of the rounds that both have.

        Returns None if one of the values is zero or negative, because such a ratio has no meaning.
        """
        seeds = values.keys() & base.keys()
        if any(values[seed] <= 0 or base[seed] <= 0 for seed in seeds):
            return None
        found = cls.of_values([math.log(values[seed] / base[seed]) for seed in seeds])
        if found is None:
            return None
        return cls(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.rounds)
