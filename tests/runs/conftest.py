"""Shared fixtures of the tracking tests: runs that send immediately, and a checkpoint folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clew.config.services import TrackingConfig
from clew.runs.mlflow_store import open_tracker
from clew.runs.tracker import MlflowTracker, Pace

FAST = Pace(
    flush_seconds=0.02, first_retry_seconds=0.05, longest_retry_seconds=0.2, patience_seconds=0.2
)


@pytest.fixture
def open_run(tracking_store: Path) -> Iterator[Callable[..., MlflowTracker]]:
    """Return a function that opens runs; they are finished at the end of the test."""
    opened: list[MlflowTracker] = []

    def _open(kind: str = "train", **options: object) -> MlflowTracker:
        settings = TrackingConfig.model_validate(options.pop("tracking", {}))
        opened.append(open_tracker(settings, kind=kind, pace=FAST, **options))
        return opened[-1]

    yield _open
    for tracker in opened:
        tracker.finish("KILLED")


@pytest.fixture
def checkpoint_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "epoch-0005"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer.safetensors").write_bytes(b"moments")
    (folder / "manifest.json").write_text('{"step": 5}')
    return folder
