"""Full disks and unwritable paths: a one-line error, and no process stays alive."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.__main__ import run as run_command
from clew.runs import store
from clew.training.manifest import list_checkpoints
from tests.workflows.trained import ROOT, TrainedStore, dispose_of

pytestmark = pytest.mark.slow

CONFIG = str(ROOT / "experiments" / "link_prediction" / "umls.yaml")
SMALL = (
    "model.embedding_dim=16",
    "model.output_channels=4",
    "training.checkpoint_frequency=1",
    "training.device=cpu",
    "training.num_threads=1",
    "tracking.log_mfu=false",
)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("clew: error: ")
    return line


def statuses() -> list[str]:
    client = MlflowClient()
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.status for run in client.search_runs(ids)]


def test_a_checkpoint_that_becomes_too_large_a_file(tracking_store: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clew", "train", "--config", CONFIG, *SMALL]
    command += ["model.embedding_dim=256", "model.output_channels=32", "training.num_epochs=2"]
    limited = ["sh", "-c", 'ulimit -f 8192 && exec "$0" "$@"']  # blocks of 512 bytes: 4 MiB
    done = subprocess.run(
        [*limited, *command, "--checkpoint-dir", "kept"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "platform"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    line = done.stderr.splitlines()[-1]
    assert "kept" in line
    assert ": File too large; raise the limit of `ulimit -f`" in line
    assert "Traceback" not in done.stderr
    assert statuses() == ["FAILED"]
    kept = [path.name for path in (tmp_path / "kept").iterdir()]
    assert not [name for name in kept if name.startswith(".")]


@pytest.fixture
def small_disk(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Return a disk of 4 MiB with an empty store, and use this store."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "clew-test", str(disk)]
    can_mount = shutil.which("mount") is not None and os.geteuid() == 0
    if not can_mount or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        shutil.copyfile(store_template, disk / "mlflow.db")
        uri = f"sqlite:///{disk / 'mlflow.db'}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "CLEW_SPOOL"):
            monkeypatch.delenv(name, raising=False)
        yield disk
        dispose_of(uri)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)


def test_a_run_on_a_full_disk_ends_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--config", CONFIG, *SMALL, "training.num_epochs=40"]
    assert run_command([*command, "--output-dir", str(tmp_path / "out")]) == 3
    line = last_line(capsys)
    assert "No space left on device; free some space there" in line
    enlarge(small_disk)
    (run_id,) = [path.name for path in store.spool_root().iterdir()] or [newest_run()]
    assert run_command(["train", "--resume", run_id, "--output-dir", str(tmp_path / "out")]) == 0
    # If the store had no room for the end either, the resumed training ended the run.
    assert sorted(statuses()) in (["FAILED", "FINISHED"], ["FINISHED", "KILLED"])
    assert run_command([*command, "--output-dir", str(tmp_path / "whole")]) == 0
    resumed, whole = (
        list_checkpoints(tmp_path / name / "checkpoints") for name in ("out", "whole")
    )
    assert [record.step for record in resumed] == [record.step for record in whole]
    for one, other in zip(resumed, whole, strict=True):
        name = "model.safetensors"
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()


def newest_run() -> str:
    client = MlflowClient()
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return str(client.search_runs(ids)[0].info.run_id)


def test_a_disk_that_is_full_from_the_start(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (small_disk / "filler").open("wb") as file, pytest.raises(OSError, match="No space"):  # noqa: PT012
        while True:
            file.write(bytes(65536))
            file.flush()
    code = run_command(["train", "--config", CONFIG, *SMALL, "training.num_epochs=1"])
    assert code in (2, 3)
    last_line(capsys)
    enlarge(small_disk)
    assert run_command(["train", "--config", CONFIG, *SMALL, "training.num_epochs=1"]) == 0
    assert "RUNNING" not in statuses()


def test_an_explanation_does_not_need_its_cache(
    trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    test = "virus,causes,pathologic_function"
    assert run_command(["tracin", "--model", trained.strong, "--test", test]) == 0


@pytest.mark.parametrize("option", ["--output-dir", "--checkpoint-dir"])
@pytest.mark.parametrize("path", ["x" * 300, "/".join(["deep" * 40] * 40)])
def test_a_path_that_is_too_long_is_refused_before_anything_trains(
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    path: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["train", "--config", CONFIG, *SMALL, option, path]) == 2
    line = last_line(capsys)
    assert f"{option} {path[:40]}" in line
    assert "the path is too long for this file system; name another place" in line
    assert statuses() == []
