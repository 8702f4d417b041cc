"""Files and folders that are either whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        if temporary.is_dir() and path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


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
