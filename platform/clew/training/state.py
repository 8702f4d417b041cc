"""What changes during training, and how a checkpoint keeps and restores it."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from clew.errors import CheckpointError
from clew.training.average import ParameterAverage
from clew.training.checkpoints import (
    TrainingState,
    load_model,
    load_training_state,
    read_manifest,
)
from clew.training.distributed import World
from clew.training.history import History
from clew.training.optimizer import optimizer_tensors, restore_optimizer
from clew.training.precision import Precision
from clew.training.schedule import Schedule
from clew.training.seeding import capture_generators, restore_generators


@dataclass
class Progress:
    """Where training stands."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    """Epochs completed."""
    cursor: int = 0
    """Microbatches of the running epoch already consumed."""
    closed_step: int = -1
    """Step after which an epoch, or the part of one that steps allowed, was last validated."""
    checkpoint_step: int = 0
    """Step of the newest checkpoint; 0 before the first."""
    previous_step: int | None = 0
    """Step that the learning-rate weight counts from."""
    learning_rate_weight: float = 0.0
    """Sum over steps since `previous_step` of rate / count / (1 - momentum).

    It starts again with the first step after a checkpoint, not with the checkpoint itself: one that
    is written twice at a step, by a resumed run for example, has the same weight both times."""
    best_metric: float = math.nan
    """Best validation metric so far."""
    best_step: int = -1
    """Step of the best metric."""
    stale_evaluations: int = 0
    """Evaluations since the best one."""
    interval_loss: float = 0.0
    """Summed loss since the last logged value."""
    interval_count: float = 0.0
    """What that sum is divided by."""
    skipped_steps: int = 0
    """Float16 steps skipped for an overflow, in all."""
    skipped_in_a_row: int = 0
    """Such steps since the last one taken."""

    def count_step(self, *, rate: float, count: float, momentum: float) -> None:
        """Count an optimizer step; it adds its rate to the learning-rate weight."""
        if self.step == self.checkpoint_step:
            self.previous_step = self.step
            self.learning_rate_weight = 0.0
        self.step += 1
        self.skipped_in_a_row = 0
        self.learning_rate_weight += rate / count / (1.0 - momentum)


@dataclass
class Resumable:
    """The parts of a run whose state makes a resumed run equal to an uninterrupted one."""

    model: nn.Module
    average: ParameterAverage
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    world: World
    history: History
    progress: Progress

    def capture(self) -> TrainingState:
        """Return everything but the model's own tensors."""
        tensors, values = capture_generators()
        return TrainingState(
            optimizer=optimizer_tensors(self.optimizer, self.model),
            tensors=self.world.gather_tensors(tensors, self.precision.device),
            values={
                "progress": asdict(self.progress),
                "generators": values,
                "schedule": self.schedule.state(),
                "scaler": self.precision.state(),
                "history": self.history.state(),
                "world_size": self.world.size,
                "num_threads": torch.get_num_threads(),
            },
            average=self.average.tensors(),
        )

    def restore(self, folder: Path) -> None:
        """Load model and training state from a checkpoint folder.

        Raises:
            CheckpointError: the checkpoint is incomplete, of another model, or was written by
                another number of processes.
        """
        saved = load_training_state(folder)
        if saved.values["world_size"] != self.world.size:
            raise CheckpointError(
                f"{folder}: written by {saved.values['world_size']} processes, resumed by "
                f"{self.world.size}; resume with the same number"
            )
        self.average.restore(saved.average)
        load_model(folder, self.model)
        restore_optimizer(self.optimizer, self.model, saved.optimizer)
        self.schedule.restore(saved.values["schedule"])
        self.precision.restore(saved.values["scaler"])
        for name, value in saved.values["progress"].items():
            setattr(self.progress, name, value)
        manifest = read_manifest(folder)
        self.progress.checkpoint_step = manifest.step
        self.progress.previous_step = manifest.previous_step
        self.progress.learning_rate_weight = manifest.learning_rate_weight
        self.history.restore(saved.values["history"])
        own = f"{self.world.rank}/"
        tensors = {n.removeprefix(own): t for n, t in saved.tensors.items() if n.startswith(own)}
        restore_generators(tensors, saved.values["generators"])
