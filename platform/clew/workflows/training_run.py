"""Opens the tracked run of a training, and says in it what is trained, on what, with what."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from clew import __version__, names
from clew.config.load import flatten
from clew.config.schema import RunConfig
from clew.runs.base import Tracker
from clew.runs.hardware import describe_machine, git_commit
from clew.runs.mlflow_store import open_tracker
from clew.runs.tensorboard import TensorBoardTracker
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.precision import PRECISION_NAMES, device_name, half_precision_type
from clew.training.task import Task
from clew.workflows.resume import ResumePoint


def open_training_run(
    config: RunConfig,
    task: Task[Any],
    *,
    device: torch.device,
    world: World,
    point: ResumePoint | None,
    parent_run_id: str | None,
) -> Tracker:
    """Open the run and say what it is; processes other than the main one record nothing."""
    if not world.is_main:
        return Tracker()
    dtype = half_precision_type(config.optimizations, device)
    variant = variant_name(config, PRECISION_NAMES[dtype])
    tags = {
        names.TAG_TASK: task.kind,
        names.TAG_DATASET: task.dataset,
        names.TAG_DATA_FINGERPRINT: task.data_fingerprint,
        names.TAG_CONFIG_HASH: config.config_hash,
        names.TAG_VARIANT: variant,
        names.TAG_DEVICE: device_name(device),
        names.TAG_HARDWARE: describe_machine().summary,
        names.TAG_VERSION: __version__,
        names.TAG_COMMIT: git_commit() or "unknown",
    } | task.describe()
    if point is not None:
        tags[names.TAG_RESUMED_FROM] = point.run_id
    tracker: Tracker = open_tracker(
        config.tracking,
        kind=names.KIND_TRAIN,
        run_name=config.tracking.run_name or f"{task.dataset} {variant}",
        tags=tags,
        parent_run_id=parent_run_id,
    )
    with ExitStack() as until_open:
        until_open.push(tracker)  # an error from here on ends the run
        if config.tracking.tensorboard:
            tracker = TensorBoardTracker(tracker, Path(config.tracking.tensorboard_dir))
        tracker.params({f"{names.PARAMETER_PREFIX}{k}": v for k, v in flatten(config).items()})
        tracker.dataset(
            name=task.dataset,
            fingerprint=task.data_fingerprint,
            source=config.data.source,
            context="training",
        )
        until_open.pop_all()
    return tracker


def origin_of(
    config: RunConfig, task: Task[Any], tracker: Tracker, device: torch.device
) -> Manifest:
    """Return what every checkpoint of the run says of where it is from."""
    return Manifest(
        step=0,
        epoch=0,
        learning_rate_weight=0.0,
        task=task.kind,
        config=config.model_dump(mode="json"),
        config_hash=config.config_hash,
        data_fingerprint=task.data_fingerprint,
        optimizer=config.optimizer.kind,
        device=device_name(device),
        clew_version=__version__,
        commit=git_commit() or "unknown",
        run_id=tracker.run_id or "",
    )


def variant_name(config: RunConfig, precision: str) -> str:
    """Return the run's variant: precision, then what differs from the defaults."""
    optimizations = config.optimizations
    parts = [precision]
    parts += ["+ckpt"] if optimizations.use_gradient_checkpointing else []
    parts += ["+compile"] if optimizations.torch_compile else []
    parts += [] if optimizations.enable_memory_cleanup else ["-cleanup"]
    return "".join(parts)
