"""Builds the parts of a run in the documented order.

The order is: memory (allocator, gradient checkpointing), device, optimizer, compilation, data
parallelism. Precision is a context in the step.
"""

import math
import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.config.training import OptimizationsConfig
from clew.errors import ConfigError
from clew.layers.products import products_in
from clew.runs.base import Tracker
from clew.training.checkpointing import Checkpointer, Resumable
from clew.training.distributed import World
from clew.training.loaders import batches_per_epoch, epoch_microbatches
from clew.training.manifest import Manifest
from clew.training.memory import MemoryCleanup, apply_gradient_checkpointing, keep_allocator_pages
from clew.training.optimizer import ParameterAverage, build_optimizer, build_schedule
from clew.training.precision import Precision, apply_tf32, half_precision_type, variant_name
from clew.training.progress import (
    History,
    Progress,
    StepProfiler,
    Throughput,
    Watch,
    count_flops,
    peak_flops_per_second,
)
from clew.training.reports import Reports
from clew.training.seeding import effects_of, seed_everything
from clew.training.sharding import shard_of, sharded_tables
from clew.training.task import B, Task
from clew.training.trainer import Trainer

USES_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


def apply_compile(model: nn.Module, settings: OptimizationsConfig, device: torch.device) -> None:
    """Compile the model's forward in place, so that the keys of its state dict do not change."""
    if not settings.torch_compile:
        return
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise ConfigError(
            "optimizations.torch_compile is true, but torch.compile needs a C++ compiler on the "
            "CPU and none of g++, c++, clang++ is on PATH; install one or set it to false"
        )
    model.compile(mode=settings.torch_compile_mode)
    if device.type == "cuda" and settings.torch_compile_mode in USES_CUDA_GRAPHS:
        # A CUDA graph writes its gradients to the same memory each time, so the gradient of one
        # microbatch would be overwritten before that of the next is added to it.
        for parameter in model.parameters():
            parameter.register_hook(torch.clone)  # type: ignore[no-untyped-call]


def warm_up(task: Task[B], model: nn.Module, precision: Precision, batches: Sequence[B]) -> float:
    """Run forward and backward once for each batch, undo all effects and return the seconds.

    torch compiles at the first call with a shape, not in `compile()`. This warm-up shows
    compilation errors before training and keeps the compilation out of the training time. Buffers,
    generators and gradients are restored, so that a compiled run draws the same dropout masks as
    an eager run.
    """
    started = time.perf_counter()
    undo = effects_of(model)
    try:
        for batch in batches:
            with precision.autocast:
                loss = task.loss(model, batch)
            (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"torch.compile failed on this machine ({type(error).__name__}: {reason}); choose "
            "another optimizations.torch_compile_mode or set torch_compile to false"
        ) from error
    finally:
        undo()
    if precision.device.type == "cuda":
        torch.cuda.synchronize(precision.device)
    return time.perf_counter() - started


def prepare_process(config: RunConfig) -> None:
    """Apply the settings for the whole process: threads, allocator, TF32, determinism."""
    if config.training.num_threads is not None:
        torch.set_num_threads(config.training.num_threads)
    if config.optimizations.keep_allocator_pages:
        keep_allocator_pages()
    apply_tf32(enabled=config.optimizations.use_tf32)
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
    reports: Reports | None = None,
) -> Trainer[Any]:
    model = build_model(config, task, device, world)
    optimizer = build_optimizer(config.optimizer, model)
    schedule = build_schedule(
        config.schedule, total_steps=total_steps(config, task, world), evaluation=config.evaluation
    )
    options, steps = config.optimizations, config.tracking.profile_steps if world.is_main else 0
    half = half_precision_type(options, device)
    precision = Precision(half, device, compiled=options.torch_compile)
    interval = options.memory_cleanup_interval_steps
    average = ParameterAverage(model, config.training.ema_decay)
    history, progress = History(tracker), Progress()
    resumable = Resumable(model, average, optimizer, schedule, precision, world, history, progress)
    return Trainer(
        **vars(resumable),
        config=config,
        task=task,
        cleanup=MemoryCleanup(options.enable_memory_cleanup, interval, device),
        throughput=Throughput(device),
        profiler=StepProfiler(steps, tracker, device),
        checkpointer=Checkpointer(
            folder, origin, resumable, keep_all=keep_all_checkpoints, goes_on_with=goes_on_with
        ),
        watch=watch or Watch(),
        reports=reports or Reports(speaks=False),
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
    peak = peak_flops_per_second(precision, tf32=config.optimizations.use_tf32)
    if config.tracking.log_mfu and batches and peak is not None:
        source = task.train_examples()
        few = source.batch(np.arange(min(len(source), 8)))  # many frames take long to count
        trainer.throughput.flops_per_example = count_flops(task, precision, few)
        trainer.throughput.peak_flops_per_second = peak * trainer.world.size
    return _compile(trainer, batches) if config.optimizations.torch_compile else {}


def _compile(trainer: Trainer[Any], batches: list[Any]) -> dict[str, float]:
    """Compile the model and return the time; fail if compilation fails, unless it is optional."""
    task, model, precision = trainer.task, trainer.model, trainer.precision
    optimizations, trainer.reports.doing = trainer.config.optimizations, "compiling the model"
    try:
        apply_compile(model, optimizations, precision.device)
        return {names.TIME_COMPILE_SECONDS: warm_up(task, model, precision, batches)}
    except ConfigError as error:
        if not optimizations.torch_compile_optional:
            raise
        tracker = trainer.history.tracker
        tracker.warn(f"{error}; training continues without compilation")
        trainer.config = with_settings(trainer.config, {"optimizations.torch_compile": False})
        variant = variant_name(trainer.config.optimizations, precision.name)
        tracker.tags({names.TAG_COMPILE_FAILED: str(error), names.TAG_VARIANT: variant})
        for module in model.modules():
            module._compiled_call_impl = None
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
