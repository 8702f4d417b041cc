"""Which runs may be taken up again; that what is taken up is right is tested with the trainer."""

import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import CheckpointError, ConfigError, TrackingError
from clew.runs import store
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import RunRecord, find_run
from clew.workflows.resume import find_resume_point


def run_of_elsewhere(*, kind: str = names.KIND_TRAIN, silent: float = 0.0) -> RunRecord:
    """Return a run that says RUNNING and was last heard of `silent` seconds ago."""
    beat = str(time.time() - silent)
    client = MlflowClient(store.tracking_uri())
    run = client.create_run("0", tags={names.TAG_KIND: kind, names.TAG_HEARTBEAT: beat})
    return find_run(run.info.run_id)


def test_a_run_that_is_alive_here_stays_as_it_is(tracking_store: Path, tmp_path: Path) -> None:
    with open_tracker(TrackingConfig(), kind=names.KIND_TRAIN) as tracker:
        tracker.flush()
        with pytest.raises(TrackingError, match="is being written by another process"):
            find_resume_point(tracker.run_id, {}, tmp_path)
        assert find_run(tracker.run_id).status == "RUNNING"


def test_a_run_that_is_alive_elsewhere_stays_as_it_is(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere(silent=100.0)
    with pytest.raises(TrackingError, match=r"was alive 10\d s ago.* silent for 120 s"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id) == run


def test_a_run_that_has_long_been_silent_is_ended(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere(silent=130.0)
    with pytest.raises(CheckpointError, match=r"before it wrote its configuration.*start it anew"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id).status == "KILLED"


def test_only_a_training_run_is_taken_up(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere(kind=names.KIND_TRACE, silent=4000.0)
    with pytest.raises(ConfigError, match=r"its clew\.kind is 'trace', expected 'train'"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id) == run
