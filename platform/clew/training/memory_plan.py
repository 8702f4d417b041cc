"""Predicts how much memory training will take.

To predict, the model is built and trained for one optimizer step, with its loss, precision,
gradient checkpointing and gradient accumulation, on tensors that have a size but no data. The peak
of the live bytes is what a GPU's allocator provides. The prediction ignores `torch.compile`.

On the CPU, the prediction is the peak resident memory of the process. It consists of the tensors
and two measured amounts: the memory of a training process without tensors (`PROCESS_GIB`), and the
memory that the allocator and the libraries take per byte of tensors (`OVERHEAD`). The latter is
fragmentation of glibc's heap and buffers in which matrix products and convolutions rearrange their
operands.

Only batches of 1, 2, 4, 8, … examples are tried, and the need of other sizes is interpolated
linearly. This hides how losses split their work into chunks, so the predicted need grows with the
batch, and the largest batch that fits can be found by halving the range. A step of more than
`MOST_OPERATIONS` repeats its work for groups of examples: its need continues the line through the
two sizes below. Each kind of operation has a line of its own, because the peak moves from one to
another as batches grow, such as from recomputed activations to their sum.
"""

import math
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clew.config.schema import RunConfig
from clew.errors import OutOfMemoryError
from clew.layers.products import planning_for
from clew.runs.hardware import GIB, process_gib
from clew.training.loaders import Batch
from clew.training.memory import apply_gradient_checkpointing
from clew.training.optimizer import ParameterAverage, build_optimizer
from clew.training.precision import Precision, half_precision_type
from clew.training.task import Task


class TookTooLong(Exception):
    """A trial step on tensors without data had more operations than it may have."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages of all results while these storages are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.purpose = "other"
        """The purpose of new storages."""
        self.now: Counter[str] = Counter()
        """Live bytes by purpose."""
        self.peaks: dict[str, Counter[str]] = {}
        """Live bytes by purpose when their total was largest, after each kind of operation for each
        purpose; clear it to measure new peaks."""
        self.num_operations = 0
        self.sparse_bytes = 0
        """Bytes of the indices and values of all sparse tensors created so far."""
        self._purposes: dict[int, str] = {}
        self._references: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # What returns nothing changes only contents; fused Adagrad and SGD would make real tensors.
        result = func(*args, **(kwargs or {})) if func._schema.returns else None
        if func is torch.ops.prim.device.default:  # two of three calls; there is nothing to count
            return result
        self.num_operations += 1
        if func is torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default:
            parts = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.sparse_bytes += sum(part.nbytes for part in parts)
        for leaf in tree_leaves(result):
            # The indices and values of a sparse tensor were counted when they were created.
            if isinstance(leaf, Tensor) and not leaf.is_sparse:
                self._see(leaf.untyped_storage())
        phase = f"{self.purpose}, {func}"
        if phase not in self.peaks or self.now.total() > self.peaks[phase].total():
            self.peaks[phase] = self.now.copy()
        return result

    def _see(self, storage: UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address in self._purposes:
            return

        def forget(_: object) -> None:
            self.now[self._purposes.pop(address)] -= num_bytes
            del self._references[address]

        self._references[address] = weakref.ref(storage, forget)
        self._purposes[address] = self.purpose
        self.now[self.purpose] += num_bytes

    @contextmanager
    def making(self, purpose: str) -> Iterator[None]:
        """Set the purpose of storages that are created inside this context."""
        before, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = before

    def claim(self, tensor: Tensor, purpose: str) -> None:
        if tensor.is_sparse:
            return
        storage = tensor.untyped_storage()
        before = self._purposes.get(storage._cdata)
        if before is not None:
            self.now[before] -= storage.nbytes()
            self.now[purpose] += storage.nbytes()
            self._purposes[storage._cdata] = purpose


OVERFLOW = "Storage size calculation overflowed"
"""Words of torch's error for a tensor with more bytes than a signed 64-bit number can count."""
PROCESS_GIB = 0.6
OVERHEAD = 0.3
MOST_OPERATIONS = 1_500
"""Operations of the longest step that is tried; they take a second or two."""
DEFAULT_PREFETCH = 2
"""Batches that a worker of torch's DataLoader prefetches by default."""
SAMPLED_EXAMPLES = 16
PARTS = (
    "weights",  # parameters and buffers
    "gradients",
    "optimizer",  # moments, counters, and the average of the parameters if one is kept
    "activations",  # tensors of the model's forward pass
    "loss",  # scores and loss
    "backward",  # gradients of activations, and recomputed activations
    "loader",  # batches, including prefetched ones, and the order of the examples
    "allocator",  # memory of the allocator and libraries in addition to the tensors (CPU)
    "process",  # interpreter, libraries and data (CPU)
)


@dataclass(frozen=True)
class StepMemory:
    """Predicted peak memory of training on one device."""

    parts_gib: dict[str, float]
    """Live memory at the peak, for each of `PARTS`."""

    @property
    def total_gib(self) -> float:
        return sum(self.parts_gib.values())

    def towards(self, other: "StepMemory", share: float) -> "StepMemory":
        """Return what lies on the line to another step; a share above 1 goes beyond it."""
        pairs = ((part, here, other.parts_gib[part]) for part, here in self.parts_gib.items())
        return StepMemory({part: max(0.0, a + share * (b - a)) for part, a, b in pairs})


@dataclass
class MemoryPlanner:
    """Predicts the peak memory of training a task, and finds the largest batch that fits."""

    task: Task[Any]
    device: torch.device
    """The target device. The machine does not need a GPU to plan for one: the sizes of tensors are
    those of CPU kernels."""
    world_size: int = 1
    """Number of processes of a data-parallel run; the prediction is for each process."""
    _tried: dict[RunConfig, dict[str, StepMemory]] = field(default_factory=dict)
    """The peak at each phase of a step, which is a kind of operation for a purpose."""
    _too_large: float = math.inf
    """The smallest batch whose step has more than `MOST_OPERATIONS`."""

    @cached_property
    def process_gib(self) -> float:
        return max(PROCESS_GIB, process_gib())

    def predict(self, config: RunConfig) -> StepMemory:
        """Predict the peak memory of training; `training.batch_size` is the microbatch size."""
        size = config.training.batch_size
        below = 1 << (size.bit_length() - 1)
        if size == below:
            return self._try(config, size)
        low, high = (self._try(config, n) for n in (below, 2 * below))
        return low.towards(high, (size - below) / below)

    def largest_batch(self, config: RunConfig, limit_gib: float, *, most: int) -> int:
        """Return the largest microbatch size up to `most` that should fit, or 0 if none fits."""
        least = config.smallest_batch_size
        if self._try(config, least).total_gib > limit_gib:
            return 0
        top = max(0, math.ceil(math.log2(most / least)))
        sizes = [least << exponent for exponent in range(top + 1)]
        if self._try(config, sizes[top]).total_gib <= limit_gib:
            return most
        place = bisect_right(sizes, limit_gib, key=lambda n: self._try(config, n).total_gib)
        size = sizes[place - 1]
        here, there = (self._try(config, n).total_gib for n in (size, 2 * size))
        return min(most, size + int(size * (limit_gib - here) / (there - here)))

    def _try(self, config: RunConfig, size: int) -> StepMemory:
        return max(self._phases(config, size).values(), key=lambda memory: memory.total_gib)

    def _phases(self, config: RunConfig, size: int) -> dict[str, StepMemory]:
        training = config.training.model_copy(update={"batch_size": size})
        config = config.model_copy(update={"training": training})
        if config not in self._tried and size < self._too_large:
            try:
                self._tried[config] = self._take_step(config)
            except TookTooLong:
                self._too_large = size
        if config not in self._tried:
            low, high = (self._phases(config, n) for n in (size // 4, size // 2))
            self._tried[config] = {phase: low[phase].towards(high[phase], 3) for phase in low}
        return self._tried[config]

    def _take_step(self, config: RunConfig) -> dict[str, StepMemory]:
        process = self.process_gib if self.device.type == "cpu" else 0.0  # planning enlarges it
        # The smallest sizes are tried in any case, because a line needs two of them.
        is_small = config.training.batch_size <= 4 * config.smallest_batch_size
        most = math.inf if is_small else MOST_OPERATIONS
        try:
            live = live_bytes_of_step(config, self.task, self.device, self.world_size, most=most)
        except RuntimeError as error:
            if OVERFLOW not in str(error):
                raise
            raise OutOfMemoryError(
                "a training step needs more bytes than 64 bits can count; choose a smaller model"
            ) from None
        return {phase: self._memory(config, peak, process) for phase, peak in live.peaks.items()}

    def _memory(self, config: RunConfig, live: Counter[str], process: float) -> StepMemory:
        gib = {part: live[part] / GIB for part in PARTS}
        if self.device.type == "cpu":
            training = config.training
            ahead = training.num_workers * (training.prefetch_factor or DEFAULT_PREFETCH)
            gib["loader"] *= training.gradient_accumulation + ahead
            gib["loader"] += 8 * len(self.task.train_examples()) / GIB
            gib["allocator"] = OVERHEAD * sum(gib.values())
            gib["process"] = process
        return StepMemory(gib)


def live_bytes_of_step(
    config: RunConfig,
    task: Task[Any],
    device: torch.device,
    world_size: int = 1,
    *,
    most: float = math.inf,
) -> LiveBytes:
    """Return the live bytes by purpose at the peaks of an optimizer step."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    half, target = half_precision_type(config.optimizations, device), device
    if device.type == "cuda":
        # Fake tensors on a GPU would go to Triton's kernels, which read their memory. Use bfloat16
        # for half precision, because CPU products would keep float16 as float32.
        device, half = torch.device("cpu"), half and torch.bfloat16
    precision, live = Precision(half, device), LiveBytes()

    def stop_if_long(*_: object) -> None:
        if live.num_operations > most:
            raise TookTooLong

    # This order matters: `live` must see the results of the fake tensor mode.
    with FakeTensorMode(allow_non_fake_inputs=True), live, planning_for(target):
        with live.making("loader"):
            batch = _batch_without_content(task, config.training.batch_size, device)
        model, optimizer, average = _ready_to_train(config, task, device, live)
        for module in model.modules():  # an operation must not raise: that ends the process
            module.register_forward_pre_hook(stop_if_long)
        model.register_forward_pre_hook(lambda *_: setattr(live, "purpose", "activations"))
        model.register_forward_hook(lambda *_: setattr(live, "purpose", "loss"))

        def backpropagate() -> None:
            with live.making("loss"), precision.autocast:
                loss = task.loss(model, batch)
            with live.making("backward"):
                (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
            stop_if_long()

        held_bytes = 0
        if config.updates_rows:
            # The sum of sparse fake tensors has an unknown number of rows. The step keeps the
            # sparse gradients of all microbatches but the last: assume the size of the first's.
            backpropagate()
            optimizer.zero_grad()
            held_bytes = (config.training.gradient_accumulation - 1) * live.sparse_bytes
        with live.making("gradients"):
            held = torch.empty(held_bytes, dtype=torch.uint8)
        live.peaks.clear()
        backpropagate()
        with live.making("gradients"):
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            if world_size > 1:  # gradients are summed over processes in one flat copy
                torch.cat([g.to_dense().reshape(-1) for g in gradients])
        with live.making("optimizer"):
            optimizer.step()
        del average, held
    return live


def _ready_to_train(
    config: RunConfig, task: Task[Any], device: torch.device, live: LiveBytes
) -> tuple[nn.Module, torch.optim.Optimizer, ParameterAverage]:
    """Build a model with its gradients and its optimizer, as they are after the first step."""
    with live.making("weights"), torch.device(device):
        model = task.build_model().train()
    apply_gradient_checkpointing(model, enabled=config.optimizations.use_gradient_checkpointing)
    for parameter in model.parameters():
        if parameter.requires_grad:
            with live.making("gradients"):
                parameter.grad = torch.empty_like(parameter)
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda parameter: live.claim(parameter.grad, "gradients")
            )
    with live.making("optimizer"):
        optimizer = build_optimizer(config.optimizer, model)
        average = ParameterAverage(model, config.training.ema_decay)
        optimizer.step()  # creates the optimizer state
    if config.training.gradient_accumulation == 1 or config.updates_rows:
        optimizer.zero_grad()  # otherwise gradients accumulate
    return model, optimizer, average


def _batch_without_content(task: Task[Any], size: int, device: torch.device) -> Batch:
    """Return a batch of `size` examples whose tensors have realistic shapes but no data.

    The size of every tensor is proportional to the number of examples. The factor is measured on
    examples that are evenly spread over the data.
    """
    source = task.train_examples()
    few = min(len(source), SAMPLED_EXAMPLES)
    sample: Any = source.batch(np.linspace(0, len(source) - 1, few).astype(np.int64))
    tensors = {name: value for name, value in vars(sample).items() if isinstance(value, Tensor)}
    grown = {
        name: value.new_empty(-(-len(value) * size // few), *value.shape[1:], device=device)
        for name, value in tensors.items()
    }
    batch: Batch = replace(sample, **grown)
    return batch
