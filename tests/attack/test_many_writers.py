"""Eight processes at once on a store that is not there yet: one sqlite file, or one PostgreSQL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.postgresql import missing, postgresql
from tests.recorded import ROOT
from tests.runs.kept import read_run

pytestmark = pytest.mark.slow

NUM_WRITERS, NUM_STEPS = 8, 50
WRITER = f"""
import sys
from clew.config.services import TrackingConfig
from clew.runs.mlflow_store import open_tracker

sys.stdin.readline()
tracker = open_tracker(TrackingConfig(log_system_metrics=False), kind="train")
for step in range({NUM_STEPS}):
    tracker.metrics({{"train/loss": 1.0 / (step + 1)}}, step)
tracker.finish("FINISHED")
print(tracker.run_id)
"""


def write_at_once(uri: str, folder: Path) -> None:
    """Let all writers begin when all of them have loaded, and look at what they wrote."""
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": uri,
        "CLEW_SPOOL": str(folder / "spool"),
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("MLFLOW_RUN_ID", None)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(NUM_WRITERS)
    ]
    outputs = [writer.communicate("go\n") for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * NUM_WRITERS, outputs
    client = MlflowClient(uri)
    for run_id, _ in outputs:
        kept = read_run(client, run_id.strip())
        assert kept.status == "FINISHED"
        assert kept.metrics["train/loss"] == [(1.0 / (s + 1), s) for s in range(NUM_STEPS)]
    assert not any((folder / "spool").glob("*/journal.jsonl"))


def test_eight_writers_on_a_new_sqlite_store(tmp_path: Path) -> None:
    write_at_once(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_eight_writers_on_an_empty_postgresql(tmp_path: Path) -> None:
    with postgresql("fsync=off") as address:
        write_at_once(address, tmp_path)
