"""Folders and experiments whose names have special characters of addresses work correctly."""

from pathlib import Path

import pytest

from clew.config.services import TrackingConfig
from clew.runs import store
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import download_artifact
from clew.runs.registry import Registry
from tests.workflows.trained import dispose_of

FOLDERS = ["a%20b", "what?now#7, 50% off é 漢"]
EXPERIMENTS = ["clew", "50% off", "a%20b", "what?/now", "issue#7", "é 漢", "../up", "CON."]


def served_copy(name: str) -> Path:
    """Find a version's files as `mlflow models serve` does, in the command and in its server."""
    from mlflow import artifacts
    from mlflow.utils.file_utils import path_to_local_file_uri

    found = artifacts.download_artifacts(artifact_uri=f"models:/{name}/1")
    return Path(artifacts.download_artifacts(artifact_uri=path_to_local_file_uri(found)))


@pytest.fixture
def registered(tmp_path: Path) -> Path:
    folder = tmp_path / "servable"
    folder.mkdir()
    (folder / "weights").write_text("of a model", encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_a_project_keeps_its_store_inside_whatever_its_folder_is_called(
    name: str, tmp_path: Path, registered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "home" / name
    project.mkdir(parents=True)
    (project / "MLproject").touch()
    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "CLEW_SPOOL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(project)
    uri = store.tracking_uri()
    try:
        keep_and_fetch(uri, "clew", registered, tmp_path, monkeypatch)
    finally:
        dispose_of(uri)
    assert store.database_path(uri) == project / "mlflow.db"
    assert {path.name for path in project.iterdir()} >= {"mlflow.db", "mlartifacts"}
    # MLflow creates folders for the undecoded address, but no files in them.
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert all(path.is_relative_to(project) for path in files)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_model_of_any_experiment_can_be_fetched(
    experiment: str,
    tracking_store: Path,
    registered: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_and_fetch(store.tracking_uri(), experiment, registered, tmp_path, monkeypatch)
    (kept,) = (tracking_store / "mlartifacts").rglob("weights")
    assert "%" not in str(kept)  # MLflow would decode it again


def keep_and_fetch(
    uri: str, experiment: str, registered: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record a run with a file, register a model of it, and fetch both."""
    note = work / "note.txt"
    note.write_text("kept", encoding="utf-8")
    with open_tracker(TrackingConfig(experiment=experiment), kind="train") as tracker:
        tracker.artifact(note)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    registry = Registry()
    version = registry.register("model", registered, run_id=tracker.run_id, tags={})
    own = registry.download(version, work / "own")
    assert (own / "weights").read_text(encoding="utf-8") == "of a model"
    served = served_copy("model")
    assert (served / "weights").read_text(encoding="utf-8") == "of a model"
    run = registry.client.get_run(tracker.run_id)
    downloaded = registry.client.download_artifacts(run.info.run_id, "note.txt", str(work))
    assert Path(downloaded).read_text(encoding="utf-8") == "kept"
    assert store.local_artifacts(tracker.run_id) is not None, "it was found without MLflow"
    found = download_artifact(tracker.run_id, "note.txt", work / "copied")
    assert found.read_text(encoding="utf-8") == "kept"
