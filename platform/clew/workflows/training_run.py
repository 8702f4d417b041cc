"""The run of a training: what the tracking store says of it, and the folders that it fills.

They are checked before it, held by one training, and copied after it.
"""

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from clew import __version__, names
from clew.config.load import flatten
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError
from clew.files import replacing
from clew.folders import as_typed
from clew.runs.base import Tracker
from clew.runs.hardware import git_commit
from clew.runs.mlflow_store import open_tracker
from clew.runs.tensorboard import TensorBoardTracker
from clew.training.distributed import World
from clew.training.manifest import Manifest, list_checkpoints, read_manifest
from clew.training.precision import PRECISION_NAMES, device_name, half_precision_type
from clew.training.task import Task
from clew.workflows.linked_run import task_tags
from clew.workflows.outputs import check_folder, check_new_folder
from clew.workflows.resume import ResumePoint

RUN_FILES = "run"
"""Part of the working folder with what the task writes for readers, for example `vocabulary/`."""


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
    tags = task_tags(task, config.config_hash, device) | task.describe()
    tags[names.TAG_VARIANT] = variant
    if point is not None:
        tags[names.TAG_RESUMED_FROM] = point.run_id
    tracker: Tracker = open_tracker(
        config.tracking,
        kind=names.KIND_TRAIN,
        run_name=config.tracking.run_name or f"{task.dataset} {config.model.kind} {variant}",
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
    config: RunConfig, task: Task[Any], tracker: Tracker, device: torch.device, folder: str
) -> Manifest:
    """Return what every checkpoint of the run says of where it is from.

    Args:
        config: What is trained.
        task: What the model learns.
        tracker: Records the run.
        device: Where it is trained.
        folder: Where relative paths of the configuration start.
    """
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
        folder=folder if folder.isprintable() else "",
    )


def goes_on_with(config: RunConfig, tracker: Tracker, checkpoint_dir: Path | None) -> str:
    """Return the options with which a stopped run goes on; empty where none of it is kept."""
    if tracker.run_id is not None and config.tracking.log_checkpoints:
        return f"--resume {tracker.run_id}"
    if checkpoint_dir is None:
        return ""
    return f"--resume --checkpoint-dir {as_typed(checkpoint_dir)}"


def variant_name(config: RunConfig, precision: str) -> str:
    """Return the run's variant: precision, then what differs from the defaults."""
    optimizations = config.optimizations
    parts = [precision]
    parts += ["+ckpt"] if optimizations.use_gradient_checkpointing else []
    parts += ["+compile"] if optimizations.torch_compile else []
    parts += [] if optimizations.enable_memory_cleanup else ["-cleanup"]
    return "".join(parts)


def check_folders(
    output_dir: Path | None, checkpoint_dir: Path | None, *, resumes: bool = False
) -> None:
    """Refuse folders that a training cannot fill; one that resumes may have its own files there.

    An output folder with a finished training is not refused: `free_output_dir` names another.

    Raises:
        ConfigError: one of them holds something or cannot be written, or both are the same.
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
                f"--checkpoint-dir {checkpoint_dir}: holds a training; add --resume to continue "
                "it, or name a new folder: nothing is overwritten"
            )
        check_new_folder("--checkpoint-dir", checkpoint_dir)
    if output_dir and checkpoint_dir and output_dir.resolve() == checkpoint_dir.resolve():
        raise ConfigError(
            f"--output-dir and --checkpoint-dir are both {output_dir}; name two folders, or give "
            "--checkpoint-dir alone, which holds the run's files too"
        )


def free_output_dir(folder: Path | None, tracker: Tracker) -> Path | None:
    """Return the folder for a new training: NAME-2 and so on, where NAME holds a finished one.

    Args:
        folder: What the person gave.
        tracker: Records where the files go instead.
    """
    if folder is None or not _holds_finished(folder):
        return folder
    place = os.path.abspath(folder)
    beside = (Path(f"{place}-{number}") for number in itertools.count(2))
    free = next(path for path in beside if not os.path.lexists(path))
    tracker.warn(f"--output-dir {folder} holds a finished training; this one goes into {free}")
    return free


def _holds_finished(folder: Path) -> bool:
    """Whether `copy_outputs` has filled a folder, or a part of it."""
    written = (names.ARTIFACT_CONFIG_YAML, names.ARTIFACT_HISTORY)
    return all(os.path.isfile(folder / name) for name in written)


def check_output_dir(output_dir: Path | None, point: ResumePoint | None) -> None:
    """Refuse a folder with files other than those of the run that goes on, up to where it goes on.

    Raises:
        ConfigError: it holds something else, or cannot be written.
    """
    if output_dir is None or point is None or not _holds_begin(output_dir, point):
        check_new_folder("--output-dir", output_dir)


def _holds_begin(folder: Path, point: ResumePoint) -> bool:
    """Whether a folder's newest checkpoint is one of those that a run goes on from."""
    try:
        kept = list_checkpoints(folder / names.ARTIFACT_CHECKPOINTS)
        newest = read_manifest(kept[-1].path) if kept else None
        own = {(m.run_id, m.step) for m in map(read_manifest, (*point.earlier, point.checkpoint))}
    except CheckpointError:
        return False
    return newest is not None and (newest.run_id, newest.step) in own


def lock_of(folder: Path) -> Path:
    """Return the file that stands for a folder in this machine's folder of temporary files."""
    place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"clew-training-{os.getuid()}-{place}.lock"


@contextmanager
def only_training_in(option: str, folder: Path | None, world: World) -> Iterator[None]:
    """Hold a person's folder, so that no second training of this machine writes into it.

    Args:
        option: The option that named it.
        folder: The folder, which need not be there yet; None: there is none to hold.
        world: Only the main process holds it.

    Raises:
        ConfigError: another process trains there.
    """
    if folder is None or not world.is_main:
        yield
        return
    lock = FileLock(lock_of(folder), timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{option} {folder}: another process trains there; wait until it ends, or name another "
            "folder"
        ) from None
    try:
        yield
    finally:
        lock_of(folder).unlink(missing_ok=True)
        lock.release()


def copy_outputs(folder: Path, output_dir: Path) -> None:
    """Copy a run's files to the folder that a person asked for, which may hold its beginning."""
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
