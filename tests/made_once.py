"""Stores that take seconds to fill: one test process fills a folder, and all others use it."""

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

RUNS_FILE = "runs.json"
# The tables and columns of a store with absolute addresses of files.
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)


def made_once(folder: Path, make: Callable[[Path], dict[str, str]]) -> dict[str, str]:
    """Return the runs of a store by name, and fill its folder if no process has done so.

    Args:
        folder: The folder of the store. Processes that share it wait for the one that fills it.
        make: Fills the new folder and returns the runs.
    """
    runs = folder / RUNS_FILE
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not runs.is_file():
            shutil.rmtree(folder, ignore_errors=True)  # files of a killed process
            folder.mkdir()
            runs.write_text(json.dumps(make(folder)), encoding="utf-8")
    found: dict[str, str] = json.loads(runs.read_text(encoding="utf-8"))
    return found


def copy_filled(source: Path, folder: Path) -> None:
    """Copy a filled store into a new folder, and change its addresses to the new files."""
    shutil.copytree(source, folder, symlinks=True)
    with closing(sqlite3.connect(folder / "mlflow.db")) as base, base:
        for table, column in ADDRESSES:
            base.execute(
                f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                (str(source), str(folder)),
            )
