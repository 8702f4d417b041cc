"""Writes files and folders that are whole or absent; temporary folders; typed paths."""

import ctypes
import fcntl
import json
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clew.errors import ClewError, ConfigError

WORK_PREFIX = "clew-work-"
KEPT_PREFIX = "clew-kept-"
WORK_LOCK = ".lock"
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2: paths relative to the current folder; exchange the two."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the file or folder there becomes `path` at the end.

    The previous content of `path` stays until the end of the block. If the block fails, the
    previous content is kept and the temporary file or folder is removed. A file does not replace a
    folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove(temporary)
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir() and _exchanged(temporary, path):
            shutil.rmtree(temporary)
            return
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, if the file system can; both exist at every moment."""
    names = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return bool(ctypes.CDLL(None).renameat2(*names, RENAME_EXCHANGE) == 0)


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8, either completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1) + "\n")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def working_folder(purpose: str, *, holds: str = "") -> Iterator[Path]:
    """Yield a new folder for temporary files, and remove it at the end.

    Folders that killed processes left behind are removed first. Each folder contains a lock that
    its process holds while it runs. `purpose`, such as `train`, is a part of its name. Errors name
    what it `holds`, such as `run 1a2b`, because nobody finds the folder any more.
    """
    root = Path(tempfile.gettempdir())
    _sweep(root)
    # The folder gets its final name after it is locked, so that no other process removes it.
    made = Path(tempfile.mkdtemp(prefix=f".{WORK_PREFIX}{purpose}-", dir=root))
    folder = made.with_name(made.name[1:])
    lock = os.open(made / WORK_LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.rename(folder)
        yield folder
    except ClewError as error:
        if holds:
            error.args = (str(error).replace(f"{folder}/", f"{holds}: "),)
        raise
    finally:
        _remove_lock_last(folder)
        os.close(lock)


def keep(folder: Path) -> Path:
    """Rename a working folder, so that it is not removed at the end; return its new path."""
    kept = folder.with_name(folder.name.replace(WORK_PREFIX, KEPT_PREFIX))
    folder.rename(kept)
    (kept / WORK_LOCK).unlink()
    return kept


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{WORK_PREFIX}*"):
        with suppress(OSError):  # the folder is in use, or another process removed it
            info = folder.lstat()
            if info.st_uid != os.geteuid() or not stat.S_ISDIR(info.st_mode):
                continue
            lock = os.open(folder / WORK_LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_lock_last(folder)
            finally:
                os.close(lock)


def _remove_lock_last(folder: Path) -> None:
    """Remove a folder, its lock last: if this is interrupted, the next sweep removes the rest."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != WORK_LOCK:
                with suppress(OSError):
                    remove(path)
    shutil.rmtree(folder, ignore_errors=True)


DATA_VARIABLE = "CLEW_DATA"
"""Environment variable that names the folder of named data sets."""
ONLY_DATA_VARIABLE = "CLEW_ONLY_DATA_IN"
"""Environment variable that names the only folders whose data a command may read."""


def expanded(path: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder, if there is one."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises for an unknown user


def as_typed(path: Path) -> str:
    """Return a path for a printed command: absolute, for any folder, and quoted for a shell."""
    return shlex.quote(str(path.absolute()))


def data_folder() -> Path | None:
    """Return the folder of named data sets; None if `CLEW_DATA` is not set."""
    root = os.environ.get(DATA_VARIABLE)
    return expanded(root) if root else None


def is_in_one_of(path: str | Path, folders: str) -> bool:
    """Whether a file is in one of the folders, which `os.pathsep` separates."""
    found = Path(os.path.realpath(expanded(path)))
    return any(found.is_relative_to(os.path.realpath(f)) for f in folders.split(os.pathsep) if f)


def check_data_name(name: str) -> str:
    """Return a data set's name, after checking that it stays in the folder of named data sets."""
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ConfigError(
            f"data.name is {name!r}, which leads out of ${DATA_VARIABLE}; give a name in that "
            "folder, or the path of the data instead"
        )
    return name


def cache_folder(kind: str) -> Path:
    """Return the user's cache folder for one kind of files, which can be deleted at any time."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "clew" / kind
