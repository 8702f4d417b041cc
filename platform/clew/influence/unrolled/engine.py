r"""Exact influence through the whole training run, by reverse mode (Engstrom et al., 2025).

Give every training fact a weight w_i = 1 in its rows' losses. The loss L of a test example after
the last step is a function of these weights through the whole training: initialisation, order,
dropout, normalisation, the optimizer's state, schedule, accumulation and clipping included. The
influence of fact i is -dL/dw_i: positive where more weight lowers the loss. It is exact to first
order in the weights, and of this one run.

Steps are gone through backwards, between one checkpoint and the next. Their states are replayed
from the earlier checkpoint: all at once if they fit the budget, else in blocks of the square root
of their number, from states kept at the beginning of each block, which takes one more replay.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.errors import CheckpointError, NonFiniteLossError
from clew.influence.unrolled.adjoints import (
    Adjoint,
    Adjoints,
    OptimizerAdjoint,
    clipped,
    through_clipping,
)
from clew.influence.unrolled.facts import Facts
from clew.influence.unrolled.linearization import Linear, final_adjoint
from clew.influence.unrolled.progress_files import KeptInFile, Unfinished
from clew.training.optimizer import WithoutDecay
from clew.training.replay import Replay, ReplayedStep, State
from clew.training.task import B

Objective = Callable[[nn.Module], Tensor]
"""An explained loss: a scalar of the trained model in evaluation mode."""


@dataclass(eq=False)
class Unrolling(Generic[B]):
    """Explains losses of one trained model by its training facts.

    Args:
        replay: The recorded run.
        facts: Its training facts.
        budget_bytes: Memory for the states of an interval between two checkpoints.
    """

    replay: Replay[B]
    facts: Facts[B]
    budget_bytes: float
    kept: KeptInFile | None = None
    """Where the adjoints go after every interval, to go on from after a kill; None: nowhere."""

    def __post_init__(self) -> None:
        config, device = self.replay.config, self.replay.device
        model = self.replay.task.build_model().to(device)
        self._linear = Linear(model, self.facts, device)
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
        """Return the influence of each fact on each loss, as a sum over intervals.

        An interval holds the steps up to a checkpoint, from the one before it.

        Args:
            objectives: The explained losses; one that is a weighted sum costs as much as any.
            progress: Called with the number of steps done and in total, replays included.

        Raises:
            CheckpointError: A replay does not reach a checkpoint's numbers.
            NonFiniteLossError: An adjoint became infinite.
        """
        steps = [record.step for record in self.replay.checkpoints]
        intervals = list(zip([0, *steps[:-1]], steps, strict=True))
        state = self._last_state()
        averaged = self.replay.config.training.ema_decay is not None
        adjoints = [
            final_adjoint(self._linear, state, objective, averaged=averaged)[1]
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
        if self.kept:
            self.kept.remove()
        return -unfinished.totals.cpu().numpy()

    def _last_state(self) -> State:
        """Return the state at the last checkpoint."""
        self.replay.begin(len(self.replay.checkpoints))
        return self.replay.capture()

    def _leave_interval(
        self, number: int, bounds: tuple[int, int], unfinished: Unfinished, work: "_Work"
    ) -> None:
        """Go back through the steps of one interval."""
        block = work.block_of(bounds)
        starts: list[State] = []
        steps: list[ReplayedStep[B]] = []
        first = self.replay.begin(number)
        whole = block >= bounds[1] - bounds[0]
        for step in self.replay.steps(bounds[1], keep_every=1 if whole else block):
            if whole:
                steps.append(step)
            elif step.before is not None:
                starts.append(step.before)
            work.advance()
        self.replay.require_equal(number)
        after = self.replay.capture()
        self._refuse_other_changes(first, after)
        if whole:
            self._leave_block(steps, after, number, unfinished, work)
            return
        while starts:
            start = starts.pop()
            self.replay.restore(start)
            end = min(start.progress.step + block, bounds[1])
            for step in self.replay.steps(end):
                steps.append(step)
                work.advance()
            after = self.replay.capture()
            self._leave_block(steps, after, number, unfinished, work)

    def _refuse_other_changes(self, first: State, after: State) -> None:
        """Refuse a model with buffers that training changes in a way that has no adjoint here."""
        known = {*self._linear.parameters, *self._linear.statistics}
        for name, tensor in after.model.items():
            if name in known or not tensor.is_floating_point():
                continue
            if not torch.equal(tensor, first.model[name]):
                raise CheckpointError(
                    f"training changes the buffer {name}, which is no statistic of a batch "
                    "normalisation; score=unrolled cannot follow it: use raw or cosine"
                )

    def _leave_block(
        self,
        steps: list[ReplayedStep[B]],
        after: State,
        number: int,
        unfinished: Unfinished,
        work: "_Work",
    ) -> None:
        """Go back through steps whose states are there; the list is empty then."""
        while steps:
            step = steps.pop()
            assert step.before is not None
            self._leave_step(step, after, unfinished.adjoints, unfinished.totals[number])
            after = step.before
            work.advance()
        for adjoint in unfinished.adjoints:
            if not all(bool(a.isfinite().all()) for a in adjoint.parameters.values()):
                raise NonFiniteLossError(
                    f"an adjoint is infinite at step {after.progress.step}: the trained loss "
                    "depends on the training facts without limit there. Explain with score=cosine, "
                    "or train with model.activation=silu or a lower optimizer.learning_rate"
                )

    def _leave_step(
        self, step: ReplayedStep[B], after: State, adjoints: Sequence[Adjoint], totals: Tensor
    ) -> None:
        training = self.replay.config.training
        assert step.before is not None
        gradient = self._linear.gradient(step)
        short, norm, factor = clipped(gradient.values, training.max_grad_norm)
        along: list[Adjoints] = []
        for adjoint in adjoints:
            if training.ema_decay is not None:
                adjoint.leave_average(training.ema_decay, step.number + 1)
            u = self._optimizer.leave(
                adjoint, short, before=step.before, after=after, rate=step.rate
            )
            along.append(through_clipping(u, gradient.values, norm, factor))
        gradient.pull(along, adjoints, totals)


@dataclass
class _Work:
    """How the steps are divided into blocks, and how many replayed and reversed ones are done."""

    intervals: Sequence[tuple[int, int]]
    state_bytes: int
    budget_bytes: float
    report: Callable[[int, int], None]
    done: int = 0

    def block_of(self, bounds: tuple[int, int]) -> int:
        """Return how many steps' states are held at once: all of an interval's, or the root."""
        length = bounds[1] - bounds[0]
        fits = (length + 1) * self.state_bytes <= self.budget_bytes
        return length if fits else math.isqrt(max(length - 1, 0)) + 1

    def steps_of(self, bounds: tuple[int, int]) -> int:
        """Return the steps to take for an interval: replayed once or twice, and reversed."""
        length = bounds[1] - bounds[0]
        return (2 if self.block_of(bounds) >= length else 3) * length

    def skip(self, left: int) -> None:
        """Count the intervals as done that an earlier process has done."""
        self.done += sum(self.steps_of(bounds) for bounds in self.intervals[left:])

    def advance(self) -> None:
        """Count a step."""
        self.done += 1
        self.report(self.done, sum(map(self.steps_of, self.intervals)))
