"""Folders that are added to a run's artifacts after it has ended."""

from pathlib import Path

from clew.runs.reading.runs import client
from clew.runs.store import using


def keep_folder(run_id: str, folder: Path, place: str) -> None:
    """Copy a folder to `place` among the artifacts of a run, over what is there.

    Raises:
        TrackingError: the store does not take it.
    """
    with using(f"keeping {place} with run {run_id}"):
        client().log_artifacts(run_id, str(folder), place)
