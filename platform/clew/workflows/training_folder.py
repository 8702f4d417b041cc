"""The folders of a training: checked before it, held by one training, copied after it."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from clew import names
from clew.errors import ConfigError
from clew.training.distributed import World
from clew.workflows.outputs import check_new_folder

RUN_FILES = "run"
"""Part of the working folder with what the task writes for readers, for example `vocabulary/`."""


def check_folders(output_dir: Path | None, checkpoint_dir: Path | None) -> None:
    """Refuse folders that a new training cannot fill.

    Raises:
        ConfigError: one of them holds something or cannot be written, or both are the same.
    """
    check_new_folder("--output-dir", output_dir)
    check_new_folder("--checkpoint-dir", checkpoint_dir)
    if output_dir and checkpoint_dir and output_dir.resolve() == checkpoint_dir.resolve():
        raise ConfigError(
            f"--output-dir and --checkpoint-dir are both {output_dir}; name two folders, or give "
            "--checkpoint-dir alone, which holds the run's files too"
        )


def lock_of(folder: Path) -> Path:
    """Return the file that stands for a folder in this machine's folder of temporary files."""
    place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"clew-training-{os.getuid()}-{place}.lock"


@contextmanager
def only_training_in(folder: Path | None, world: World) -> Iterator[None]:
    """Hold a folder of a person's, so that no second training of this machine writes into it.

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
            f"--checkpoint-dir {folder}: another process trains there; wait until it ends, or "
            "name another folder"
        ) from None
    try:
        yield
    finally:
        lock_of(folder).unlink(missing_ok=True)
        lock.release()


def copy_outputs(folder: Path, output_dir: Path) -> None:
    """Copy a run's files to the folder that a person asked for."""
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in (names.ARTIFACT_CONFIG_YAML, names.ARTIFACT_CONFIG_JSON, names.ARTIFACT_HISTORY):
        shutil.copy2(folder / name, output_dir / name)
    for name in (names.ARTIFACT_BEST, names.ARTIFACT_CHECKPOINTS):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, output_dir / name)
    shutil.copytree(folder / RUN_FILES, output_dir, dirs_exist_ok=True)
