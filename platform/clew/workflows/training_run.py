"""Runs of commands in the store: of training with its folders, and of commands that use a model.

The folders are checked and locked before training, and filled during or after it.
"""

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from clew import __version__, names
from clew.config.load import flatten
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.errors import CheckpointError, ConfigError
from clew.files import as_typed, keep, replacing
from clew.runs import hardware
from clew.runs.base import DataSet, Tracker
from clew.runs.mlflow_store import open_tracker
from clew.runs.store import in_use
from clew.runs.tracker import MlflowTracker, write_events
from clew.training.checkpointing import Checkpointer
from clew.training.distributed import World
from clew.training.manifest import Manifest, list_checkpoints, read_manifest
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.training.precision import PRECISION_NAMES, device_name, half_precision_type, variant_name
from clew.training.task import Task
from clew.workflows.model_source import LoadedModel, ModelSource
from clew.workflows.outputs import LOCK_SUFFIX, check_folder, check_new_folder
from clew.workflows.resume import ResumePoint
from clew.workflows.subjects import SUBJECTS

RUN_FILES = "run"
"""Folder, in the working folder, for files that the task writes, such as `vocabulary/`."""


def open_training_run(
    config: RunConfig,
    task: Task[Any],
    *,
    device: torch.device,
    world: World,
    point: ResumePoint | None,
    parent_run_id: str | None,
) -> Tracker:
    """Open the run and record its tags, settings and data; only the main process records."""
    if not world.is_main:
        return Tracker()
    dtype = half_precision_type(config.optimizations, device)
    variant = variant_name(config.optimizations, PRECISION_NAMES[dtype])
    tags = task_tags(task, config.config_hash, device) | task.describe()
    tags[names.TAG_VARIANT] = variant
    if point is not None:
        tags[names.TAG_RESUMED_FROM] = point.run_id
    tracker = open_tracker(
        config.tracking,
        kind=names.KIND_TRAIN,
        run_name=config.tracking.run_name or f"{task.dataset} {config.model.kind} {variant}",
        tags=tags,
        parent_run_id=parent_run_id,
    )
    with ExitStack() as until_open:
        until_open.push(tracker)  # an error from here on ends the run
        if config.tracking.tensorboard:
            write_events(tracker, Path(config.tracking.tensorboard_dir))
        tracker.params({f"{names.PARAMETER_PREFIX}{k}": v for k, v in flatten(config).items()})
        record_data(tracker, config, task, "training")
        until_open.pop_all()
    return tracker


def record_data(tracker: Tracker, config: RunConfig, task: Task[Any], context: str) -> None:
    """Record what data a run reads, of which size; `context` is their purpose, for MLflow."""
    subject, source = SUBJECTS[config.data.kind], config.data.source
    told = subject.describe_data(task), dict(subject.columns)
    tracker.dataset(DataSet(task.dataset, task.data_fingerprint, source, context, *told))


def origin_of(
    config: RunConfig, task: Task[Any], tracker: Tracker, device: torch.device, folder: str
) -> Manifest:
    """Return the manifest from which the manifest of each checkpoint is made."""
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
        commit=hardware.git_commit() or "unknown",
        run_id=tracker.run_id or "",
        folder=folder if folder.isprintable() else "",
    )


def watched_at(config: RunConfig, tracker: Tracker) -> str:
    """Return where a running training can be watched."""
    places = []
    if tracker.run_id is not None:
        places.append(f"clew ui, or MLflow: {in_use()}, run {tracker.run_id}")
    if config.tracking.tensorboard:
        places.append(f"tensorboard --logdir {as_typed(Path(config.tracking.tensorboard_dir))}")
    return "; ".join(places) or "nowhere, because nothing is recorded"


def goes_on_with(config: RunConfig, tracker: Tracker, checkpoint_dir: Path | None) -> str:
    """Return the options that continue a stopped run; empty if no checkpoint is kept."""
    if tracker.run_id is not None and config.tracking.log_checkpoints:
        return f"--resume {tracker.run_id}"
    return f"--resume --checkpoint-dir {as_typed(checkpoint_dir)}" if checkpoint_dir else ""


@contextmanager
def keeping_checkpoints(
    checkpointer: Checkpointer, checkpoint_dir: Path | None, temporary: Path
) -> Iterator[None]:
    """After a failed file operation, keep the folder that alone has the newest checkpoint."""
    try:
        yield
    except OSError as error:
        if (newest := checkpointer.only_here) is not None:
            folder = as_typed(checkpoint_dir or keep(temporary))
            error.add_note(
                f"to continue this run from {newest.name}, which only this folder has, use clew "
                f"train --resume --checkpoint-dir {folder}"
            )
        raise


def check_folders(
    output_dir: Path | None, checkpoint_dir: Path | None, *, resumes: bool = False
) -> None:
    """Refuse folders that a training run cannot use; a resumed run's folders can contain its files.

    An output folder with a finished training is not refused; `free_output_dir` chooses another.
    """
    # `Path.is_dir` raises for a name that is too long.
    goes_on = resumes and output_dir and os.path.isdir(output_dir / names.ARTIFACT_CHECKPOINTS)
    is_taken = output_dir is not None and not resumes and _holds_finished(output_dir)
    check_output = check_folder if goes_on or is_taken else check_new_folder
    check_output("--output-dir", output_dir)
    if not resumes:
        check_folder("--checkpoint-dir", checkpoint_dir)
        if checkpoint_dir and any(checkpoint_dir.glob(f"{names.ARTIFACT_CHECKPOINTS}/*/")):
            raise ConfigError(
                f"--checkpoint-dir {checkpoint_dir}: contains a training run; add --resume to "
                "continue it, or name a new folder: nothing is overwritten"
            )
        check_new_folder("--checkpoint-dir", checkpoint_dir)
    if output_dir and checkpoint_dir and output_dir.resolve() == checkpoint_dir.resolve():
        raise ConfigError(
            f"--output-dir and --checkpoint-dir are both {output_dir}; name two folders, or give "
            "only --checkpoint-dir, which also keeps the run's files"
        )


def free_output_dir(folder: Path | None, tracker: Tracker) -> Path | None:
    """Return the folder for a new training: NAME-2 and so on if NAME contains a finished one."""
    if folder is None or not _holds_finished(folder):
        return folder
    place = os.path.abspath(folder)
    beside = (Path(f"{place}-{number}") for number in itertools.count(2))
    free = next(path for path in beside if not os.path.lexists(path))
    tracker.warn(f"--output-dir {folder} contains a finished run; this one goes into {free}")
    return free


def _holds_finished(folder: Path) -> bool:
    """Whether `copy_outputs` has written to a folder, even if only in part."""
    written = (names.ARTIFACT_CONFIG_YAML, names.ARTIFACT_HISTORY)
    return all(os.path.isfile(folder / name) for name in written)


def check_output_dir(output_dir: Path | None, point: ResumePoint | None) -> None:
    """Refuse an output folder with more than the resumed run's files up to its checkpoint."""
    if output_dir is None or point is None or not _holds_begin(output_dir, point):
        check_new_folder("--output-dir", output_dir)


def _holds_begin(folder: Path, point: ResumePoint) -> bool:
    """Whether the newest checkpoint in a folder is one of those that a resumed run keeps."""
    try:
        kept = list_checkpoints(folder / names.ARTIFACT_CHECKPOINTS)
        newest = read_manifest(kept[-1].path) if kept else None
        own = {(m.run_id, m.step) for m in map(read_manifest, (*point.earlier, point.checkpoint))}
    except CheckpointError:
        return False
    return newest is not None and (newest.run_id, newest.step) in own


def lock_of(folder: Path) -> Path:
    """Return the lock of a folder: a hidden file beside it, as only the run's files are in it.

    So it is the same for commands with different temporary folders.
    """
    place = folder.resolve()
    return place.parent / f".{place.name}{LOCK_SUFFIX}"


def _held_lock(folder: Path) -> FileLock:
    """Lock a folder.

    Where nothing can be locked beside it, as on some network drives or without the permission,
    the lock lies with temporary files.

    Raises:
        Timeout: Another process holds the lock.
    """
    try:
        lock = FileLock(lock_of(folder), timeout=0, mode=0o666, fallback_to_soft=False)
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise
    except OSError as error:
        if not isinstance(error, PermissionError):  # otherwise, the file can be somebody else's
            with suppress(OSError):
                lock_of(folder).unlink()
        place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        name = f"clew-training-{os.getuid()}-{place}.lock"
        lock = FileLock(Path(tempfile.gettempdir()) / name, timeout=0, mode=0o600)
        lock.acquire()
    return lock


@contextmanager
def only_training_in(option: str, folder: Path | None, world: World) -> Iterator[None]:
    """Lock a folder, so that no second training writes into it."""
    if folder is None or not world.is_main:
        yield
        return
    try:
        lock = _held_lock(folder)
    except Timeout:
        raise ConfigError(
            f"{option} {folder}: another process trains there; wait until it ends, or name another "
            "folder"
        ) from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def copy_outputs(folder: Path, output_dir: Path) -> None:
    """Copy a run's files to an output folder, which can already contain its earlier files."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in (names.ARTIFACT_CONFIG_YAML, names.ARTIFACT_CONFIG_JSON, names.ARTIFACT_HISTORY):
        shutil.copy2(folder / name, output_dir / name)
    if (folder / names.ARTIFACT_BEST).is_dir():
        with replacing(output_dir / names.ARTIFACT_BEST) as best:
            shutil.copytree(folder / names.ARTIFACT_BEST, best)
    if (folder / names.ARTIFACT_CHECKPOINTS).is_dir():
        kept = output_dir / names.ARTIFACT_CHECKPOINTS
        shutil.copytree(folder / names.ARTIFACT_CHECKPOINTS, kept, dirs_exist_ok=True)
    shutil.copytree(folder / RUN_FILES, output_dir, dirs_exist_ok=True)


def open_other_run(
    config: RunConfig, kind: str, name: str, tags: Mapping[str, str], run_id: str | None = None
) -> MlflowTracker:
    """Open a run of another kind than training, in the experiment of a configuration."""
    tracking = TrackingConfig(experiment=config.tracking.experiment)
    return open_tracker(tracking, kind=kind, run_name=name, tags=tags, run_id=run_id)


@contextmanager
def linked_run(
    source: ModelSource,
    loaded: LoadedModel,
    run_name: str,
    *,
    kind: str,
    context: str,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a run that is linked to the model's training run.

    `context` is the purpose of the data set in this run, for MLflow.
    """
    own = task_tags(loaded.task, source.manifest.config_hash, loaded.device)
    own[names.TAG_CHECKPOINT_STEP] = str(source.manifest.step)
    if source.run_id is not None:
        own[names.TAG_SOURCE_RUN] = source.run_id
    if source.version is not None:
        own[names.TAG_MODEL_VERSION] = source.version.uri
    with open_other_run(source.config, kind, run_name, own | dict(tags or {})) as tracker:
        record_data(tracker, source.config, loaded.task, context)
        yield tracker


@contextmanager
def trace_run(
    source: ModelSource,
    loaded: LoadedModel,
    run_name: str,
    *,
    kind: str = names.KIND_TRACE,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a linked run for an explanation; when it ends, record the memory peaks.

    The peaks of process and GPU memory are reset here. They include the memory that is already in
    use, such as the loaded models.
    """
    run = linked_run(source, loaded, run_name, kind=kind, context="explanation", tags=tags)
    with run as tracker:
        reset_gpu_peaks(loaded.device)
        hardware.reset_process_peak()
        started_gib = hardware.process_gib()
        yield tracker
        peak = hardware.process_peak_gib()
        process = {names.PROCESS_PEAK_GIB: peak, names.PROCESS_GROWTH_GIB: peak - started_gib}
        tracker.metrics(process | gpu_peaks(loaded.device), source.manifest.step)


def task_tags(task: Task[Any], config_hash: str, device: torch.device) -> dict[str, str]:
    """Return the tags for the task, the code version and the hardware of a run."""
    return {
        names.TAG_TASK: task.kind,
        names.TAG_DATASET: task.dataset,
        names.TAG_DATA_FINGERPRINT: task.data_fingerprint,
        names.TAG_CONFIG_HASH: config_hash,
        names.TAG_DEVICE: device_name(device),
        names.TAG_HARDWARE: hardware.describe_machine().summary,
        names.TAG_VERSION: __version__,
        names.TAG_COMMIT: hardware.git_commit() or "unknown",
    }
