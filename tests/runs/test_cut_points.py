"""A machine that stops, or a file that is lost, when a run has its folder: `clew sync` heals it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.config.services import TrackingConfig
from clew.runs import store
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import (
    HEARTBEAT_LIMIT_SECONDS,
    find_run,
    last_heartbeat,
    state_of,
)
from clew.runs.spool import WRITTEN
from clew.runs.tracker import Forwarder
from tests.runs.conftest import FAST
from tests.runs.test_dead_runs import die
from tests.runs.test_spool import Disk

Files = dict[str, bytes]


class DiskWithStore(Disk):
    """Also keeps which runs the store had at each point, and how far they were."""

    def __init__(self, root: Path, client: MlflowClient) -> None:
        super().__init__(root)
        self.client, self.statuses = client, list[dict[str, str]]()

    def flush(self, descriptor: int) -> None:
        """Keep the state after a flush."""
        super().flush(descriptor)
        self.statuses.append(statuses(self.client))


def statuses(client: MlflowClient) -> dict[str, str]:
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return {run.info.run_id: run.info.status for run in client.search_runs(ids)}


def removals(files: Files) -> Iterator[Files]:
    """Yield what a process leaves that dies while it removes its spools."""
    for name in WRITTEN:
        files = {path: content for path, content in files.items() if Path(path).name != name}
        yield files


def without_origins(files: Files) -> Iterator[Files]:
    """Yield the files with each `run.json` gone, cut off at some length, or zeroed."""
    for path, content in files.items():
        if path.endswith("run.json"):
            yield {other: files[other] for other in files if other != path}
            for cut in (b"", content[:-1], bytes(len(content))):
                yield files | {path: cut}


def put(files: Files, root: Path) -> None:
    for name, content in files.items():
        path = root / name
        (root / Path(name).parts[0]).mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_every_cut_is_healed_by_one_command(
    tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, original = MlflowClient(), tmp_path / "history.parquet"
    original.write_text("rows")
    (root := store.spool_root()).mkdir(mode=0o700)
    disk = DiskWithStore(root, client)
    monkeypatch.setattr(os, "fsync", disk.flush)
    monkeypatch.setattr(Forwarder, "run", lambda _: None)  # this thread alone sends
    tracker = open_tracker(TrackingConfig(log_system_metrics=False), kind="train", pace=FAST)
    tracker.metrics({"train/loss": 1.0}, 1)
    tracker.flush()
    tracker.artifact(original)
    tracker.metrics({"train/loss": 0.5}, 2)
    tracker.finish("FINISHED")
    monkeypatch.undo()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracking_store / 'mlflow.db'}")
    states = list(zip(disk.states, disk.statuses, strict=True))
    last, status = states[-1]
    states += [(files, status) for files in removals(last)]
    states += [(cut, status) for files, status in states for cut in without_origins(files)]
    different = {(frozenset(files.items()), tuple(then.items())) for files, then in states if files}
    assert len(different) > 50
    for files, then in ((dict(files), dict(then)) for files, then in different):
        client.update_run(tracker.run_id, status=then[tracker.run_id])
        put(files, root)
        results = sync_spool()
        assert [result.problem for result in results] == [None] * len(results), files.keys()
        assert "RUNNING" not in statuses(client).values(), files.keys()
        assert list(root.iterdir()) == [], files.keys()
    losses = client.get_metric_history(tracker.run_id, "train/loss")
    assert [(point.step, point.value) for point in losses] == [(1, 1.0), (2, 0.5)]
    assert [file.path for file in client.list_artifacts(tracker.run_id)].count(original.name) == 1


def test_a_run_whose_process_dies_before_it_has_a_folder_counts_as_stuck(
    tracking_store: Path,
) -> None:
    program = (
        "import os; from mlflow import MlflowClient\n"
        "from clew.config.services import TrackingConfig\n"
        "from clew.runs.mlflow_store import open_tracker\n"
        "create = MlflowClient.create_run\n"
        "def created(*given, **named): create(*given, **named); os.kill(os.getpid(), 9)\n"
        "MlflowClient.create_run = created\n"
        "open_tracker(TrackingConfig(), kind='trace')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    [(run_id, status)] = statuses(MlflowClient()).items()
    assert status == "RUNNING"
    run = find_run(run_id)
    beat = last_heartbeat(run)
    assert beat is not None
    assert state_of(run, beat + HEARTBEAT_LIMIT_SECONDS + 1) == "stuck"


def test_what_cannot_be_healed_is_one_line(
    tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_tracker(TrackingConfig(), kind="train", pace=FAST)
    tracker.metrics({"train/loss": 1.0}, 1)
    die(tracker)
    folder = store.spool_root() / tracker.run_id
    (folder / "run.json").unlink()
    monkeypatch.setenv("CLEW_SPOOL", str(folder.parent))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    [result] = sync_spool()
    assert str(folder / "run.json") in str(result.problem)
    assert "set MLFLOW_TRACKING_URI" in str(result.problem)
    assert "\n" not in str(result.problem)
    assert not (folder / "run.json").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tracking_store / 'mlflow.db'}")
    [result] = sync_spool()
    assert (result.problem, statuses(MlflowClient())) == (None, {tracker.run_id: "FAILED"})
