"""Builds the parts of a run in the documented order.

The order is: memory (allocator, gradient checkpointing), device, optimizer, compilation, data
parallelism. Precision is a context in the step.
"""

import logging
import math
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clew import names
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.layers.products import products_in
from clew.runs.base import Tracker
from clew.training.average import ParameterAverage
from clew.training.checkpointing import Checkpointer
from clew.training.compilation import apply_compile, undo_compile, warm_up
from clew.training.distributed import World
from clew.training.flops import count_flops, peak_flops_per_second
from clew.training.history import History
from clew.training.live_bytes import TookTooLong
from clew.training.loaders import batches_per_epoch, epoch_microbatches
from clew.training.manifest import Manifest
from clew.training.memory import (
    MemoryCleanup,
    apply_gradient_checkpointing,
    keep_allocator_pages,
)
from clew.training.optimizer import build_optimizer
from clew.training.precision import Precision, apply_tf32, half_precision_type
from clew.training.progress import Progress
from clew.training.schedule import build_schedule
from clew.training.seeding import seed_everything
from clew.training.sharding.rows import shard_of
from clew.training.sharding.table import sharded_tables
from clew.training.state import Resumable
from clew.training.step_timing import StepProfiler, Throughput
from clew.training.stopping import Watch
from clew.training.task import Task
from clew.training.trainer import Trainer

logger = logging.getLogger(__name__)

TRIAL_SECONDS = 1.0
"""Processor time that a trial step without data may take, because it only informs."""


def prepare_process(config: RunConfig) -> None:
    """Apply the settings for the whole process: threads, allocator, TF32, determinism."""
    if config.training.num_threads is not None:
        torch.set_num_threads(config.training.num_threads)
    if config.optimizations.keep_allocator_pages and not keep_allocator_pages():
        logger.info("this system has no glibc allocator; keep_allocator_pages has no effect")
    apply_tf32(enabled=config.optimizations.use_tf32)
    set_determinism(config)


def set_determinism(config: RunConfig) -> None:
    """Make operations without a deterministic implementation fail if the setting asks for it."""
    enabled = config.training.deterministic
    if config.optimizations.torch_compile:
        torch.use_deterministic_algorithms(enabled)
    else:  # same effect, but the function above imports the compiler, which takes seconds
        torch.set_deterministic_debug_mode("error" if enabled else "default")


def build_model(
    config: RunConfig, task: Task[Any], device: torch.device, world: World
) -> nn.Module:
    """Seed and build the model on its device; it has the same weights in every process."""
    seed_everything(config.training.seed)
    with sharded_tables(world.exchange):
        model = task.build_model()
    apply_gradient_checkpointing(model, enabled=config.optimizations.use_gradient_checkpointing)
    model.to(device)
    world.synchronize_parameters(model)
    seed_everything(config.training.seed, rank=world.rank)
    return model


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters.

    Shared parameters are counted once, and sharded tables are counted with all their rows.
    """
    return sum(
        shard.num_rows * math.prod(parameter.shape[1:])
        if (shard := shard_of(parameter)) is not None
        else parameter.numel()
        for parameter in model.parameters()
    )


def build_trainer(
    config: RunConfig,
    task: Task[Any],
    tracker: Tracker,
    *,
    device: torch.device,
    world: World,
    folder: Path,
    origin: Manifest,
    keep_all_checkpoints: bool = False,
    goes_on_with: str = "",
    watch: Watch | None = None,
) -> Trainer[Any]:
    model = build_model(config, task, device, world)
    optimizer = build_optimizer(config.optimizer, model)
    schedule = build_schedule(
        config.schedule, total_steps=total_steps(config, task, world), evaluation=config.evaluation
    )
    half = half_precision_type(config.optimizations, device)
    precision = Precision(half, device, compiled=config.optimizations.torch_compile)
    history, progress = History(tracker), Progress()
    average = ParameterAverage(model, config.training.ema_decay)
    resumable = Resumable(model, average, optimizer, schedule, precision, world, history, progress)
    return Trainer(
        config=config,
        task=task,
        model=model,
        average=average,
        optimizer=optimizer,
        schedule=schedule,
        precision=precision,
        world=world,
        cleanup=MemoryCleanup(
            config.optimizations.enable_memory_cleanup,
            config.optimizations.memory_cleanup_interval_steps,
            device,
        ),
        throughput=Throughput(device),
        profiler=StepProfiler(
            config.tracking.profile_steps if world.is_main else 0, tracker, device
        ),
        history=history,
        checkpointer=Checkpointer(
            folder, origin, resumable, keep_all=keep_all_checkpoints, goes_on_with=goes_on_with
        ),
        progress=progress,
        watch=watch or Watch(),
    )


def total_steps(config: RunConfig, task: Task[Any], world: World) -> int:
    """Return the number of optimizer steps of the whole run, which some schedules need."""
    training = config.training
    num_examples = len(task.train_examples())
    microbatches = batches_per_epoch(num_examples, training.batch_size, world.size)
    steps = training.num_epochs * -(-microbatches // training.gradient_accumulation)
    return steps if training.max_steps is None else min(steps, training.max_steps)


def measure_before_training(trainer: Trainer[Any]) -> dict[str, float]:
    """Count FLOPs and compile the model before training; return the metrics of the compilation."""
    batches = _batches_of_each_size(trainer)
    config, task, precision = trainer.config, trainer.task, trainer.precision
    trainer.model.train()
    values: dict[str, float] = {}
    peak = peak_flops_per_second(precision, tf32=config.optimizations.use_tf32)
    if config.tracking.log_mfu and batches and peak is not None:
        with suppress(TookTooLong):
            trainer.throughput.flops_per_example = count_flops(
                task, precision, batches[0], seconds=TRIAL_SECONDS
            )
            trainer.throughput.peak_flops_per_second = peak * trainer.world.size
    if config.optimizations.torch_compile:
        values |= _compile(trainer, batches)
    return values


def _compile(trainer: Trainer[Any], batches: list[Any]) -> dict[str, float]:
    """Compile the model and return the time; fail if compilation fails, unless it is optional."""
    task, model, precision = trainer.task, trainer.model, trainer.precision
    optimizations = trainer.config.optimizations
    try:
        apply_compile(model, optimizations, precision.device)
        return {names.TIME_COMPILE_SECONDS: warm_up(task, model, precision, batches)}
    except ConfigError as error:
        if not optimizations.torch_compile_optional:
            raise
        logger.warning("%s; training continues without compilation", error)
        trainer.history.tracker.tags({names.TAG_COMPILE_FAILED: str(error)})
        undo_compile(model)
        precision.products = products_in(precision.dtype, precision.device)
        return {}


def _batches_of_each_size(trainer: Trainer[Any]) -> list[Any]:
    """Return one microbatch of each size in an epoch; the last one can have another size."""
    source, settings = trainer.task.train_examples(), trainer.settings
    plan = epoch_microbatches(
        len(source), settings, 0, rank=trainer.world.rank, world_size=trainer.world.size
    )
    by_size: dict[int, np.ndarray] = {}
    for indices in (next(plan), *deque(plan, maxlen=1)):
        by_size.setdefault(len(indices), indices)
    by_size.pop(0, None)
    return [source.batch(indices).to(trainer.precision.device) for indices in by_size.values()]
