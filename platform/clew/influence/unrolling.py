"""Exact influence through the whole training run, by reverse mode (Engstrom et al., 2025).

Every training fact has a weight w_i = 1 in the losses of its rows. The loss L of a test example
after the last step is a function of these weights through the whole training run, including
initialisation, order, dropout, normalisation, the optimizer's state, schedule, accumulation and
clipping. The influence of fact i is -dL/dw_i, which is positive if more weight lowers the loss. It
is exact to first order in the weights, and describes this one run.

The reverse pass goes through the intervals between checkpoints, last interval first. The states of
an interval are replayed from its first checkpoint. If the states of all n steps fit into the
budget, all are kept. Otherwise the steps are divided into blocks of about sqrt(n), only the first
state of each block is kept, and each block is replayed once more.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, NonFiniteLossError, described
from clew.files import replacing
from clew.influence.adjoints import Adjoint, Adjoints, OptimizerAdjoint, clipped, through_clipping
from clew.influence.linearization import ExampleFacts, Linear, StepGradient, final_adjoint
from clew.training.checkpoints import AVERAGE_FILE, load_tensors, load_training_values
from clew.training.manifest import MODEL_FILE, CheckpointRecord, read_manifest, save_tensors
from clew.training.optimizer import WithoutDecay
from clew.training.replay import Replay, ReplayedStep, State
from clew.training.seeding import own_process
from clew.training.task import B

NEEDS = "--score unrolled, --score tuned and clew value-facts"
OTHERWISE = "explain with --score raw or cosine, or train again"
logger = logging.getLogger(__name__)
GROUPS = ("parameters", "buffers", "moments", "average")


def require_replayable(config: RunConfig, device: torch.device) -> None:
    """Raise an error if the steps of a run cannot be repeated exactly."""
    optimizations, influence = config.optimizations, config.influence
    settings = {
        "optimizations.use_mixed_precision": optimizations.use_mixed_precision,
        "optimizations.torch_compile": optimizations.torch_compile,
        "optimizations.use_tf32": optimizations.use_tf32 and device.type == "cuda",
    }
    impossible = f"{NEEDS} repeat the steps of training exactly, which is not possible"
    for key in (name for name, is_set in settings.items() if is_set):
        raise ConfigError(f"{impossible} with {key}=true; {OTHERWISE} with {key}=false")
    if isinstance(config.loss, EntityLoss) and config.loss.negatives is not None:
        raise ConfigError(
            f"{NEEDS} do not work with loss.negatives={config.loss.negatives}, whose samples "
            f"belong to no single triple; {OTHERWISE} without loss.negatives"
        )
    if device.type == "cuda" and not config.training.deterministic:
        raise ConfigError(
            f"{impossible} on a GPU with training.deterministic=false; {OTHERWISE} with "
            "training.deterministic=true"
        )
    for name in ("use_mixed_precision", "use_last_layers_only"):
        if getattr(influence, name):
            raise ConfigError(
                f"influence.{name} is true; {NEEDS} use the whole model in the precision of its "
                "training run; leave it out"
            )


def require_states(checkpoints: Sequence[CheckpointRecord]) -> None:
    """Raise an error if a run's checkpoints do not hold one run of one process."""
    first = checkpoints[0]
    if first.previous_step:
        raise CheckpointError(
            f"{first.path}: follows step {first.previous_step}, whose checkpoint was not given; "
            "score=unrolled needs all checkpoints of the run; give the run's id"
        )
    last = read_manifest(checkpoints[-1].path)
    for record in checkpoints:
        manifest = read_manifest(record.path)
        if manifest.config_hash != last.config_hash:
            raise CheckpointError(
                f"{record.path}: was trained with other settings than {checkpoints[-1].path.name} "
                f"(configuration {manifest.config_hash} and {last.config_hash}), for example "
                "because the run was resumed with a change; score=unrolled needs one "
                f"configuration; {OTHERWISE}"
            )
        size = load_training_values(record.path).world_size
        if size != 1:
            raise CheckpointError(
                f"{record.path}: was trained by {size} processes; score=unrolled can only replay "
                f"a run of one process; {OTHERWISE} in one process"
            )


@dataclass(eq=False)
class Unfinished:
    """The progress of a pass."""

    intervals_left: int
    """Number of intervals left, counted from the first; the pass goes backwards."""
    adjoints: list[Adjoint]
    """One for each explained loss, for the state at the end of the last interval left."""
    totals: Tensor
    """Derivatives with respect to fact weights so far, `(interval, loss, fact)`."""


@dataclass(frozen=True)
class KeptInFile:
    """Keeps a pass in one safetensors file, which is written atomically.

    The file's name must identify the run, what is explained, and the settings.
    """

    path: Path
    device: torch.device
    stays: bool = False
    """Whether the file of a finished pass is left, for whoever needs several passes."""

    def read(self) -> Unfinished | None:
        """Return the pass that an earlier process left; None if there is none or it is damaged."""
        if not self.path.is_file():
            return None
        try:
            tensors = load_file(self.path, device=str(self.device))
            totals, left = tensors.pop("totals"), int(tensors.pop("intervals_left"))
            adjoints = [Adjoint({}, {}, {}, {}) for _ in range(totals.shape[1])]
            for key, tensor in tensors.items():
                number, group, name = key.split("|")
                if group not in GROUPS:
                    raise KeyError(group)
                getattr(adjoints[int(number)], group)[name] = tensor
            return Unfinished(left, adjoints, totals)
        except (OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError) as error:
            logger.warning(
                "%s cannot be read (%s); the pass begins again", self.path, described(error)
            )
            return None

    def write(self, unfinished: Unfinished) -> None:
        """Save a pass, replacing the one that was saved before."""
        tensors = {
            f"{number}|{group}|{name}": tensor
            for number, adjoint in enumerate(unfinished.adjoints)
            for group in GROUPS
            for name, tensor in getattr(adjoint, group).items()
        }
        left = torch.tensor(unfinished.intervals_left)
        tensors |= {"totals": unfinished.totals, "intervals_left": left}
        with replacing(self.path) as temporary:
            save_tensors(tensors, temporary)


@torch.no_grad()
def load_average(model: nn.Module, checkpoint: Path) -> None:
    """Give a model the average of the parameters that a checkpoint keeps."""
    average = load_tensors(checkpoint / AVERAGE_FILE)
    for name, parameter in model.named_parameters():
        parameter.copy_(average[name])


def pass_name(
    checkpoints: Sequence[CheckpointRecord], data_fingerprint: str, *explained: bytes
) -> str:
    """Return a name that identifies an explanation of a run."""
    digest = hashlib.sha256()
    for record in checkpoints:
        digest.update(f"{record.step} {record.learning_rate_weight};".encode())
    digest.update((checkpoints[-1].path / MODEL_FILE).read_bytes())
    digest.update(data_fingerprint.encode())
    for part in explained:
        digest.update(part)
    return digest.hexdigest()[:24]


MEBIBYTE = 2**20
Objective = Callable[[nn.Module], Tensor]
"""A loss to explain: a scalar function of the trained model in evaluation mode."""


def through_training(
    replayed: Callable[[], Replay[B]],
    facts: ExampleFacts[B],
    losses: Sequence[Objective],
    *,
    kept: Path,
    stays: bool = False,
    progress: Callable[[int, int], None],
) -> Float[np.ndarray, "interval loss fact"]:
    """Differentiate losses through training; a pass that was stopped continues from `kept`."""
    with own_process():
        replay = replayed()  # building the trainer sets seeds and threads of the process
        budget = replay.config.influence.memory_budget_mib * MEBIBYTE
        unrolling = Unrolling(replay, facts, budget, KeptInFile(kept, replay.device, stays))
        by_interval: np.ndarray = unrolling.explain(losses, progress=progress).astype(np.float64)
    if not np.isfinite(by_interval).all():
        raise NonFiniteLossError(
            "influence scores contain NaN or infinity: the derivative of the trained loss is "
            "unbounded; explain with --score raw or cosine, or train with a lower "
            "optimizer.learning_rate (a conve also with model.activation=silu)"
        )
    return by_interval


@dataclass(eq=False)
class Unrolling(Generic[B]):
    """Explains losses of one trained model by its training facts."""

    replay: Replay[B]
    facts: ExampleFacts[B]
    budget_bytes: float
    kept: KeptInFile | None = None
    """File for the adjoints after every interval, to resume a killed pass; None: no file."""

    def __post_init__(self) -> None:
        config, device = self.replay.config, self.replay.device
        model = self.replay.task.build_model().to(device)
        self._linear = Linear(model, self.facts, device, config.training.batch_size)
        without_decay: frozenset[str] = frozenset()
        if isinstance(model, WithoutDecay):
            left = {id(p) for p in model.parameters_without_decay()}
            named = model.named_parameters()
            without_decay = frozenset(name for name, p in named if id(p) in left)
        self._optimizer = OptimizerAdjoint(config.optimizer, without_decay)

    def explain(
        self,
        objectives: Sequence[Objective],
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Float[np.ndarray, "interval loss fact"]:
        """Return the influence of each fact on each loss, separately for each interval.

        An interval holds the steps from one checkpoint to the next.
        """
        steps = [record.step for record in self.replay.checkpoints]
        intervals = list(zip([0, *steps[:-1]], steps, strict=True))
        state = self._last_state()
        averaged = self.replay.config.training.ema_decay is not None
        adjoints = [
            final_adjoint(self._linear, state, objective, averaged=averaged)
            for objective in objectives
        ]
        dtype = next(iter(adjoints[0].parameters.values())).dtype
        shape = (len(intervals), len(objectives), len(self.facts))
        unfinished = (self.kept and self.kept.read()) or Unfinished(
            len(intervals), adjoints, torch.zeros(shape, dtype=dtype, device=self.replay.device)
        )
        work = _Work(intervals, state.num_bytes, self.budget_bytes, progress)
        work.skip(unfinished.intervals_left)
        while unfinished.intervals_left:
            number = unfinished.intervals_left - 1
            with self.replay.recorded_threads(number):
                self._leave_interval(number, intervals[number], unfinished, work)
            unfinished.intervals_left = number
            if self.kept:
                self.kept.write(unfinished)
        if self.kept and not self.kept.stays:
            self.kept.path.unlink(missing_ok=True)
        return -unfinished.totals.cpu().numpy()

    def _last_state(self) -> State:
        self.replay.begin(len(self.replay.checkpoints))
        return self.replay.capture()

    def _leave_interval(
        self, number: int, bounds: tuple[int, int], unfinished: Unfinished, work: "_Work"
    ) -> None:
        block = work.block_of(bounds)
        starts: list[State] = []
        steps: list[ReplayedStep[B]] = []
        self.replay.begin(number)
        whole = block >= bounds[1] - bounds[0]
        for step in self.replay.steps(bounds[1], keep_every=1 if whole else block):
            if whole:
                steps.append(step)
            elif step.before is not None:
                starts.append(step.before)
            work.advance()
        self.replay.require_equal(number)
        if whole:
            self._leave_block(steps, number, unfinished, work)
        while starts:
            start = starts.pop()
            self.replay.restore(start)
            end = min(start.progress.step + block, bounds[1])
            for step in self.replay.steps(end):
                steps.append(step)
                work.advance()
            self._leave_block(steps, number, unfinished, work)

    def _leave_block(
        self, steps: list[ReplayedStep[B]], number: int, unfinished: Unfinished, work: "_Work"
    ) -> None:
        after = self.replay.capture()
        while steps:
            step = steps.pop()
            assert step.before is not None
            self._refuse_other_changes(step.before, after)
            self._leave_step(step, after, unfinished.adjoints, unfinished.totals[number])
            after = step.before
            work.advance()
        for adjoint in unfinished.adjoints:
            if not all(bool(a.isfinite().all()) for a in adjoint.parameters.values()):
                raise NonFiniteLossError(
                    f"an adjoint is infinite at step {after.progress.step}: the derivative of the "
                    "trained loss is unbounded there. Explain with score=cosine, or train with "
                    "model.activation=silu or a lower optimizer.learning_rate"
                )

    def _refuse_other_changes(self, before: State, after: State) -> None:
        known = {*self._linear.parameters, *self._linear.statistics}
        for name in after.model.keys() - known:
            tensor = after.model[name]
            if tensor.is_floating_point() and not torch.equal(tensor, before.model[name]):
                raise CheckpointError(
                    f"training changes the buffer {name}, which is not a statistic of a batch "
                    "normalisation; score=unrolled cannot differentiate it; use raw or cosine"
                )

    def _leave_step(
        self, step: ReplayedStep[B], after: State, adjoints: Sequence[Adjoint], totals: Tensor
    ) -> None:
        training = self.replay.config.training
        assert step.before is not None
        gradient = StepGradient(self._linear, step)
        short, norm, factor = clipped(gradient.values, training.max_grad_norm)
        along: list[Adjoints] = []
        for adjoint in adjoints:
            if training.ema_decay is not None:
                adjoint.leave_average(training.ema_decay, step.number + 1)
            u = self._optimizer.leave(
                adjoint, short, before=step.before, after=after, rate=step.rate
            )
            for name in self._linear.without_effect & u.keys():
                u[name].zero_()
            along.append(through_clipping(u, gradient.values, norm, factor))
        gradient.pull(along, adjoints, totals)


@dataclass
class _Work:
    """How steps are divided into blocks, and how many were replayed and reversed so far."""

    intervals: Sequence[tuple[int, int]]
    state_bytes: int
    budget_bytes: float
    report: Callable[[int, int], None]
    done: int = 0

    def block_of(self, bounds: tuple[int, int]) -> int:
        """Return the number of states held at once: one per step, or about the square root."""
        length = bounds[1] - bounds[0]
        fits = (length + 1) * self.state_bytes <= self.budget_bytes
        return length if fits else math.isqrt(max(length - 1, 0)) + 1

    def steps_of(self, bounds: tuple[int, int]) -> int:
        """Return the number of steps to compute: replayed once or twice, and reversed."""
        length = bounds[1] - bounds[0]
        return (2 if self.block_of(bounds) >= length else 3) * length

    def skip(self, left: int) -> None:
        self.done += sum(self.steps_of(bounds) for bounds in self.intervals[left:])

    def advance(self) -> None:
        self.done += 1
        self.report(self.done, sum(map(self.steps_of, self.intervals)))
