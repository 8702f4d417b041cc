"""A real `mlflow server` on loopback that dies in the middle of a run and is started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs import store
from clew.runs.base import DataSet
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading import runs
from clew.runs.spool import list_spools
from clew.runs.tracker import MlflowTracker, Pace
from tests.ports import free_port
from tests.runs.kept import read_run

pytestmark = pytest.mark.slow

START_SECONDS = 120.0
PACE = Pace(
    flush_seconds=0.05, first_retry_seconds=0.05, longest_retry_seconds=0.5, patience_seconds=0.5
)


class Server:
    """An MLflow server that can be restarted with the same port and database."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait for its first answer."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self.folder / "mlartifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment.pop("MLFLOW_TRACKING_URI", None)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while store.probe(self.uri) is not None:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text())
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the server and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Suspend the server: it accepts connections but does not answer."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the server."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "mlflow.db").write_bytes(store_template.read_bytes())
    server = Server(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def in_use(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a dead server refuses at once
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(store, "PROBE_SECONDS", 60.0)


def start_run(**options: object) -> MlflowTracker:
    return open_tracker(TrackingConfig(), kind="train", pace=PACE, **options)  # type: ignore[arg-type]


def train(tracker: MlflowTracker, first: int, last: int) -> None:
    for step in range(first, last):
        tracker.metrics({"train/loss": 1.0 / (step + 1), "train/learning_rate": 0.1}, step)


def keep_checkpoint(tracker: MlflowTracker, folder: Path, epoch: int) -> None:
    path = folder / "work"
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(b"weights of epoch %d" % epoch)
    (path / "optimizer.safetensors").write_bytes(b"moments")
    (path / "manifest.json").write_text("{}")
    quality = epoch / 100
    tracker.metrics({"valid/mrr": quality}, epoch)
    name = f"checkpoints/epoch-{epoch:04}"
    tracker.checkpoint(path, folder=name, step=epoch, metrics={"valid/mrr": quality})
    for file in path.iterdir():
        file.unlink()


def everything_is_there(run_id: str, *, steps: int, epochs: list[int], folder: Path) -> None:
    kept = read_run(MlflowClient(), run_id)
    assert kept.status == "FINISHED"
    assert kept.metrics["train/loss"] == [(1.0 / (step + 1), step) for step in range(steps)]
    assert kept.metrics["train/learning_rate"] == [(0.1, step) for step in range(steps)]
    assert kept.metrics["valid/mrr"] == [(epoch / 100, epoch) for epoch in epochs]
    assert kept.checkpoints == [
        (f"checkpoints/epoch-{epoch:04}", epoch, {"valid/mrr": epoch / 100}) for epoch in epochs
    ]
    for epoch in epochs:
        path = runs.download_artifact(run_id, f"checkpoints/epoch-{epoch:04}", folder / "read")
        weights = (path / "model.safetensors").read_bytes()
        assert weights == b"weights of epoch %d" % epoch
    assert list_spools(store.spool_root()) == []


def test_a_run_goes_to_the_server_whole(tmp_path: Path) -> None:
    tracker = start_run(run_name="umls fp32", tags={"clew.unit": "K"})
    tracker.params({"training.seed": 3})
    tracker.dataset(DataSet("umls", "f" * 64, "umls", "training"))
    train(tracker, 0, 1500)
    keep_checkpoint(tracker, tmp_path, 5)
    tracker.finish("FINISHED")
    everything_is_there(tracker.run_id, steps=1500, epochs=[5], folder=tmp_path)
    kept = read_run(MlflowClient(), tracker.run_id)
    assert kept.params == {"cfg.training.seed": "3"}
    assert kept.datasets == [("umls", "f" * 64, "umls", "training")]
    assert runs.find_run(tracker.run_id).name == "umls fp32"
    assert runs.list_artifact_folders(tracker.run_id, "checkpoints") == ["epoch-0005"]


def test_a_model_entry_on_a_server_can_be_registered(tmp_path: Path) -> None:
    tracker = start_run()
    keep_checkpoint(tracker, tmp_path, 5)
    tracker.finish("FINISHED")
    client = MlflowClient()
    [output] = client.get_run(tracker.run_id).outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    client.create_registered_model("served")
    client.create_model_version("served", model.model_uri, model_id=model.model_id)
    names = {file.path for file in client.list_logged_model_artifacts(model.model_id)}
    assert names == {"model.safetensors", "manifest.json"}


def test_the_server_dies_in_the_middle_and_comes_back(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = start_run()
    train(tracker, 0, 100)
    keep_checkpoint(tracker, tmp_path, 5)
    tracker.flush()
    server.kill()
    train(tracker, 100, 200)
    keep_checkpoint(tracker, tmp_path, 10)
    tracker.flush()
    assert [path.name for path in list_spools(store.spool_root())] == [tracker.run_id]
    train(tracker, 200, 250)
    server.start()
    train(tracker, 250, 300)
    keep_checkpoint(tracker, tmp_path, 15)
    tracker.finish("FINISHED")
    everything_is_there(tracker.run_id, steps=300, epochs=[5, 10, 15], folder=tmp_path)
    assert "the tracking store does not accept the records" in caplog.text
    assert "the tracking store responds again" in caplog.text


def test_what_a_dead_server_missed_is_sent_later(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left, taken_up = start_run(), start_run()
    train(left, 0, 50)
    train(taken_up, 0, 50)
    left.flush()
    server.kill()
    train(left, 50, 100)
    train(taken_up, 50, 100)
    keep_checkpoint(left, tmp_path, 5)
    left.finish("FINISHED")
    taken_up.finish("FAILED")
    assert "`clew sync`" in caplog.messages[-1]
    results = sync_spool()
    assert [result.num_sent for result in results] == [0, 0]
    assert all("does not answer" in (result.problem or "") for result in results)
    server.start()

    again = start_run(run_id=taken_up.run_id)
    train(again, 100, 150)
    keep_checkpoint(again, tmp_path, 5)
    again.finish("FINISHED")
    [result] = sync_spool()
    assert (result.run_id, result.problem, result.num_refused) == (left.run_id, None, 0)
    everything_is_there(left.run_id, steps=100, epochs=[5], folder=tmp_path)
    everything_is_there(taken_up.run_id, steps=150, epochs=[5], folder=tmp_path)


def test_a_server_that_hangs_does_not_hold_the_program(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = start_run()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(store, "PROBE_SECONDS", 0.5)
    server.pause()
    try:
        train(tracker, 0, 100)
        keep_checkpoint(tracker, tmp_path, 5)
        tracker.finish("FINISHED")
        assert len(list_spools(store.spool_root())) == 1
    finally:
        server.resume()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setattr(store, "PROBE_SECONDS", 30.0)
    [result] = sync_spool()
    assert result.problem is None
    everything_is_there(tracker.run_id, steps=100, epochs=[5], folder=tmp_path)


def test_no_server_at_the_start_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TrackingError, match=r"does not answer .*start it, or set") as caught:
        start_run()
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    with pytest.raises(TrackingError, match="does not answer"):
        runs.find_run("0" * 32)
    assert list_spools(store.spool_root()) == []


def test_a_password_in_the_address_is_in_no_file_and_no_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri.replace("//", "//me:pass-word@"))
    tracker = start_run()
    train(tracker, 0, 10)
    tracker.flush()
    server.kill()
    train(tracker, 10, 20)
    tracker.finish("FINISHED")
    [folder] = list_spools(store.spool_root())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert (folder / "run.json") in files
    assert not [path for path in files if b"pass-word" in path.read_bytes()]
    [result] = sync_spool()
    server.start()
    assert "does not answer" in (result.problem or "")
    assert "pass-word" not in f"{caplog.text}{result}"
    [result] = sync_spool()
    assert (result.problem, list_spools(store.spool_root())) == (None, [])
