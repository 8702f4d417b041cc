"""The training loop, which is the same for every task.

The trainer receives its parts and does not build them. Each optimization is in a separate file of
this folder and is applied once before the loop, in the order memory, compilation, data parallelism.
Precision is a context in the step.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NoReturn

import torch
from torch import Tensor

from clew import names
from clew.config.schema import RunConfig
from clew.config.training import SGD, TrainingConfig
from clew.errors import ConfigError, Interrupted, NonFiniteLossError
from clew.training.checkpointing import Checkpointer, Resumable
from clew.training.loaders import BatchLoader, batches_per_epoch
from clew.training.memory import MemoryCleanup, gpu_peaks
from clew.training.optimizer import clip_gradients, gradient_norm, is_better
from clew.training.progress import (
    STEP_SECONDS,
    Progress,
    StepProfiler,
    StopRequest,
    Throughput,
    Watch,
)
from clew.training.reports import Reports
from clew.training.seeding import effects_of
from clew.training.task import B, Task


@dataclass(frozen=True)
class StepLoss:
    """The summed loss of one optimizer step, on the device until it is read."""

    step: int
    epoch: int
    total: Tensor
    examples: str
    """The examples of the step, for an error message; empty if the loss is known to be finite."""


@dataclass
class Trainer(Resumable, Generic[B]):
    """Trains a model on a task; the state that changes is in the parts of `Resumable`."""

    config: RunConfig
    task: Task[B]
    cleanup: MemoryCleanup
    throughput: Throughput
    profiler: StepProfiler
    checkpointer: Checkpointer
    watch: Watch
    reports: Reports

    _stop: StopRequest = field(default_factory=StopRequest)
    _all_stop: bool = False
    """Whether all processes know that one of them received a signal to stop."""
    _is_slow: bool = False
    """Whether the last step took longer than `STEP_SECONDS`."""
    _unread: list[StepLoss] = field(default_factory=list)
    """Losses of the steps since the last read, still on the device."""

    def train(self) -> Progress:
        """Train until the last epoch, `max_steps` or early stopping.

        Raises:
            NonFiniteLossError: A loss is not finite, or too many float16 steps in a row overflowed.
            Interrupted: The process received a signal to stop and has written a checkpoint, or the
                watch stopped the training, without a checkpoint.
        """
        with self._stop.listening(), self.reports.following(self):
            loader = BatchLoader(self.task.train_examples(), self.settings, self.world)
            while not self.finished:
                self.model.train()
                self.throughput.start()
                for window in self._windows(loader):
                    if self._out_of_steps or self._stopping:
                        break
                    if self._due_by_steps:  # checked here because _close_epoch writes its own
                        self.throughput.pause()
                        self._write(f"step-{self.progress.step:08d}")
                        self.throughput.start()
                    self.watch.before_step()
                    self._step(window)
                self.throughput.pause()
                self._close_epoch()
        self.profiler.close()
        self.checkpointer.send_best()
        return self.progress

    def adopt(self) -> Progress:
        """Record the model as it is: as the result of one epoch with one step.

        TracIn gets the configured learning rate, divided by the batch size, as its weight.
        """
        rate, count = self.config.optimizer.learning_rate, self.settings.batch_size
        self.progress.count_step(rate=rate, count=count, momentum=0.0)
        self.progress.cursor = self.batches_per_epoch
        self._close_epoch()
        self.checkpointer.send_best()
        return self.progress

    @property
    def settings(self) -> TrainingConfig:
        return self.config.training

    @property
    def finished(self) -> bool:
        """Whether epochs, patience or steps have run out, and the last epoch is closed."""
        progress, patience = self.progress, self.settings.early_stopping_patience
        out_of_patience = patience is not None and progress.stale_evaluations >= patience
        out_of_steps = self._out_of_steps and progress.closed_step == progress.step
        return progress.epoch >= self.settings.num_epochs or out_of_patience or out_of_steps

    @property
    def _out_of_steps(self) -> bool:
        limit = self.settings.max_steps
        return limit is not None and self.progress.step >= limit

    def _windows(self, loader: BatchLoader[B]) -> Iterator[list[B]]:
        batches = loader.epoch(self.progress.epoch, self.progress.cursor)
        while True:
            began = time.perf_counter()
            window = list(itertools.islice(batches, self.settings.gradient_accumulation))
            self.throughput.waited_seconds += time.perf_counter() - began
            if not window:
                return
            yield window

    def _step(self, window: list[B]) -> None:
        """Make one optimizer step; one that takes long is undone if a signal stops the training."""
        began = time.perf_counter()
        undo = effects_of(self.model) if self._is_slow and self.world.size == 1 else None
        try:
            self._stop.can_undo = undo is not None
            loss, count, grad_norm = self._differentiate(window)
            self._stop.can_undo = False
        except KeyboardInterrupt:
            self._stop.can_undo = False
            if undo is None:
                raise
            undo()
            return
        self._update(window, loss, count, grad_norm)
        self._is_slow = time.perf_counter() - began > STEP_SECONDS

    def _differentiate(self, window: list[B]) -> tuple[StepLoss, float, Tensor | None]:
        """Compute the gradients of a step; return its loss, its count and the gradients' norm."""
        progress, device = self.progress, self.precision.device
        count = self._count(window)
        total = self.world.sum(sum(self._backward(batch, count) for batch in window), device)
        known_finite = self._losses_are_at_hand and math.isfinite(float(total))
        examples = "" if known_finite else ", ".join(batch.describe() for batch in window)
        loss = StepLoss(progress.step, progress.epoch, total, examples)
        self.world.sum_gradients(self.model)
        if self._losses_are_at_hand:
            self._refuse_non_finite(loss, float(total))
        self.precision.scaler.unscale_(self.optimizer)
        self.world.share_overflow(self.precision.scaler, self.optimizer)
        return loss, count, self._clip()

    def _update(
        self, window: list[B], loss: StepLoss, count: float, grad_norm: Tensor | None
    ) -> None:
        """Change the parameters by their gradients, and count the step."""
        progress, scaler = self.progress, self.precision.scaler
        factor = self.schedule.factor(step=progress.step, epoch=progress.epoch)
        rate = self.config.optimizer.learning_rate * factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        taken = scaler.get_scale() >= scale  # the scale decreases after an overflow
        self.optimizer.zero_grad(set_to_none=True)

        progress.cursor += len(window)
        units: Counter[str] = Counter()
        for batch in window:
            units.update(batch.units())
        self.throughput.step_done({name: n * self.world.size for name, n in units.items()})
        self.profiler.step_done()
        if not taken:
            self._count_skipped()
            return
        settings = self.config.optimizer  # momentum multiplies the effect of a gradient
        momentum = settings.momentum if isinstance(settings, SGD) else 0.0
        progress.count_step(rate=rate, count=count, momentum=momentum)
        self._log(loss, count, rate, grad_norm)
        self.average.update(progress.step)
        self.cleanup.after_step(progress.step)

    def _count(self, window: list[B]) -> float:
        """Return the count of a step's loss over all processes, and share requests to stop.

        A signal reaches the processes at different times, but all processes must make the same
        collectives. So no process stops before all know of the signal.
        """
        own = [float(sum(batch.count for batch in window)), float(self._stop.requested)]
        if self.world.size > 1:
            numbers = torch.tensor(own, dtype=torch.float64)
            own = self.world.sum(numbers, torch.device("cpu")).tolist()
        count, stops = own
        self._all_stop = stops > 0
        return count

    def _backward(self, batch: B, count: float) -> float | Tensor:
        if batch.num_examples == 0:
            return 0.0
        batch = batch.to(self.precision.device)
        with self.precision.products:
            with self.precision.autocast:
                loss = self.task.loss(self.model, batch)
            self.precision.scaler.scale(loss.total / count).backward()  # type: ignore[no-untyped-call]
        return loss.total.detach().double()

    def _refuse_non_finite(self, loss: StepLoss, total: float) -> None:
        """Raise an error if the loss is not finite; in float16, such a step is skipped instead."""
        if math.isfinite(total) or self.precision.loss_scale is not None:
            return
        raise NonFiniteLossError(
            f"the loss is {total} at step {loss.step} (epoch {loss.epoch + 1}, {loss.examples}); "
            "no checkpoint was written after it. Lower optimizer.learning_rate or set "
            f"training.max_grad_norm (docs/wrong.md, NaN); {self.checkpointer.last_good()}"
        )

    @property
    def _losses_are_at_hand(self) -> bool:
        """Whether each loss can be read before its step changes parameters, without a GPU sync."""
        return self.precision.device.type == "cpu"

    def _read_losses(self) -> None:
        """Add the losses of the steps since the last read to the loss of the interval."""
        if not self._unread:
            return
        # Only here does the host wait for losses on a GPU. This runs before everything that is
        # kept (logged values, validation, checkpoints). A loss that is not finite stops training
        # here, at most `log_every_steps` steps late, and nothing computed after it is kept.
        totals = torch.stack([loss.total for loss in self._unread]).tolist()
        for loss, total in zip(self._unread, totals, strict=True):
            self._refuse_non_finite(loss, total)
            self.progress.interval_loss += total
        self._unread.clear()

    def _write(self, name: str, metrics: dict[str, float] | None = None) -> None:
        """Write a checkpoint after reading all losses, which its progress includes."""
        self._read_losses()
        self.checkpointer.write(name, metrics)

    def _clip(self) -> Tensor | None:
        """Clip the gradients and return their norm before clipping; None if it is not needed."""
        limit = self.settings.max_grad_norm
        due = (self.progress.step + 1) % self.settings.log_every_steps == 0
        if limit is None and not due:
            return None
        norm = gradient_norm(self.model, self.world)
        if limit is not None:
            clip_gradients(self.model, limit, norm)
        return norm

    def _count_skipped(self) -> None:
        """Record a float16 step that overflowed; raise an error after too many in a row."""
        progress = self.progress
        progress.skipped_steps += 1
        progress.skipped_in_a_row += 1
        scale = self.precision.loss_scale or 0.0
        self.record(
            {names.TRAIN_SKIPPED_STEPS: progress.skipped_steps, names.TRAIN_LOSS_SCALE: scale}
        )
        if progress.skipped_in_a_row >= self.settings.max_skipped_steps:
            raise NonFiniteLossError(
                f"{progress.skipped_in_a_row} steps in a row overflowed in float16, at step "
                f"{progress.step}; they did not change the parameters. Use bfloat16 or "
                f"float32, or lower optimizer.learning_rate; {self.checkpointer.last_good()}"
            )

    def _log(self, loss: StepLoss, count: float, rate: float, grad_norm: Tensor | None) -> None:
        self._unread.append(loss)
        self.progress.interval_count += count
        if self.progress.step % self.settings.log_every_steps:
            return
        values = self._interval() | {names.TRAIN_LEARNING_RATE: rate}
        if grad_norm is not None and bool(grad_norm.isfinite()):
            values[names.TRAIN_GRAD_NORM] = float(grad_norm)
        if self.precision.loss_scale is not None:
            values[names.TRAIN_LOSS_SCALE] = self.precision.loss_scale
        self.record(values)

    def _interval(self) -> dict[str, float]:
        """Return the mean loss since the last logged one and the epochs done, and reset the sums.

        The result is empty if there was no step since then.
        """
        self._read_losses()
        progress = self.progress
        if not progress.interval_count:
            return {}
        mean = progress.interval_loss / progress.interval_count
        progress.interval_loss = progress.interval_count = 0.0
        epochs = progress.epoch + progress.cursor / self.batches_per_epoch
        return {names.TRAIN_LOSS: mean, names.TRAIN_EPOCH: epochs}

    @property
    def _stopping(self) -> bool:
        """Whether to stop; with several processes, only after all of them know."""
        return self._stop.requested if self.world.size == 1 else self._all_stop

    @property
    def _due_by_steps(self) -> bool:
        """Whether a checkpoint is due by `checkpoint_every_steps` and not yet written."""
        every, progress = self.settings.checkpoint_every_steps, self.progress
        new = progress.step != progress.checkpoint_step
        return every is not None and progress.step % every == 0 and new

    @property
    def batches_per_epoch(self) -> int:
        """Microbatches of an epoch in each process."""
        num_examples = len(self.task.train_examples())
        return batches_per_epoch(num_examples, self.settings.batch_size, self.world.size)

    def _close_epoch(self) -> None:
        progress = self.progress
        peaks = gpu_peaks(self.precision.device)
        self.record(self._interval() | self.throughput.close_epoch() | peaks)
        if self._stopping:
            self._stop_here()
        complete = progress.cursor >= self.batches_per_epoch
        before = progress.epoch, progress.cursor
        if complete:
            progress.epoch, progress.cursor = progress.epoch + 1, 0
        last = progress.epoch >= self.settings.num_epochs or self._out_of_steps
        metrics: dict[str, float] = {}
        evaluation = self.config.evaluation
        if evaluation.enabled and (last or progress.epoch % evaluation.every_epochs == 0):
            try:
                with self.average.applied():
                    metrics = self._validate()
            except KeyboardInterrupt:
                progress.epoch, progress.cursor = before
                self._stop_here()
        progress.closed_step = progress.step
        frequency = self.settings.checkpoint_frequency
        due = complete and frequency > 0 and progress.epoch % frequency == 0
        if due or self._due_by_steps or self.finished:
            name = f"epoch-{progress.epoch:04d}" if complete else f"step-{progress.step:08d}"
            # The metrics of the average are not those of the parameters in this checkpoint.
            self._write(name, {} if self.average.active else metrics)
        if metrics:
            epoch = progress.epoch if complete else progress.epoch + 1
            self.watch.validated(metrics[evaluation.metric], epoch, is_last=self.finished)

    def _stop_here(self) -> NoReturn:
        """Write a checkpoint and stop; a resumed run validates an epoch that was complete."""
        progress, self._stop.at_once = self.progress, False
        self._write(f"step-{progress.step:08d}")
        raise Interrupted(
            f"stopped at step {progress.step} of epoch {progress.epoch + 1}; "
            f"{self.checkpointer.last_good()}"
        )

    def _validate(self) -> dict[str, float]:
        device, progress, wanted = self.precision.device, self.progress, self.config.evaluation
        started = time.perf_counter()
        self.model.eval()
        self.world.synchronize_buffers(self.model)
        values: dict[str, float] = {}
        self.reports.doing, self._stop.at_once = "validating", self.world.size == 1
        if self.world.evaluates:
            with torch.no_grad():
                values = self.task.metrics(self.model, "valid", device)
        self.reports.doing, self._stop.at_once = "", False
        values = self.world.broadcast(values, device)
        if wanted.metric not in values:
            raise ConfigError(
                f"evaluation.metric is {wanted.metric!r}, but validation gives "
                f"{', '.join(sorted(values)) or 'nothing'}; choose one of these"
            )
        self.record(values | {names.TIME_EVALUATION_SECONDS: time.perf_counter() - started})
        result = values[wanted.metric]
        self.schedule.observe(result)
        progress.stale_evaluations += 1
        if is_better(result, progress.best_metric, maximize=wanted.maximize):
            progress.best_metric, progress.best_step = result, progress.step
            progress.stale_evaluations = 0
            self.checkpointer.write_best(values)
        self.reports.validated(values)
        return values

    def record(self, values: dict[str, float]) -> None:
        self.history.record(values, step=self.progress.step, epoch=self.progress.epoch)
