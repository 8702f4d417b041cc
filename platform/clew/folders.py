"""Folders that environment variables name: the data sets', and the one for files made again."""

import os
import shlex
from pathlib import Path

from clew.errors import ConfigError

DATA_VARIABLE = "CLEW_DATA"
"""Environment variable: the folder of named data sets."""


def expanded(path: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder, where there is one."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises for an unknown user


def as_typed(path: Path) -> str:
    """Return a path for a command that may be typed in any folder, spaces and all."""
    return shlex.quote(str(path.absolute()))


def data_folder() -> Path | None:
    """Return the folder of named data sets; None if `CLEW_DATA` is not set."""
    root = os.environ.get(DATA_VARIABLE)
    return expanded(root) if root else None


def check_data_name(name: str) -> str:
    """Return a data set's name if it stays inside the folder of named data sets.

    Raises:
        ConfigError: it leads out of it.
    """
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ConfigError(
            f"data.name is {name!r}, which leads out of ${DATA_VARIABLE}; give a name in that "
            "folder, or the path of the data instead"
        )
    return name


def cache_folder(kind: str) -> Path:
    """Return the user's folder for files of a kind that can be made again at any time."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "clew" / kind
