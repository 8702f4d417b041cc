"""Repeats the optimizer steps of a recorded run and returns the states between them.

Starting from a checkpoint or from the seed, the same steps reproduce the next checkpoint bit for
bit. The order of the data, dropout, learning rates and arithmetic depend only on what the
checkpoint contains. This includes the number of threads, which determines how sums of floats are
split. So every state of the training can be reproduced without being stored. A replay that does
not reproduce the next checkpoint exactly is refused.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.errors import CheckpointError
from clew.runs.base import Tracker
from clew.training.checkpoints import load_tensors, load_training_state, load_training_values
from clew.training.distributed import World
from clew.training.loaders import epoch_microbatches
from clew.training.manifest import MODEL_FILE, CheckpointRecord, Manifest
from clew.training.optimizer import optimizer_tensors, restore_optimizer
from clew.training.progress import Progress
from clew.training.seeding import capture_generators, restore_generators
from clew.training.setup import build_trainer
from clew.training.task import B, Task
from clew.training.trainer import Trainer

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class State:
    """A copy of everything that the next step depends on."""

    model: Tensors
    """Parameters and buffers by name."""
    optimizer: Tensors
    """Optimizer state by `<parameter name>/<state name>`."""
    average: Tensors
    """The average of the parameters; empty if none is kept."""
    generators: tuple[dict[str, Tensor], dict[str, Any]]
    schedule: dict[str, float]
    progress: Progress

    @property
    def num_bytes(self) -> int:
        groups = (self.model, self.optimizer, self.average)
        return sum(t.numel() * t.element_size() for group in groups for t in group.values())


@dataclass(frozen=True, eq=False)
class Microbatch(Generic[B]):
    """A batch with the indices of its examples, `(example,)`."""

    batch: B
    examples: np.ndarray


@dataclass(frozen=True, eq=False)
class ReplayedStep(Generic[B]):
    """One optimizer step: its number from 0, the state before it, its data and its rate."""

    number: int
    before: State | None
    window: Sequence[Microbatch[B]]
    rate: float
    moved: frozenset[str]
    """Names of the parameters that had a gradient."""


@dataclass
class Replay(Generic[B]):
    """Repeats a recorded run in one process, in full precision, without compilation."""

    config: RunConfig
    task: Task[B]
    checkpoints: Sequence[CheckpointRecord]
    device: torch.device
    start: nn.Module | None = None
    """The model that the run began with; None: new parameters."""
    _moved: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.trainer: Trainer[B] = build_trainer(
            self.config,
            self.task,
            Tracker(),
            device=self.device,
            world=World(),
            folder=Path(tempfile.gettempdir()),  # nothing is written: no checkpoint is due
            origin=Manifest(0, 0, 0.0, self.task.kind, {}, "", self.task.data_fingerprint),
        )
        if self.start is not None:
            self.trainer.model.load_state_dict(self.start.state_dict())
        self._initial = self.capture()
        self.trainer.optimizer.register_step_pre_hook(self._see_gradients)
        history = load_training_values(self.checkpoints[-1].path).history
        metric = self.config.evaluation.metric
        self._validations = {e.step: e.value for e in history if e.key == metric}

    def capture(self) -> State:
        trainer = self.trainer
        optimizer = optimizer_tensors(trainer.optimizer, trainer.model)
        every = trainer.model.state_dict(), optimizer, trainer.average.tensors()
        model, moments, average = (
            {name: tensor.detach().clone() for name, tensor in tensors.items()} for tensors in every
        )
        schedule, progress = dict(trainer.schedule.state()), replace(trainer.progress)
        return State(model, moments, average, capture_generators(), schedule, progress)

    @torch.no_grad()
    def restore(self, state: State) -> None:
        trainer = self.trainer
        for name, tensor in trainer.model.state_dict().items():
            tensor.copy_(state.model[name])
        restore_optimizer(trainer.optimizer, trainer.model, dict(state.optimizer))
        trainer.average.restore(state.average)
        trainer.schedule.restore(state.schedule)
        trainer.progress.__dict__.update(vars(state.progress))
        restore_generators(*state.generators)

    @contextmanager
    def recorded_threads(self, interval: int) -> Iterator[None]:
        """Use the number of threads that the run used up to checkpoint number `interval`."""
        before = torch.get_num_threads()
        recorded = load_training_values(self.checkpoints[interval].path).num_threads
        torch.set_num_threads(recorded or before)  # older versions of Clew did not record it
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def begin(self, interval: int) -> None:
        """Restore the state before the steps up to checkpoint number `interval`."""
        if interval == 0:
            self.restore(self._initial)
        else:
            self.trainer.checkpointer.resumable.restore(self.checkpoints[interval - 1].path)
            self._close_epoch()

    def steps(self, end: int, *, keep_every: int = 1) -> Iterator[ReplayedStep[B]]:
        """Take the steps up to number `end`, and yield each step after it was taken.

        The first step and every `keep_every`-th step after it keep the state before the step.
        """
        progress, settings = self.trainer.progress, self.config.training
        first, source = progress.step, self.task.train_examples()
        while progress.step < end:
            self.trainer.model.train()
            left, size = self._indices()[progress.cursor :], settings.gradient_accumulation
            for examples in (left[start : start + size] for start in range(0, len(left), size)):
                if progress.step >= end:
                    break
                keep = (progress.step - first) % keep_every == 0
                before = self.capture() if keep else None
                window = [Microbatch(source.batch(indices), indices) for indices in examples]
                number = progress.step
                self.trainer._step([microbatch.batch for microbatch in window])
                rate = float(self.trainer.optimizer.param_groups[0]["lr"])
                yield ReplayedStep(number, before, window, rate, self._moved)
            self._close_epoch()

    def require_equal(self, interval: int) -> None:
        """Check that the replay reproduced checkpoint number `interval` exactly."""
        record, state = self.checkpoints[interval], self.capture()
        saved = load_training_state(record.path)
        pairs = (
            ("", load_tensors(record.path / MODEL_FILE), state.model),
            ("optimizer state ", saved.optimizer, state.optimizer),
            ("average of ", saved.average, state.average),
        )
        for kind, expected, found in pairs:
            for name in sorted(expected.keys() | found.keys()):
                if not _equal(expected.get(name), found.get(name)):
                    raise CheckpointError(
                        f"{record.path}: the replay differs from the recorded run at step "
                        f"{record.step} ({kind}{name}); replay it on the machine that trained it, "
                        "with the same number of threads and the same version, or train again with "
                        "training.deterministic=true (an imported model cannot be replayed)"
                    )

    def _see_gradients(self, *_: object) -> None:
        named = self.trainer.model.named_parameters()
        self._moved = frozenset(name for name, p in named if p.grad is not None)

    def _indices(self) -> list[np.ndarray]:
        num_examples, epoch = len(self.task.train_examples()), self.trainer.progress.epoch
        return list(epoch_microbatches(num_examples, self.config.training, epoch))

    def _close_epoch(self) -> None:
        """After an epoch's last batch, start the next epoch and give the schedule its metric."""
        progress = self.trainer.progress
        if progress.cursor >= len(self._indices()):
            progress.epoch, progress.cursor = progress.epoch + 1, 0
            if self.config.evaluation.enabled and progress.step in self._validations:
                self.trainer.schedule.observe(self._validations[progress.step])


def _equal(expected: Tensor | None, found: Tensor | None) -> bool:
    if expected is None or found is None or expected.dtype != found.dtype:
        return False
    return torch.equal(expected, found.cpu())
