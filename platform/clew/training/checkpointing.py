"""Writes checkpoints during training and sends them to the tracker."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew import names
from clew.errors import CheckpointError, NonFiniteLossError, refusing
from clew.training.checkpoints import (
    AVERAGE,
    MODEL,
    OPTIMIZER,
    TrainingState,
    load_model,
    load_training_state,
    rows_files,
    write_checkpoint,
    write_own_rows,
)
from clew.training.distributed import World
from clew.training.manifest import Manifest, read_manifest
from clew.training.optimizer import ParameterAverage, Schedule, optimizer_tensors, restore_optimizer
from clew.training.precision import Precision
from clew.training.progress import History, Progress, TrainingValues
from clew.training.seeding import capture_generators, restore_generators
from clew.training.sharding import RowShard, row_shards


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
        own = row_shards(self.model)
        saved = load_training_state(folder, own)
        what, advice = f"{folder}: its training state does not fit", "; use another checkpoint"
        # Optimizers, schedules and generators raise these errors for a state that does not fit.
        kinds = RuntimeError, ValueError, TypeError, KeyError, OverflowError
        with refusing(what, *kinds, advice=advice, error=CheckpointError):
            self._put_back(saved, folder, own)

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


@dataclass
class Checkpointer:
    """Writes the checkpoints of a run.

    The folder keeps the newest checkpoint (or all of them) and the best one. The tracker gets all
    of them. Every process takes part in gathering the state, but only the main process writes
    (each process writes its own rows of sharded tables).
    """

    folder: Path
    origin: Manifest
    resumable: Resumable
    keep_all: bool = False
    goes_on_with: str = ""
    newest: Path | None = None
    _untaken: Path | None = None
    """The checkpoint that was written last, as long as the tracker has not taken it."""
    _best_unsent: bool = False

    def write(self, name: str, metrics: Mapping[str, float] | None = None) -> None:
        """Write a checkpoint with the learning-rate weight collected so far."""
        self._refuse_non_finite()
        self.resumable.progress.checkpoint_step = self.resumable.progress.step
        manifest = self._manifest(metrics or {})
        state = self.resumable.capture()
        path = self.folder / names.ARTIFACT_CHECKPOINTS / name
        if self._write_files(path, manifest, state):
            self._untaken = path
            self.send_best()
            self._store(path, manifest)
            self._untaken = None

    def _write_files(self, path: Path, manifest: Manifest, state: TrainingState | None) -> bool:
        """Write a checkpoint; all processes write their rows if a table is sharded.

        Return whether this is the main process, which reports the checkpoint to the tracker.
        """
        world, model = self.resumable.world, self.resumable.model

        def write_rows(folder: Path) -> None:
            if world.exchange is not None:
                tensors = {MODEL: model.state_dict()}
                if state is not None:
                    tensors |= {OPTIMIZER: state.optimizer, AVERAGE: state.average}
                write_own_rows(folder, tensors, row_shards(model), world)

        if world.is_main:
            write_checkpoint(path, model, manifest, state, write_rows=write_rows)
        else:
            write_rows(path)
        return world.is_main

    def _store(self, path: Path, manifest: Manifest) -> None:
        """Send a checkpoint to the tracker and delete the previous one unless all are kept."""
        tracker = self.resumable.history.tracker
        folder = f"{names.ARTIFACT_CHECKPOINTS}/{path.name}"
        tracker.checkpoint(path, folder=folder, step=manifest.step, metrics=manifest.metrics)
        if self.newest is not None and self.newest != path and not self.keep_all:
            shutil.rmtree(self.newest, ignore_errors=True)
        self.newest = path

    def write_best(self, metrics: Mapping[str, float]) -> None:
        """Write the best checkpoint so far; it is sent to the tracker with the next regular one."""
        self._refuse_non_finite()
        self._best_unsent = self._write_files(self.best, self._manifest(metrics), None)

    @property
    def best(self) -> Path:
        return self.folder / names.ARTIFACT_BEST

    @property
    def only_here(self) -> Path | None:
        """The newest checkpoint, if only the folder has it."""
        return self._untaken or (None if self.goes_on_with else self.newest)

    def last_good(self) -> str:
        """Return a phrase for error messages that names the checkpoint to continue from."""
        if self.newest is None:
            return "no checkpoint had been written yet"
        if not self.goes_on_with:
            return (
                "no checkpoint is kept: to continue a run that stops, set "
                "tracking.log_checkpoints=true or give --checkpoint-dir"
            )
        return f"the last good checkpoint is {self.newest.name}; continue with {self.goes_on_with}"

    def adopt(self, paths: Sequence[Path], best: Path | None) -> None:
        """Add the checkpoints of a resumed run to this run; `paths` are in order of steps."""
        for path in paths:
            own = self.folder / names.ARTIFACT_CHECKPOINTS / path.name
            if path != own:
                shutil.copytree(path, own, dirs_exist_ok=True)
            self._store(own, read_manifest(own))
        if best is not None:
            if best != self.best:
                shutil.copytree(best, self.best)
            self._best_unsent = True

    def send_best(self) -> None:
        """Send the best checkpoint to the tracker unless it was sent before."""
        if self._best_unsent:
            self.resumable.history.tracker.artifact(self.best)
            self._best_unsent = False

    def _manifest(self, metrics: Mapping[str, float]) -> Manifest:
        progress = self.resumable.progress
        return replace(
            self.origin,
            step=progress.step,
            epoch=progress.epoch,
            previous_step=progress.previous_step,
            learning_rate_weight=progress.learning_rate_weight,
            metrics=dict(metrics),
        )

    def _refuse_non_finite(self) -> None:
        """Refuse to save NaN or infinity: a gradient can overflow while the loss is finite."""
        step = self.resumable.progress.step
        world = self.resumable.world
        for name, parameter in self.resumable.model.named_parameters():
            finite = _is_finite(parameter)
            if world.exchange is not None:  # so that either all processes stop or none does
                finite = not bool(world.sum(float(not finite), parameter.device))
            if not finite:
                raise NonFiniteLossError(
                    f"parameter {name} holds NaN or infinity at step {step}; no checkpoint was "
                    "written. Lower optimizer.learning_rate or set "
                    f"training.max_grad_norm (docs/wrong.md, NaN); {self.last_good()}"
                )


def _is_finite(parameter: Tensor) -> bool:
    """Return whether all values are finite.

    `torch.isfinite` makes a copy and masks: 5.6 GiB for ten million rows of a hundred numbers.
    The minimum and the maximum take no memory, and both are NaN if any value is NaN.
    """
    values = parameter.detach()
    ends = torch.stack(values.aminmax()) if values.numel() else values.flatten()
    return bool(torch.isfinite(ends).all())
