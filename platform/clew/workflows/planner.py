"""Predicts the memory of a configuration and of variants of it, and searches among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.runs.hardware import GIB, available_gib, process_gib
from clew.training.memory_plan import StepMemory, predict_step
from clew.training.task import Task
from clew.workflows.tasks import build_task

AS_CONFIGURED = "as configured"
Settings = Mapping[str, Any]
SEARCHED_TIMES = 32
"""The largest microbatch is looked for up to so many times the configured one."""
_NOT_OF_THE_TASK = ("training.", "optimizations.", "optimizer.")


@dataclass(frozen=True)
class Variant:
    """A configuration with some settings changed, and the memory that it would take."""

    name: str
    settings: Settings
    """What is changed, `section.key` to value."""
    memory: StepMemory

    def shown_settings(self) -> str:
        """Return the settings as people type them."""
        return " ".join(f"{key}={str(value).lower()}" for key, value in self.settings.items())


@dataclass
class Planner:
    """Predicts the memory of a configuration and of its variants."""

    config: RunConfig
    device: torch.device
    world_size: int = 1
    known_task: Task[Any] | None = None
    """The configuration's task, where it is built already."""
    _known: dict[str, StepMemory] = field(default_factory=dict)

    @cached_property
    def task(self) -> Task[Any]:
        """The configuration's task."""
        return self.known_task or build_task(self.config)

    def predict(self, settings: Settings | None = None) -> StepMemory:
        """Predict the memory with some settings changed.

        Raises:
            ConfigError: the settings do not fit the configuration.
        """
        changed = with_settings(self.config, settings or {})
        if changed.config_hash not in self._known:
            same = all(key.startswith(_NOT_OF_THE_TASK) for key in settings or {})
            task = self.task if same else build_task(changed)
            memory = predict_step(changed, task, self.device, world_size=self.world_size)
            # What planning itself leaves in the process is no part of a training.
            first = next(iter(self._known.values()), memory)
            self._known[changed.config_hash] = replace(memory, process=first.process)
        return self._known[changed.config_hash]

    def variants(self) -> list[Variant]:
        """Return the configuration as it stands, and each optimization switched."""
        found = [Variant(AS_CONFIGURED, {}, self.predict())]
        for name, settings in self._switches().items():
            try:
                found.append(Variant(name, settings, self.predict(settings)))
            except ConfigError:
                continue  # this model has nothing of the kind
        return found

    def _switches(self) -> dict[str, Settings]:
        """Return each optimization's opposite, and half the microbatch."""
        switches: dict[str, Settings] = {}
        named = {
            "use_mixed_precision": "mixed precision",
            "use_gradient_checkpointing": "checkpointing",
            "keep_allocator_pages": "kept allocator pages",
        }
        if self.device.type != "cpu":
            del named["keep_allocator_pages"]
        for key, name in named.items():
            on = getattr(self.config.optimizations, key)
            switches[f"{'without' if on else 'with'} {name}"] = {f"optimizations.{key}": not on}
        training = self.config.training
        if training.batch_size % 2 == 0:
            switches["half the microbatch"] = split_batch(self.config, training.batch_size // 2)
        return switches

    def most_searched(self) -> int:
        """Return the largest microbatch that is looked at."""
        return min(
            len(self.task.train_examples()), SEARCHED_TIMES * self.config.training.batch_size
        )

    def largest_batch(self, limit_gib: float, settings: Settings | None = None) -> int:
        """Return the largest microbatch whose prediction stays within a limit; 0 if none does.

        Looked for up to all examples, and up to `SEARCHED_TIMES` the configured size.
        """
        least, most = smallest_batch(self.config), self.most_searched()

        def total(batch_size: int) -> float:
            changed = {**(settings or {}), "training.batch_size": batch_size}
            return self.predict(changed).total_gib

        small, large = least, min(max(self.config.training.batch_size, 2 * least), most)
        slope = (total(large) - total(small)) / max(1, large - small)
        guess = large + (limit_gib - total(large)) / max(slope, 1e-9)
        return largest_that(
            lambda n: total(n) <= limit_gib, least=least, most=most, guess=int(min(guess, most))
        )


def limit_gib(device: torch.device) -> float:
    """Return what a training process may take: on a CPU, what it has already included."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0]) / GIB
    return available_gib() + process_gib()


def largest_that(fits: Callable[[int], bool], *, least: int, most: int, guess: int) -> int:
    """Return the largest number up to `most` that fits, to a sixteenth; 0 if `least` does not.

    Args:
        fits: True up to some number, false above it; dear to ask.
        least: Smallest number of interest.
        most: Largest number of interest.
        guess: Where to begin.
    """
    low, high = min(max(guess, least), most), most + 1
    while not fits(low):
        if low == least:
            return 0
        low, high = max(low // 2, least), low
    step = max(1, low // 8)
    while low + step < high and fits(low + step):
        low, step = low + step, 2 * step
    high = min(high, low + step)
    if high > most and fits(most):
        return most
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest_batch(config: RunConfig) -> int:
    """Return the smallest microbatch: batch normalisation needs two examples."""
    return 2 if config.model.kind == "conve" else 1


def split_batch(config: RunConfig, batch_size: int) -> dict[str, Any]:
    """Return the settings of smaller microbatches with the same examples in a step."""
    together = config.training.batch_size * config.training.gradient_accumulation
    return {
        "training.batch_size": batch_size,
        "training.gradient_accumulation": -(-together // batch_size),
    }


def with_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """Return a configuration with some settings changed, checked as a whole."""
    if not settings:
        return config
    return from_mapping(config.model_dump(mode="json"), settings, source="plan")
