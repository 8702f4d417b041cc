"""Eight processes start at once on a store that does not exist: SQLite or PostgreSQL."""

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

NUM_WRITERS, NUM_STEPS = 8, 500
WRITERS = f"""
import os, sys, traceback
from clew.config.services import TrackingConfig
from clew.runs.mlflow_store import open_tracker
from clew.runs.mlflow_store import preload_databases

def write():
    tracker = open_tracker(TrackingConfig(log_system_metrics=False), kind="train")
    for step in range({NUM_STEPS}):
        tracker.metrics({{"train/loss": 1.0 / (step + 1)}}, step)
    tracker.finish("FINISHED")
    os.write(1, f"{{tracker.run_id}}\\n".encode())

preload_databases()
go = os.pipe()
for _ in range({NUM_WRITERS}):
    if os.fork():
        continue
    os.close(go[1])
    os.read(go[0], 1)  # ends when all have been forked, and the parent closes its end
    try:
        write()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
os.close(go[1])
sys.exit(any([os.wait()[1] for _ in range({NUM_WRITERS})]))
"""


def write_at_once(uri: str, folder: Path) -> None:
    """Start all writers at the same time, and check what they wrote.

    They are forks of one process that has imported everything and opened no store.
    """
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": uri,
        "CLEW_SPOOL": str(folder / "spool"),
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("MLFLOW_RUN_ID", None)
    done = subprocess.run(
        [sys.executable, "-c", WRITERS],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    client, run_ids = MlflowClient(uri), done.stdout.split()
    assert len(set(run_ids)) == NUM_WRITERS
    for run_id in run_ids:
        kept = read_run(client, run_id)
        assert kept.status == "FINISHED"
        assert kept.metrics["train/loss"] == [(1.0 / (s + 1), s) for s in range(NUM_STEPS)]
    assert len([e for e in client.search_experiments() if e.name == "clew"]) == 1
    assert not any((folder / "spool").glob("*/journal.jsonl"))


def test_eight_writers_on_a_new_sqlite_store(tmp_path: Path) -> None:
    write_at_once(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_eight_writers_on_an_empty_postgresql(tmp_path: Path) -> None:
    with postgresql("fsync=off") as address:
        write_at_once(address, tmp_path)
