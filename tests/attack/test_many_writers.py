"""Eight processes at once on a store that is not there yet: one sqlite file, or one PostgreSQL."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.recorded import ROOT
from tests.runs.kept import read_run

pytestmark = pytest.mark.slow

NUM_WRITERS, NUM_STEPS = 8, 50
SERVER_USER = "postgres"
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


@pytest.fixture
def database() -> Iterator[str]:
    """Start a PostgreSQL server with an empty database; its programs refuse to run as root."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    if importlib.util.find_spec("psycopg2") is None:
        pytest.skip("no driver for PostgreSQL: pip install psycopg2-binary")
    folder = Path(tempfile.mkdtemp(prefix="clew-postgresql-"))
    bin, data = programs[-1].parent, folder / "data"
    as_user = []
    if os.geteuid() == 0:
        as_user = ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups"]
        shutil.chown(folder, SERVER_USER)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    subprocess.run(
        [*as_user, bin / "initdb", "-D", data, "-U", "clew", "--auth=trust", "--no-sync"],
        check=True,
        capture_output=True,
        cwd="/",
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    control = [*as_user, str(bin / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log")]
    subprocess.run([*control, "-o", options, "start"], check=True, capture_output=True, cwd="/")
    try:
        yield f"postgresql+psycopg2://clew@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd="/")
        shutil.rmtree(folder)


def test_eight_writers_on_an_empty_postgresql(database: str, tmp_path: Path) -> None:
    write_at_once(database, tmp_path)
