"""Chooses batch sizes that fit, predicts memory, and explains out-of-memory errors."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.config.training import AUTO_BATCH_SIZE
from clew.errors import ConfigError, OutOfMemoryError
from clew.runs.hardware import process_peak_gib
from clew.training.distributed import World
from clew.training.hardware import free_gib
from clew.training.memory import gpu_peaks
from clew.training.memory_plan import OVERFLOW, MemoryPlanner, StepMemory
from clew.training.setup import total_steps
from clew.training.task import Task
from clew.workflows.plan import Settings, Variant, largest_divisor, split
from clew.workflows.subjects import build_task

logger = logging.getLogger(__name__)

FEW_STEPS = 2_000
"""Fewer steps are taken in less time than their memory is predicted; `clew plan` predicts it."""
NUM_CHANGES = 3
SHOWN_PARTS = 4
USED_SHARE = 0.85
"""Share of the free memory that `auto` uses, because predictions can be up to 15 % wrong."""


def resolve_batch_size(config: RunConfig, device: torch.device, world: World) -> RunConfig:
    """Return the configuration with numbers in place of `auto`, the same in every process."""
    if config.training.batch_size != AUTO_BATCH_SIZE:
        return config
    chosen = 0
    if world.is_main:
        planner = MemoryPlanner(build_task(config), device, world.size)
        num_examples = -(-len(planner.task.train_examples()) // world.size)
        limit = USED_SHARE * free_gib(device)
        chosen = largest_divisor(planner, config, limit, num_examples=num_examples)
    chosen = int(world.broadcast({"batch_size": float(chosen)}, device)["batch_size"])
    config = with_settings(config, split(config, chosen))
    logger.info("microbatches of %d, %d in a step", chosen, config.training.gradient_accumulation)
    return config


def predicted_memory(
    config: RunConfig, task: Task[Any], device: torch.device, world: World
) -> dict[str, float]:
    """Log the predicted memory of a long training, warn if it does not fit, and return the metric.

    If the prediction fails, a warning is logged and training continues, because it can still
    succeed.
    """
    # With a sharded table, each process needs less than the planner would predict.
    is_short = total_steps(config, task, world) < FEW_STEPS
    if is_short or not world.is_main or world.exchange is not None:
        return {}
    planner, kind = MemoryPlanner(task, device, world.size), device.type
    try:
        memory, limit = planner.predict(config), free_gib(planner.device)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        logger.warning("memory was not predicted (%s: %s)", type(error).__name__, reason)
        return {}
    logger.info("memory on %s: %s", kind, in_words(memory))
    if memory.total_gib > limit:
        said = "%.2f GiB will be needed on %s, %.2f GiB are free: training will run out of memory"
        logger.warning(said, memory.total_gib, kind, limit)
    return {names.PREDICTED_GIB: memory.total_gib}


def in_words(memory: StepMemory) -> str:
    """Return the predicted peak and its largest parts in one line."""
    parts = sorted(memory.parts_gib.items(), key=lambda part: -part[1])[:SHOWN_PARTS]
    shown = ", ".join(f"{name} {gib:.2f}" for name, gib in parts)
    return f"{memory.total_gib:.2f} GiB predicted at the peak ({shown})"


@contextmanager
def explaining_lack_of_memory(
    config: RunConfig, task: Task[Any], device: torch.device
) -> Iterator[None]:
    """Turn an out-of-memory error into one line: budget, measured peak, and what would fit."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        is_lack = isinstance(error, torch.OutOfMemoryError | MemoryError)
        words = "DefaultCPUAllocator: can't allocate memory", OVERFLOW
        if not is_lack and not any(text in str(error) for text in words):
            raise
        reason = error.with_traceback(None)  # frees the tensors in the frames of the traceback
    else:
        return
    peak = gpu_peaks(device).get(names.GPU_PEAK_ALLOCATED_GIB, process_peak_gib())
    raise OutOfMemoryError(describe_lack(MemoryPlanner(task, device), config, peak)) from reason


def describe_lack(planner: MemoryPlanner, config: RunConfig, peak_gib: float) -> str:
    """Return the budget and the measured peak, and the changes that would fit."""
    kind, memory = planner.device.type, planner.predict(config)
    # The changes must need less than what has just failed.
    limit = min(free_gib(planner.device), max(peak_gib, memory.total_gib) * 0.99)
    shown = "; ".join(
        " ".join(f"{key}={str(value).lower()}" for key, value in change.settings.items())
        + f" ({change.memory.total_gib:.2f} GiB)"
        for change in changes_that_fit(planner, config, limit)
    )
    fitting = f"what would fit into {limit:.2f} GiB: {shown}" if shown else "nothing smaller fits"
    return (
        f"out of memory on {kind} at {peak_gib:.2f} GiB: {in_words(memory)}; {fitting}; "
        "docs/wrong.md has more ways"
    )


def changes_that_fit(planner: MemoryPlanner, config: RunConfig, limit: float) -> list[Variant]:
    """Return up to three changes that fit into a limit, in the order of their costs."""
    mixed: Settings = {"optimizations.use_mixed_precision": True}
    recomputed: Settings = {"optimizations.use_gradient_checkpointing": True}
    batch_size, found = config.training.batch_size, list[Variant]()
    for settings in (mixed, {}, recomputed, {**mixed, **recomputed}):
        try:
            changed = with_settings(config, settings)
            if settings and changed == config:
                continue
            size = largest_divisor(planner, changed, limit, most=batch_size - (not settings))
        except (ConfigError, OutOfMemoryError):
            continue  # the model has nothing to recompute, or still does not fit
        smaller = split(config, size) if size < batch_size else {}
        changed = with_settings(changed, smaller)
        found.append(Variant("change", {**settings, **smaller}, planner.predict(changed)))
    return found[:NUM_CHANGES]
