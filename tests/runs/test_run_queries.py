"""Reading a run back: its record, its configuration, its files."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.errors import TrackingError, UsageError, masked
from clew.runs import store
from clew.runs.reading import models, runs
from clew.runs.store import connect, tracking_uri
from clew.runs.tracker import MlflowTracker


@pytest.fixture
def run_id(open_run: Callable[..., MlflowTracker], checkpoint_folder: Path, tmp_path: Path) -> str:
    tracker = open_run(run_name="umls fp32")
    tracker.params({"training.seed": 3})
    tracker.metrics({"valid/mrr": 0.25}, 1)
    tracker.metrics({"valid/mrr": 0.5}, 2)
    (tmp_path / "config.yaml").write_text("data:\n  name: umls\n")
    tracker.artifact(tmp_path / "config.yaml")
    for epoch in (5, 10):
        folder = f"checkpoints/epoch-{epoch:04}"
        tracker.checkpoint(checkpoint_folder, folder=folder, step=epoch, metrics={})
    tracker.finish("FINISHED")
    return tracker.run_id


UNUSABLE = {
    "mysql+pymysql://me:secret@host/base": "its driver is not installed .*; install it, or set",
    "file:///nowhere/mlruns": "maintenance mode",
    "nowhere/mlruns": "not an address",
    "127.0.0.1:5000": "not an address",
    "foo://bar": "unsupported URI 'foo://bar'",
    "sqlite+foo:///base.db": "Can't load plugin",
}


@pytest.mark.parametrize("uri", UNUSABLE)
@pytest.mark.parametrize("open_store", [runs.client, lambda: connect(tracking_uri())])
def test_a_store_that_cannot_be_used_is_one_line_for_readers_and_writers(
    open_store: Callable[[], MlflowClient],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pymysql", None)  # as if it were not installed
    with pytest.raises(TrackingError, match=UNUSABLE[uri]) as caught:
        open_store()
    message = str(caught.value)
    assert message.startswith(f"tracking store {masked(uri)}: ")
    assert "\n" not in message
    assert "secret" not in message


def test_a_run_is_read(run_id: str) -> None:
    run = runs.find_run(run_id)
    assert (run.run_id, run.name, run.status) == (run_id, "umls fp32", "FINISHED")
    assert run.tags["clew.kind"] == "train"
    assert run.params == {"cfg.training.seed": "3"}
    assert run.metrics == {"valid/mrr": 0.5}
    assert run.started_ms <= (run.ended_ms or 0)


def test_its_configuration_and_files_are_read(run_id: str, tmp_path: Path) -> None:
    assert runs.read_config(run_id) == {"data": {"name": "umls"}}
    assert sorted(runs.list_artifacts(run_id)) == ["checkpoints", "config.yaml"]
    assert runs.list_artifact_folders(run_id) == ["checkpoints"]
    folders = runs.list_artifact_folders(run_id, "checkpoints")
    assert folders == ["epoch-0005", "epoch-0010"]
    for _ in range(2):
        folder = runs.download_artifact(run_id, "checkpoints/epoch-0010", tmp_path / "out")
    assert folder == tmp_path / "out" / "checkpoints" / "epoch-0010"
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoints"]


def test_files_on_this_machine_are_those_that_mlflow_gives(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(work: Path) -> object:
        copied = runs.download_artifact(run_id, "checkpoints", work)
        files = {p.relative_to(copied): p.read_bytes() for p in copied.rglob("*") if p.is_file()}
        folders = [runs.list_artifact_folders(run_id, path) for path in ("", "checkpoints", "no")]
        return files, folders, runs.list_artifacts(run_id)

    assert store.local_artifacts(run_id) is not None
    here = found(tmp_path / "here")
    monkeypatch.setattr(store, "local_artifacts", lambda _: None)
    assert here == found(tmp_path / "mlflow")


def test_the_files_of_a_deleted_run_are_not_given(run_id: str, tmp_path: Path) -> None:
    runs.client().delete_run(run_id)
    for path in ("checkpoints", "../artifacts/checkpoints"):
        with pytest.raises(TrackingError):
            runs.download_artifact(run_id, path, tmp_path)


def test_no_path_leads_out_of_the_files_of_a_run(run_id: str, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    for path in ("../../..", str(tmp_path / "secret")):
        with pytest.raises(TrackingError):
            runs.download_artifact(run_id, path, tmp_path / "work")


def test_a_folder_that_is_not_there_is_empty(run_id: str) -> None:
    assert runs.list_artifact_folders(run_id, "influence") == []


def test_a_missing_artifact_is_one_line(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"config.yaml"):
        runs.download_artifact(run_id, "best", tmp_path)
    with pytest.raises(TrackingError):
        runs.download_artifact(run_id, "checkpoints/epoch-0099", tmp_path)


def test_a_configuration_that_is_no_mapping_is_one_line(
    open_run: Callable[..., MlflowTracker], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("- a list\n")
    tracker = open_run()
    tracker.artifact(tmp_path / "config.yaml")
    tracker.finish("FINISHED")
    with pytest.raises(UsageError, match=f"run {tracker.run_id}: config.yaml"):
        runs.read_config(tracker.run_id)


def test_a_run_that_is_not_there_is_one_line(tracking_store: Path) -> None:
    with pytest.raises(TrackingError, match=f"no run {'0' * 32} in sqlite:"):
        runs.find_run("0" * 32)


def test_a_deleted_run_is_one_line(run_id: str) -> None:
    MlflowClient().delete_run(run_id)
    with pytest.raises(TrackingError):
        runs.find_run(run_id)


def test_reading_creates_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(TrackingError):
        runs.find_run("0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_champion_is_listed_below_many_later_versions(tracking_store: Path) -> None:
    client = connect(tracking_uri())
    client.create_registered_model("model")
    for _ in range(202):
        client.create_model_version("model", source=str(tracking_store))
    client.set_registered_model_alias("model", "champion", "1")
    (model,) = models.list_models()
    versions = models.list_versions(model)
    assert [version.version for version in versions] == list(range(202, 0, -1))
    assert versions[-1].aliases == ("champion",)
