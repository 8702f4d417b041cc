"""How much memory training will take: the task's own step on fake tensors, before any training.

The model is built and trained for two steps, with its loss, precision, checkpointing, accumulation
and optimizer, on tensors that have a size and no content. What is alive when most is alive in the
second step is the budget; the first one only brings the optimizer's state into the world. There
is no table of layers to keep up to date, and a new task needs no code here.

On a GPU the budget is what the allocator hands out. On the CPU it is the resident peak of the
process: interpreter, libraries and data as they stand, and glibc's heap for this sequence of
tensors (see `clew.training.heap_replay`). `torch.compile` is planned for as if it were off.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.runs.hardware import GIB, process_gib
from clew.training import heap_replay
from clew.training.average import ParameterAverage
from clew.training.live_bytes import LiveBytes
from clew.training.loaders import Batch, BatchLoader
from clew.training.memory import apply_gradient_checkpointing
from clew.training.optimizer import build_optimizer
from clew.training.precision import Precision, half_precision_type
from clew.training.task import Task

logger = logging.getLogger(__name__)

DEFAULT_PREFETCH = 2
"""Batches that a worker of torch's DataLoader prepares ahead unless told otherwise."""
REPLAYED_STEPS = 4


@dataclass(frozen=True)
class StepMemory:
    """Predicted peak of training in bytes, on one device, by what it is for."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    """Moments, counters, and the average of the parameters where one is kept."""
    activations: int
    """Made by the model's forward pass, alive at the peak."""
    loss: int
    """Scores and loss."""
    backward: int
    """Gradients of activations, and what is recomputed."""
    loader: int
    """Batches, prefetched ones included, and the order of the examples."""
    allocator: int
    """Holes in the process's heap (CPU)."""
    process: int
    """Interpreter, libraries and data, before the model is built (CPU)."""

    @property
    def total(self) -> int:
        """The peak."""
        return sum(asdict(self).values())

    @property
    def total_gib(self) -> float:
        """The peak in GiB."""
        return self.total / GIB

    def as_gib(self) -> dict[str, float]:
        """Return every part in GiB."""
        return {part.name: getattr(self, part.name) / GIB for part in fields(self)}


def predict_step(
    config: RunConfig, task: Task[Any], device: torch.device, *, world_size: int = 1
) -> StepMemory:
    """Predict the peak memory of training a task with a configuration.

    Args:
        config: All settings; `training.batch_size` is the microbatch.
        task: Bound to the same configuration.
        device: Where training would run. A GPU needs a CUDA build of torch, but no free memory.
        world_size: Processes of a data-parallel run; the prediction is for each of them.
    """
    batch = _first_batch(config, task, world_size)
    half = half_precision_type(config.optimizations, device)
    with torch.random.fork_rng(devices=[]):
        _load_libraries(half)
    process = int(process_gib() * GIB) if device.type == "cpu" else 0
    with _silenced("clew"):
        live, mark = _two_steps(config, task, batch, Precision(half, device), world_size)
    peak = live.peak(since=mark)
    heap = _heap_peak(live, mark, config) if device.type == "cpu" else 0
    return StepMemory(
        weights=peak["weights"],
        gradients=peak["gradients"],
        optimizer=peak["optimizer"],
        activations=peak["activations"],
        loss=peak["loss"],
        backward=peak["backward"],
        loader=_loader_bytes(config, task, batch, device),
        allocator=max(0, heap - peak.total()),
        process=process,
    )


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    """Leave out what a room says of itself: the model is built for a trial, and many times."""
    room = logging.getLogger(name)
    before = room.level
    room.setLevel(logging.WARNING)
    try:
        yield
    finally:
        room.setLevel(before)


def _first_batch(config: RunConfig, task: Task[Any], world_size: int) -> Batch:
    """Return the first microbatch of training."""
    training = config.training
    loader: BatchLoader[Any] = BatchLoader(
        task.train_examples(),
        batch_size=training.batch_size,
        seed=training.seed,
        world_size=world_size,
    )
    batch: Batch = next(loader.epoch(0))
    return batch


def _load_libraries(half: torch.dtype | None) -> None:
    """Take one real step of a toy, so that what the libraries load is in the process already."""
    toy = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 64))
    with torch.autocast("cpu", dtype=half, enabled=half is not None):
        total = toy(torch.zeros(64, 1, 8, 8)).sum()
    total.backward()
    torch.optim.Adam(toy.parameters(), fused=True).step()


def _two_steps(
    config: RunConfig, task: Task[Any], batch: Batch, precision: Precision, world_size: int
) -> tuple[LiveBytes, int]:
    """Take two optimizer steps on fake tensors; return the record and where the second begins."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    live = LiveBytes()
    # The order counts: the record must see what the fake tensors make of each operation.
    with FakeTensorMode(allow_non_fake_inputs=True), live:
        with live.making("weights"), torch.device(precision.device):
            model = task.build_model().train()
        apply_gradient_checkpointing(model, enabled=config.optimizations.use_gradient_checkpointing)
        with live.making("optimizer"):
            optimizer = build_optimizer(config.optimizer, model)
            average = ParameterAverage(model, config.training.ema_decay)
        step = _FakeStep(config, task, model, optimizer, precision, live, world_size)
        step.take(batch)
        live.claim(chain(model.parameters(), model.buffers()), "weights")
        average.update(step=1)
        mark = len(live.changes)
        step.take(batch)
        average.update(step=2)
    return live, mark


@dataclass(frozen=True)
class _FakeStep:
    """One optimizer step as the trainer takes it, less what only looks at values."""

    config: RunConfig
    task: Task[Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: Precision
    live: LiveBytes
    world_size: int

    def __post_init__(self) -> None:
        self.model.register_forward_pre_hook(lambda *_: self._enter("activations"))
        self.model.register_forward_hook(lambda *_: self._enter("loss"))

    def _enter(self, phase: str) -> None:
        self.live.phase = phase

    def take(self, batch: Batch) -> None:
        """Go through two microbatches, if a step has so many, and move the parameters."""
        for _ in range(min(2, self.config.training.gradient_accumulation)):
            self._backpropagate(batch)
        with self.live.making("gradients"):
            if self.world_size > 1:  # gradients are added over processes as one flat copy
                torch.cat([gradient.reshape(-1) for gradient in self._gradients()])
        with self.live.making("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _backpropagate(self, batch: Batch) -> None:
        count = batch.count
        with self.live.making("loader"):
            batch = batch.to(self.precision.device)
        with self.live.making("loss"), self.precision.autocast():
            loss = self.task.loss(self.model, batch)
        with self.live.making("backward"):
            (loss.total / count).backward()  # type: ignore[no-untyped-call]
        self.live.claim(self._gradients(), "gradients")

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]


def _loader_bytes(config: RunConfig, task: Task[Any], batch: Batch, device: torch.device) -> int:
    """Return what the preparation of batches holds where the training runs."""
    training = config.training
    num_bytes = sum(v.nbytes for v in vars(batch).values() if isinstance(v, Tensor))
    if device.type != "cpu":
        return num_bytes
    ahead = training.num_workers * (training.prefetch_factor or DEFAULT_PREFETCH)
    order = 8 * len(task.train_examples())
    return num_bytes * (training.gradient_accumulation + ahead) + order


def _heap_peak(live: LiveBytes, mark: int, config: RunConfig) -> int:
    """Return how large the heap becomes; 0 where the C library is not glibc."""
    pairs = [(change.serial, change.num_bytes) for change in live.changes]
    request = {
        "keep_pages": config.optimizations.keep_allocator_pages,
        "before": pairs[:mark],
        "step": pairs[mark:],
        "steps": REPLAYED_STEPS,
    }
    command = [sys.executable, "-I", str(Path(heap_replay.__file__))]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        logger.debug("holes in the heap are not counted: it was not replayed (%s)", error)
        return 0
    return int(done.stdout)
