"""Learning-rate schedules as functions of the optimizer step.

A schedule counts only steps that changed the parameters, so a skipped float16 step does not advance
it. The optimizer stores nothing of the schedule: the trainer sets the rate of each step, and a
resumed run computes the same rates from the same step numbers.
"""

import math
from dataclasses import dataclass

from clew.config.services import EvaluationConfig
from clew.config.training import (
    ExponentialSchedule,
    PlateauSchedule,
    ScheduleConfig,
    WarmupCosineSchedule,
)


class Schedule:
    """Factor on the peak learning rate; this base class is constant and has no state."""

    def factor(self, *, step: int, epoch: int) -> float:
        """Return the factor for optimizer step `step` (from 0) in epoch `epoch` (from 0)."""
        return 1.0

    def observe(self, metric: float) -> None:
        """Receive a validation result."""

    def state(self) -> dict[str, float]:
        """Return the state for a resume; empty if the factor depends only on step and epoch."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from a saved state."""


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """Cosine warm-up to the peak, then cosine decay: torch's OneCycleLR without its state.

    The warm-up ends at step `fraction * total_steps - 1` and the decay ends at `total_steps - 1`.
    After that, the rate stays at its final value. If `fraction * total_steps` is at most 1, the
    schedule starts at the peak; OneCycleLR would divide by zero.
    """

    total_steps: int
    warmup_fraction: float
    initial_divisor: float
    final_divisor: float

    def factor(self, *, step: int, epoch: int) -> float:
        first = 1.0 / self.initial_divisor
        last = first / self.final_divisor
        warmup_end = self.warmup_fraction * self.total_steps - 1.0
        end = self.total_steps - 1.0
        if warmup_end > 0.0 and step <= warmup_end:
            return _cosine(first, 1.0, step / warmup_end)
        start = max(warmup_end, 0.0)
        if end <= start:
            return 1.0
        return _cosine(1.0, last, min(1.0, (step - start) / (end - start)))


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) / 2.0 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiplies the rate by a constant factor after each epoch."""

    factor_per_epoch: float

    def factor(self, *, step: int, epoch: int) -> float:
        return self.factor_per_epoch**epoch


@dataclass
class Plateau(Schedule):
    """Reduces the rate if the validation metric does not improve in `patience` + 1 evaluations."""

    config: PlateauSchedule
    maximize: bool
    current: float = 1.0
    best: float = math.nan
    stale_evaluations: int = 0

    def factor(self, *, step: int, epoch: int) -> float:
        return self.current

    def observe(self, metric: float) -> None:
        """Reduce if this result and the `patience` results before it did not improve the best."""
        if is_better(metric, self.best, maximize=self.maximize):
            self.best, self.stale_evaluations = metric, 0
            return
        self.stale_evaluations += 1
        if self.stale_evaluations > self.config.patience:
            self.current = max(self.current * self.config.factor, self.config.minimum_factor)
            self.stale_evaluations = 0

    def state(self) -> dict[str, float]:
        """Return the factor, the best value and the number of evaluations without improvement."""
        return {
            "current": self.current,
            "best": self.best,
            "stale_evaluations": self.stale_evaluations,
        }

    def restore(self, state: dict[str, float]) -> None:
        self.current = state["current"]
        self.best = state["best"]
        self.stale_evaluations = int(state["stale_evaluations"])


def is_better(value: float, best: float, *, maximize: bool) -> bool:
    """Return whether `value` is better than `best`; NaN is never better, and neither is a tie."""
    if math.isnan(value):
        return False
    if math.isnan(best):
        return True
    return value > best if maximize else value < best


def build_schedule(
    config: ScheduleConfig, *, total_steps: int, evaluation: EvaluationConfig
) -> Schedule:
    match config:
        case WarmupCosineSchedule():
            return WarmupCosine(
                total_steps,
                config.warmup_fraction,
                config.initial_divisor,
                config.final_divisor,
            )
        case ExponentialSchedule():
            return Exponential(config.factor_per_epoch)
        case PlateauSchedule():
            return Plateau(config, maximize=evaluation.maximize)
        case _:
            return Schedule()
