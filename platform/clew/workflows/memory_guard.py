"""Memory around a training run: said before it, logged with it, explained when it runs out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch

from clew import names
from clew.config.schema import RunConfig
from clew.errors import ConfigError, OutOfMemoryError
from clew.runs.hardware import GIB, process_gib, process_peak_gib
from clew.training.memory import gpu_peaks
from clew.training.memory_plan import StepMemory
from clew.workflows.planner import Planner, Settings, Variant, limit_gib, split_batch

logger = logging.getLogger(__name__)

NUM_CHANGES = 3
SHOWN_PARTS = 4


@dataclass(frozen=True)
class MemoryBefore:
    """What was known of memory before the trainer was built."""

    predicted: dict[str, float]
    """The metric of the prediction; empty where there is none."""
    process_gib: float
    """Size of the process."""

    @classmethod
    def look(cls, planner: Planner, *, predict: bool) -> Self:
        """Predict what is to come, if this process is the one to say so, and look at what is."""
        return cls(predicted_memory(planner) if predict else {}, process_gib())

    def process_peaks(self) -> dict[str, float]:
        """Return the process's peak, and how much of it training brought."""
        peak = process_peak_gib()
        return {names.PROCESS_PEAK_GIB: peak, names.PROCESS_GROWTH_GIB: peak - self.process_gib}


def predicted_memory(planner: Planner) -> dict[str, float]:
    """Say what training will take in memory, warn if it cannot fit, and return the metric.

    A prediction that fails is reported and stops nothing: training may well succeed.
    """
    try:
        memory, limit = planner.predict(), limit_gib(planner.device)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        logger.warning("memory was not predicted (%s: %s)", type(error).__name__, reason)
        return {}
    logger.info("memory on %s: %s", planner.device.type, in_words(memory))
    if memory.total_gib > limit:
        logger.warning(
            "%.2f GiB will be needed on %s and there are %.2f GiB: training will run out of memory",
            memory.total_gib,
            planner.device.type,
            limit,
        )
    return {names.PREDICTED_GIB: memory.total_gib}


def in_words(memory: StepMemory) -> str:
    """Return the predicted peak and its largest parts in one line."""
    parts = sorted(memory.as_gib().items(), key=lambda part: -part[1])[:SHOWN_PARTS]
    shown = ", ".join(f"{name} {gib:.2f}" for name, gib in parts)
    return f"{memory.total_gib:.2f} GiB predicted at the peak ({shown})"


@contextmanager
def explaining_lack_of_memory(config: RunConfig, device: torch.device) -> Iterator[None]:
    """Turn a lack of memory into one line: budget, measured peak, and what would fit."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = error.with_traceback(None)  # the tensors of its frames die here
    else:
        return
    peak = gpu_peaks(device).get(names.GPU_PEAK_ALLOCATED_GIB, process_peak_gib())
    raise OutOfMemoryError(describe_lack(Planner(config, device), peak)) from reason


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def describe_lack(planner: Planner, peak_gib: float) -> str:
    """Return the budget beside the measured peak, and the changes that would fit."""
    limit = _limit_after_failure(planner, peak_gib)
    changes = changes_that_fit(planner, limit)
    shown = "; ".join(
        f"{change.shown_settings()} ({change.memory.total_gib:.2f} GiB)" for change in changes
    )
    return (
        f"out of memory on {planner.device.type} at {peak_gib:.2f} GiB: "
        f"{in_words(planner.predict())}; "
        + (f"what would fit into {limit:.2f} GiB: {shown}" if shown else "nothing smaller fits")
    )


def _limit_after_failure(planner: Planner, peak_gib: float) -> float:
    """Return what there is: never more than the prediction that failed."""
    if planner.device.type == "cuda":
        device = torch.cuda.get_device_properties(planner.device)
        limit = float(device.total_memory) / GIB
    else:
        limit = limit_gib(planner.device)
    return min(limit, max(peak_gib, planner.predict().total_gib) * 0.99)


def changes_that_fit(planner: Planner, limit: float) -> list[Variant]:
    """Return up to three changes that stay within a limit, those that cost least first."""
    optimizations = planner.config.optimizations
    mixed: Settings = {"optimizations.use_mixed_precision": True}
    recomputed: Settings = {"optimizations.use_gradient_checkpointing": True}
    together: list[Settings] = []
    if not optimizations.use_mixed_precision:
        together.append(mixed)
    together.append({})
    if not optimizations.use_gradient_checkpointing:
        together.append(recomputed)
        together.append({**mixed, **recomputed})
    found: list[Variant] = []
    for settings in together:
        change = _smallest_change(planner, settings, limit)
        if change is not None:
            found.append(change)
    return found[:NUM_CHANGES]


def _smallest_change(planner: Planner, settings: Settings, limit: float) -> Variant | None:
    """Return settings that fit, with smaller microbatches if they do not by themselves."""
    batch_size = planner.config.training.batch_size
    if not settings:
        batch_size //= 2
    while batch_size >= 2:
        smaller = batch_size < planner.config.training.batch_size
        changed = {**settings, **(split_batch(planner.config, batch_size) if smaller else {})}
        try:
            memory = planner.predict(changed)
        except ConfigError:
            return None  # this model has nothing that could be recomputed
        if memory.total_gib <= limit:
            return Variant("change", changed, memory)
        batch_size //= 2
    return None
