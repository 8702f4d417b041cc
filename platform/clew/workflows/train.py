"""Train: a configuration in, a finished and evaluated run in the tracking store out."""

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clew import __version__, names
from clew.checkpoints import Manifest, load_model
from clew.config.load import flatten, to_yaml
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.tasks.base import Task
from clew.tracking.base import Tracker
from clew.tracking.hardware import (
    git_commit,
    hardware_summary,
    reset_process_peak,
)
from clew.tracking.mlflow_store import open_tracker
from clew.tracking.tensorboard import TensorBoardTracker, require_tensorboard
from clew.training.distributed import World, join_world, leave_world
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.training.precision import half_precision_type, resolve_device
from clew.training.setup import build_trainer, measure_before_training, prepare_process
from clew.training.trainer import Trainer
from clew.workflows.auto_batch import resolve_batch_size
from clew.workflows.memory_guard import MemoryBefore, explaining_lack_of_memory
from clew.workflows.outputs import check_new_folder
from clew.workflows.planner import Planner
from clew.workflows.resume import ResumePoint, find_resume_point
from clew.workflows.tasks import build_task

logger = logging.getLogger(__name__)

RUN_FILES = "run"
"""Part of the working folder with what the task writes for readers, for example `vocabulary/`."""


@dataclass(frozen=True)
class TrainResult:
    """What a finished training run has to show."""

    run_id: str | None
    variant: str
    metrics: dict[str, float] = field(default_factory=dict)

    def table(self) -> str:
        """Return the metrics, one a line."""
        shown = [f"run {self.run_id or '(not recorded)'}  {self.variant}"]
        shown += [f"  {key:36} {value:.6g}" for key, value in sorted(self.metrics.items())]
        return "\n".join(shown)


def train(
    config: RunConfig,
    *,
    output_dir: Path | None = None,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> TrainResult:
    """Train, evaluate and record one run, as part of another if that is given.

    Raises:
        UsageError: configuration, data or tracking store cannot be used; nothing is left running.
        ProtectedStop: stopped to protect the result.
        Interrupted: stopped by the person, with a checkpoint.
    """
    check_new_folder("--output-dir", output_dir)
    return _train(config, None, output_dir, parent_run_id, tags or {})


def resume(
    run_id: str, overrides: Mapping[str, Any], *, output_dir: Path | None = None
) -> TrainResult:
    """Go on from a run's newest good checkpoint, in a new run that holds the earlier ones too."""
    check_new_folder("--output-dir", output_dir)
    with tempfile.TemporaryDirectory(prefix="clew-resume-") as folder:
        point = find_resume_point(run_id, overrides, Path(folder))
        return _train(point.config, point, output_dir, None, {})


def _train(
    config: RunConfig,
    point: ResumePoint | None,
    output_dir: Path | None,
    parent_run_id: str | None,
    tags: Mapping[str, str],
) -> TrainResult:
    world = join_world("cuda" if _wants_gpu(config) else "cpu")
    try:
        device = resolve_device(config.training.device, world.local_rank)
        prepare_process(config)
        config = resolve_batch_size(config, device, world)
        task = build_task(config)
        _check_validation(config, task)
        if point is not None:
            point.check_data(task.data_fingerprint)
        tracker = _open_tracker(
            config, task, device=device, world=world, point=point, parent_run_id=parent_run_id
        )
        tracker.tags(tags)
        with (
            tracker,
            explaining_lack_of_memory(config, device),
            tempfile.TemporaryDirectory(prefix="clew-") as folder,
        ):
            planner = Planner(config, device, world.size, task)
            memory = MemoryBefore.look(planner, predict=world.is_main)
            trainer = build_trainer(
                config,
                task,
                tracker,
                device=device,
                world=world,
                folder=Path(folder),
                origin=_origin(config, task, tracker, device),
            )
            return _run(trainer, config, point, output_dir, memory)
    finally:
        leave_world()


def _check_validation(config: RunConfig, task: Task[Any]) -> None:
    """Refuse, before anything trains, data that leave nothing to validate with."""
    if config.evaluation.enabled and not task.has_examples("valid"):
        raise ConfigError(
            f"{task.dataset}: no validation examples, but evaluation.enabled is true; give "
            "data.valid or a data.valid_fraction above 0, or set evaluation.enabled=false"
        )


def _run(
    trainer: Trainer[Any],
    config: RunConfig,
    point: ResumePoint | None,
    output_dir: Path | None,
    memory: MemoryBefore,
) -> TrainResult:
    """Train and evaluate with everything in place; write what belongs to the whole run."""
    tracker, folder = trainer.history.tracker, trainer.checkpointer.folder
    _write_run_files(trainer, config, folder)
    before = memory.predicted | measure_before_training(trainer, config)
    if point is not None:
        _take_up(trainer, point)
    reset_gpu_peaks(trainer.precision.device)
    reset_process_peak()
    trainer.history.start()
    trainer.record(before)
    progress = trainer.train()
    metrics = gpu_peaks(trainer.precision.device) | memory.process_peaks()
    metrics |= {
        names.TIME_TOTAL_SECONDS: trainer.history.elapsed_seconds,
        names.TRAIN_SKIPPED_STEPS: float(progress.skipped_steps),
    }
    metrics |= _test(trainer, config)
    trainer.record(metrics)
    if progress.best_step >= 0:
        tracker.tags({names.TAG_BEST_STEP: str(progress.best_step)})
    if trainer.world.is_main:
        trainer.history.write(folder / names.ARTIFACT_HISTORY)
        tracker.artifact(folder / names.ARTIFACT_HISTORY)
        if output_dir is not None:
            _copy_outputs(folder, output_dir)
    latest = {entry.key: entry.value for entry in trainer.history.entries}
    return TrainResult(tracker.run_id, variant_name(config, trainer.precision.name), latest)


def _test(trainer: Trainer[Any], config: RunConfig) -> dict[str, float]:
    """Evaluate the best checkpoint on the test split, on the main process."""
    wanted = config.evaluation.enabled and config.evaluation.test_after_training
    if not wanted or not trainer.world.is_main:
        return {}
    if trainer.checkpointer.best.is_dir():
        load_model(trainer.checkpointer.best, trainer.model)
    trainer.model.eval()
    with torch.no_grad():
        metrics = trainer.task.metrics(trainer.model, "test", trainer.precision.device)
    report = trainer.checkpointer.folder / names.ARTIFACT_EVALUATION
    trainer.task.write_report("test", report)
    if report.is_dir():
        trainer.history.tracker.artifact(report)
    return metrics


def _take_up(trainer: Trainer[Any], point: ResumePoint) -> None:
    """Restore the state of the resumed run and store its earlier checkpoints with this one."""
    trainer.checkpointer.resumable.restore(point.checkpoint)
    if not trainer.world.is_main:
        return
    trainer.checkpointer.adopt([*point.earlier, point.checkpoint], point.best)


def _write_run_files(trainer: Trainer[Any], config: RunConfig, folder: Path) -> None:
    """Write configuration and names, so that the run can be repeated and read without its data."""
    if not trainer.world.is_main:
        return
    tracker = trainer.history.tracker
    (folder / names.ARTIFACT_CONFIG_YAML).write_text(to_yaml(config), encoding="utf-8")
    content = config.model_dump(mode="json")
    (folder / names.ARTIFACT_CONFIG_JSON).write_text(
        json.dumps(content, indent=2), encoding="utf-8"
    )
    extra = folder / RUN_FILES
    extra.mkdir()
    trainer.task.write_artifacts(extra)
    for path in (folder / names.ARTIFACT_CONFIG_YAML, folder / names.ARTIFACT_CONFIG_JSON):
        tracker.artifact(path)
    for path in sorted(extra.iterdir()):
        tracker.artifact(path)


def variant_name(config: RunConfig, precision: str) -> str:
    """Return the run's variant: precision, then what differs from the defaults."""
    optimizations = config.optimizations
    parts = [precision]
    parts += ["+ckpt"] if optimizations.use_gradient_checkpointing else []
    parts += ["+compile"] if optimizations.torch_compile else []
    parts += [] if optimizations.enable_memory_cleanup else ["-cleanup"]
    return "".join(parts)


def _open_tracker(
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
    if config.tracking.tensorboard:
        require_tensorboard()
    variant = variant_name(config, _precision_name(config, device))
    tags = {
        names.TAG_TASK: task.kind,
        names.TAG_DATASET: task.dataset,
        names.TAG_DATA_FINGERPRINT: task.data_fingerprint,
        names.TAG_CONFIG_HASH: config.config_hash,
        names.TAG_VARIANT: variant,
        names.TAG_DEVICE: _device_name(device),
        names.TAG_HARDWARE: hardware_summary(),
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
    if config.tracking.tensorboard:
        tracker = TensorBoardTracker(tracker, Path(config.tracking.tensorboard_dir))
    tracker.params({f"{names.PARAMETER_PREFIX}{k}": v for k, v in flatten(config).items()})
    tracker.dataset(
        name=task.dataset,
        fingerprint=task.data_fingerprint,
        source=config.data.source,
        context="training",
    )
    return tracker


def _origin(config: RunConfig, task: Task[Any], tracker: Tracker, device: torch.device) -> Manifest:
    return Manifest(
        step=0,
        epoch=0,
        learning_rate_weight=0.0,
        task=task.kind,
        config=config.model_dump(mode="json"),
        config_hash=config.config_hash,
        data_fingerprint=task.data_fingerprint,
        optimizer=config.optimizer.kind,
        device=_device_name(device),
        clew_version=__version__,
        commit=git_commit() or "unknown",
        run_id=tracker.run_id or "",
    )


def _wants_gpu(config: RunConfig) -> bool:
    return config.training.device != "cpu" and torch.cuda.is_available()


def _precision_name(config: RunConfig, device: torch.device) -> str:
    dtype = half_precision_type(config.optimizations, device)
    return {None: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _copy_outputs(folder: Path, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in (names.ARTIFACT_CONFIG_YAML, names.ARTIFACT_CONFIG_JSON, names.ARTIFACT_HISTORY):
        shutil.copy2(folder / name, output_dir / name)
    for name in (names.ARTIFACT_BEST, names.ARTIFACT_CHECKPOINTS):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, output_dir / name)
    shutil.copytree(folder / RUN_FILES, output_dir, dirs_exist_ok=True)
