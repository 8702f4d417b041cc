"""Where training stands, and everything else that a resume needs beside tensors."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from clew.training.history import MetricValue

Count = Annotated[int, Field(strict=True, ge=0)]
Weight = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Number = int | float


@dataclass
class Progress:
    """Where training stands."""

    step: Count = 0
    """Optimizer steps taken."""
    epoch: Count = 0
    """Epochs completed."""
    cursor: Count = 0
    """Microbatches of the running epoch already consumed."""
    closed_step: int = -1
    """Step after which an epoch, or the part of one that steps allowed, was last validated."""
    checkpoint_step: Count = 0
    """Step of the newest checkpoint; 0 before the first."""
    previous_step: Count | None = 0
    """Step that the learning-rate weight counts from."""
    learning_rate_weight: Weight = 0.0
    """Sum over steps since `previous_step` of rate / count / (1 - momentum).

    It starts again with the first step after a checkpoint, not with the checkpoint itself: one that
    is written twice at a step, by a resumed run for example, has the same weight both times."""
    best_metric: float = math.nan
    """Best validation metric so far."""
    best_step: int = -1
    """Step of the best metric."""
    stale_evaluations: Count = 0
    """Evaluations since the best one."""
    interval_loss: float = 0.0
    """Summed loss since the last logged value."""
    interval_count: float = 0.0
    """What that sum is divided by."""
    skipped_steps: Count = 0
    """Float16 steps skipped for an overflow, in all."""
    skipped_in_a_row: Count = 0
    """Such steps since the last one taken."""

    def count_step(self, *, rate: float, count: float, momentum: float) -> None:
        """Count an optimizer step; it adds its rate to the learning-rate weight."""
        if self.step == self.checkpoint_step:
            self.previous_step = self.step
            self.learning_rate_weight = 0.0
        self.step += 1
        self.skipped_in_a_row = 0
        self.learning_rate_weight += rate / count / (1.0 - momentum)


class TrainingValues(BaseModel):
    """What a checkpoint keeps of a training besides tensors; checked when it is read."""

    model_config = ConfigDict(frozen=True)

    progress: Progress = Field(default_factory=Progress)
    generators: dict[str, list[Number | None]] = {}
    """States of random generators beside their tensors."""
    schedule: dict[str, Number] = {}
    scaler: dict[str, Number] = {}
    """Of float16's loss scale; empty in other precisions."""
    history: list[MetricValue] = []
    world_size: Annotated[int, Field(ge=1)] = 1
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """None: an older version of Clew did not write it down."""
