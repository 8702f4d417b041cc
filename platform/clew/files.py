"""Files and folders that are either whole or not there."""

import ctypes
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from clew.errors import ClewError

WORK_PREFIX = "clew-work-"
WORK_LOCK = ".lock"
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Linux's renameat2: paths as they are given; both names stay, with the other's content."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write a file or a folder to; it becomes `path` at the end.

    What was at `path` stays until then, and stays for good if the block fails; nothing else is
    left behind. A file does not take the place of a folder.

    Raises:
        OSError: it cannot be written.
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
    """Let two folders change places in one step, so that neither name is ever without one.

    Returns:
        Whether it was done; not every file system can.
    """
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    names = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return bool(renameat2(*names, RENAME_EXCHANGE) == 0)


def waiting_lock(path: Path) -> FileLock:
    """Return a lock that waits, with its file in place.

    FileLock takes a file that cannot be made, as below /proc, for one that is held, and waits for
    ever.

    Raises:
        OSError: the file cannot be made.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    return FileLock(path, mode=0o600)


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def working_folder(purpose: str, *, holds: str = "") -> Iterator[Path]:
    """Yield a new folder for temporary files, which goes at the end.

    Those that killed processes left go first: a lock in each is held while its process lives.

    Args:
        purpose: Part of its name, such as `train`.
        holds: What is downloaded into it, such as `run 1a2b`: errors name this in place of a
            folder that is gone when they are read.
    """
    root = Path(tempfile.gettempdir())
    _sweep(root)
    # It gets the name that is swept when its lock is held, so nobody takes it for a dead one.
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


def _sweep(root: Path) -> None:
    """Remove this user's working folders whose lock nobody holds."""
    for folder in root.glob(f"{WORK_PREFIX}*"):
        with suppress(OSError):  # it is in use, or another process was faster
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
    """Remove a working folder so that, if this is killed, the next sweep still knows it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != WORK_LOCK:
                with suppress(OSError):
                    remove(path)
    shutil.rmtree(folder, ignore_errors=True)
