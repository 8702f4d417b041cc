"""Folders that environment variables name, and paths as people type them."""

import os
import shlex
from pathlib import Path

from clew.errors import ConfigError

DATA_VARIABLE = "CLEW_DATA"
"""Environment variable that names the folder of named data sets."""


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


def check_data_name(name: str) -> str:
    """Return a data set's name, after checking that it stays in the folder of named data sets.

    Raises:
        ConfigError: If the name leads out of that folder.
    """
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ConfigError(
            f"data.name is {name!r}, which leads out of ${DATA_VARIABLE}; give a name in that "
            "folder, or the path of the data instead"
        )
    return name


def cache_folder(kind: str) -> Path:
    """Return the user's cache folder for one kind of files, which can be deleted at any time."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "clew" / kind
