"""Folders that environment variables name: the data sets', and the one for files made again."""

import os
from pathlib import Path

DATA_VARIABLE = "CLEW_DATA"
"""Environment variable: the folder of named data sets."""


def data_folder() -> Path | None:
    """Return the folder of named data sets; None if `CLEW_DATA` is not set."""
    root = os.environ.get(DATA_VARIABLE)
    return Path(root).expanduser() if root else None


def cache_folder(kind: str) -> Path:
    """Return the user's folder for files of a kind that can be made again at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clew" / kind
