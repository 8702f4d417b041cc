"""Captures the state of a training for a checkpoint, and restores it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from clew.errors import CheckpointError, described
from clew.training.average import ParameterAverage
from clew.training.checkpoints import TrainingState, load_model, load_training_state
from clew.training.distributed import World
from clew.training.history import History
from clew.training.manifest import read_manifest
from clew.training.optimizer import optimizer_tensors, restore_optimizer
from clew.training.precision import Precision
from clew.training.progress import Progress, TrainingValues
from clew.training.schedule import Schedule
from clew.training.seeding import capture_generators, restore_generators
from clew.training.sharding.files import rows_files
from clew.training.sharding.rows import RowShard, row_shards


@dataclass
class Resumable:
    """The parts of a run whose state a checkpoint keeps.

    With this state, a resumed run gives the same results as an uninterrupted run.
    """

    model: nn.Module
    average: ParameterAverage
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    world: World
    history: History
    progress: Progress

    def capture(self) -> TrainingState:
        """Return the training state without the tensors of the model."""
        tensors, values = capture_generators()
        return TrainingState(
            optimizer=optimizer_tensors(self.optimizer, self.model),
            tensors=self.world.gather_tensors(tensors, self.precision.device),
            values=TrainingValues(
                progress=replace(self.progress),
                generators=values,
                schedule=self.schedule.state(),
                scaler=self.precision.state(),
                history=self.history.entries,
                world_size=self.world.size,
                num_threads=torch.get_num_threads(),
            ),
            average=self.average.tensors(),
        )

    def restore(self, folder: Path) -> None:
        """Load model and training state from a checkpoint folder.

        Raises:
            CheckpointError: The checkpoint is incomplete, belongs to another model, or was written
                by a different number of processes (unless tables are sharded).
        """
        own = row_shards(self.model)
        saved = load_training_state(folder, own)
        try:
            self._put_back(saved, folder, own)
        except CheckpointError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, OverflowError) as error:
            # Optimizers, schedules and generators raise these errors for a state that does not fit.
            raise CheckpointError(
                f"{folder}: its training state does not fit ({described(error)}); use another "
                "checkpoint"
            ) from None

    def _put_back(self, saved: TrainingState, folder: Path, own: dict[str, RowShard]) -> None:
        sharded = own or rows_files(read_manifest(folder).sha256)
        if saved.values.world_size != self.world.size and not sharded:
            raise CheckpointError(
                f"{folder}: written by {saved.values.world_size} processes, resumed by "
                f"{self.world.size}; resume with the same number of processes, or with "
                "training.shard_entities=true"
            )
        self.average.restore(saved.average)
        load_model(folder, self.model)
        restore_optimizer(self.optimizer, self.model, saved.optimizer)
        self.schedule.restore(saved.values.schedule)
        self.precision.restore(saved.values.scaler)
        vars(self.progress).update(vars(saved.values.progress))
        manifest = read_manifest(folder)
        self.progress.checkpoint_step = manifest.step
        self.progress.previous_step = manifest.previous_step
        self.progress.learning_rate_weight = manifest.learning_rate_weight
        self.history.restore(saved.values.history)
        mine = f"{self.world.rank}/"
        tensors = {n.removeprefix(mine): t for n, t in saved.tensors.items() if n.startswith(mine)}
        if tensors:  # a process that did not exist before keeps its seeded generators
            restore_generators(tensors, saved.values.generators)
