"""Says in lines of the log how training goes, and shows a bar beside them on a terminal.

A thread speaks whenever nothing was said for `SILENT_SECONDS`, so that reading data, compiling, a
long step and a long validation are not silent either. It only looks at the trainer's counters.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from clew import names
from clew.errors import counted
from clew.runs.hardware import process_peak_gib
from clew.training.hardware import Hardware
from clew.training.memory import gpu_peaks

if TYPE_CHECKING:
    from clew.training.trainer import Trainer

logger = logging.getLogger(__name__)

SILENT_SECONDS = 24.0
"""A second less than those of `clew.cli`, whose line says less."""
BAR_SECONDS = 0.5
LAYOUT = "{percentage:3.0f}% |{bar:20}| {desc}"


def lasting(seconds: float) -> str:
    """Return a time in words, such as `40 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Reports:
    """The lines and the bar of one training run; one that is part of another only ends silences."""

    def __init__(self, *, speaks: bool, is_part: bool = False) -> None:
        self.doing = "reading the data"
        """What happens now, unless steps are made."""
        self._speaks, self._is_part = speaks, is_part
        self._trainer: Trainer[Any] | None = None
        self._began = self._said = time.monotonic()
        self._done_before = 0.0
        """Share of the training that a resumed run does not repeat."""
        self._bar: tqdm[Any] | None = None
        self._ended = threading.Event()
        self._until_end = ExitStack()

    def __enter__(self) -> Self:
        if self._speaks:
            thread = threading.Thread(target=self._watch, name="clew-reports", daemon=True)
            thread.start()
            self._until_end.callback(thread.join)
            self._until_end.callback(self._ended.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._until_end.close()

    def say(self, line: str) -> None:
        """Log a line; the next silence counts from here."""
        self._said = time.monotonic()
        logger.info("%s", line)

    def begin(
        self, trainer: "Trainer[Any]", data: str, findings: Sequence[str], watched: str
    ) -> None:
        """Say what is trained on what, what to look at in the data, and where to watch it."""
        if not self._speaks or self._is_part:
            return
        config, progress = trainer.config, trainer.progress
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        self.say(
            f"training {config.model.kind} ({parameters:,} parameters) on "
            f"{trainer.task.dataset}: {data}"
        )
        for finding in findings:
            self.say(f"look at: {finding}")
        length, steps = counted(config.training.num_epochs, "epoch"), config.training.max_steps
        length = length if steps is None else f"at most {length}, {counted(steps, 'step')}"
        resumed = f", from step {progress.step}" if progress.step else ""
        evaluation = config.evaluation
        decides = f"{evaluation.metric} decides" if evaluation.enabled else "no validation"
        self.say(f"{length}{resumed} {_machine_of(trainer)}; {decides}")
        self.say(f"watch it: {watched}")

    @contextmanager
    def following(self, trainer: "Trainer[Any]") -> Iterator[None]:
        """Report the steps of training inside this context."""
        self._trainer, self._began, self.doing = trainer, time.monotonic(), ""
        self._done_before = self._done()
        with ExitStack() as stack:
            # In Python, where nobody asked for lines, the bar alone is shown.
            is_quiet = logging.getLogger("clew").level > logging.INFO
            is_hidden = is_quiet or self._is_part or not self._speaks
            bar = tqdm(total=1.0, bar_format=LAYOUT, leave=False, disable=is_hidden or None)
            if not bar.disable:
                stack.enter_context(logging_redirect_tqdm())
                self._bar = stack.enter_context(bar)
            try:
                yield
            finally:
                self._trainer, self._bar = None, None

    def validated(self, values: Mapping[str, float]) -> None:
        """Report a validation, after the trainer has judged it."""
        if self._speaks and not self._is_part and self._trainer is not None:
            self.say(self._line(values))

    def _watch(self) -> None:
        while not self._ended.wait(BAR_SECONDS):
            if (bar := self._bar) is not None:
                bar.n = self._done()
                bar.set_description_str(self._line())
            if time.monotonic() - self._said >= SILENT_SECONDS:
                self.say(self._line())

    def _done(self) -> float:
        trainer = self._trainer
        if trainer is None:
            return 0.0
        settings, progress = trainer.settings, trainer.progress
        share = self._epochs(trainer) / settings.num_epochs
        return min(1.0, max(share, progress.step / settings.max_steps if settings.max_steps else 0))

    @staticmethod
    def _epochs(trainer: "Trainer[Any]") -> float:
        return trainer.progress.epoch + trainer.progress.cursor / trainer.batches_per_epoch

    def _line(self, validation: Mapping[str, float] | None = None) -> str:
        trainer, passed = self._trainer, time.monotonic() - self._began
        if trainer is None:
            return f"{self.doing}, {lasting(passed)} after the start"
        progress, evaluation = trainer.progress, trainer.config.evaluation
        latest: dict[str, float] = {}
        for entry in reversed(trainer.history.entries[-200:]):
            latest.setdefault(entry.key, entry.value)
        limit, epochs = trainer.settings.max_steps, self._epochs(trainer)
        parts = [f"epoch {epochs:.3g} of {trainer.settings.num_epochs}"]
        if limit is not None:
            parts = [f"step {progress.step:,} of {limit:,}"]
        if names.TRAIN_LOSS in latest:
            parts.append(f"loss {latest[names.TRAIN_LOSS]:.4g}")
        if validation is not None:
            is_best = progress.best_step == progress.step
            best = "the best so far" if is_best else f"best {progress.best_metric:.4g}"
            parts.append(f"{evaluation.metric} {validation[evaluation.metric]:.4g} ({best})")
        elif progress.best_step >= 0:
            parts.append(f"best {evaluation.metric} {progress.best_metric:.4g}")
        parts += [self.doing] if self.doing else []
        parts += speed_in_words(latest | trainer.throughput.rates())
        parts.append(f"{peak_gib(trainer.precision.device):.2f} GiB")
        done = self._done()
        if trainer.finished and done < 1:
            parts.append(f"stops early: not better {progress.stale_evaluations} times in a row")
        elif done > self._done_before and done < 1:
            left = passed * (1 - done) / (done - self._done_before)
            parts.append(f"{lasting(left)} left of {lasting(passed + left)}")
        return ", ".join(parts)


def _machine_of(trainer: "Trainer[Any]") -> str:
    """Return the precision, as the hardware computes it, and the device, in words."""
    half, hardware = trainer.precision.dtype, Hardware.of(trainer.precision.device)
    precision = "float32"
    if half is not None:
        has_units = hardware.float16 if half is torch.float16 else hardware.bfloat16
        precision = (
            f"{str(half).removeprefix('torch.')} {'' if has_units else '(emulated) '}and float32"
        )
    elif trainer.config.optimizations.use_tf32 and hardware.tf32:
        precision = "float32 with TF32 products"
    processes = f" in {trainer.world.size} processes" if trainer.world.size > 1 else ""
    return f"in {precision} on {hardware.name}{processes}"


def speed_in_words(metrics: Mapping[str, float]) -> list[str]:
    """Return the tokens per second of a text, or the examples per second; empty if unknown."""
    for key in (names.TOKENS_PER_SECOND, names.EXAMPLES_PER_SECOND):
        if key in metrics:
            return [f"{metrics[key]:,.0f} {key.split('/')[1].removesuffix('_per_second')}/s"]
    return []


def peak_gib(device: torch.device) -> float:
    """Return the peak memory of training so far, on its device."""
    return gpu_peaks(device).get(names.GPU_PEAK_ALLOCATED_GIB) or process_peak_gib()
