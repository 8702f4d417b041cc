"""`mlflow run PATH` from another folder: experiment and artifacts belong to the store."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from clew import names
from clew.config.services import TrackingConfig
from clew.runs.default_experiment import _restore_status
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run, state_of

Start = Callable[..., Run]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "a project"
    folder.mkdir()
    command = 'name: clew\nentry_points: {main: {command: "pwd > ran_here"}}\n'
    (folder / "MLproject").write_text(command, encoding="utf-8")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a project as `mlflow run` does, and returns its run."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that it is restored after the test

    def run(uri: object, *, store: str = "", **options: str) -> Run:
        if store:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        else:
            monkeypatch.delenv("MLFLOW_TRACKING_URI")
        run_id = mlflow.projects.run(str(uri), env_manager="local", **options).run_id
        return MlflowClient().get_run(run_id)

    yield run
    mlflow.set_tracking_uri(None)


def experiment_of(run: Run) -> str:
    return MlflowClient().get_experiment(run.info.experiment_id).name


@pytest.mark.parametrize("given", ["{}", "file://{}", "../a project"])
def test_without_a_store_the_project_keeps_the_run(
    project: Path, elsewhere: Path, start: Start, given: str
) -> None:
    run = start(given.format(project))
    assert experiment_of(run) == "clew"
    place = (project / "mlartifacts" / "clew").as_uri()
    assert run.info.artifact_uri.startswith(place)
    assert (project / "mlflow.db").is_file()
    assert (project / "ran_here").is_file()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_given_store_keeps_the_run(
    project: Path, elsewhere: Path, start: Start, tracking_store: Path, *, is_absolute: bool
) -> None:
    path = str(tracking_store) if is_absolute else os.path.relpath(tracking_store)
    run = start(project, store=f"sqlite:///{path}/mlflow.db")
    assert experiment_of(run) == "clew"
    assert run.info.artifact_uri.startswith((tracking_store / "mlartifacts" / "clew").as_uri())
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tracking_store}/mlflow.db"
    assert list(elsewhere.iterdir()) == []
    assert not (project / "mlflow.db").exists()


def test_a_project_of_others_is_not_touched(
    project: Path, elsewhere: Path, start: Start, tracking_store: Path
) -> None:
    text = (project / "MLproject").read_text().replace("name: clew", "name: other")
    (project / "MLproject").write_text(text)
    run = start(project, store=f"sqlite:///{tracking_store}/mlflow.db")
    assert experiment_of(run) == "Default"


def test_files_that_go_elsewhere_are_told(
    project: Path,
    elsewhere: Path,
    start: Start,
    tracking_store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"sqlite:///{tracking_store}/mlflow.db"
    run = start(project, store=uri, experiment_name="mine")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    with open_tracker(TrackingConfig(), kind="train") as tracker:
        assert tracker.run_id == run.info.run_id
    warnings = MlflowClient().get_run(run.info.run_id).data.tags["clew.warnings"]
    assert str(elsewhere / "mlruns") in warnings


@pytest.mark.parametrize("ended_as", ["KILLED", "FAILED"])
def test_what_a_person_stopped_is_not_failed(
    project: Path, elsewhere: Path, start: Start, tracking_store: Path, ended_as: str
) -> None:
    """MLflow sets the status of every run whose command fails to FAILED, and so does this test."""
    uri = f"sqlite:///{tracking_store}/mlflow.db"
    run = start(project, store=uri)
    client = MlflowClient()
    client.set_tag(run.info.run_id, names.TAG_ENDED_AS, ended_as)
    client.set_terminated(run.info.run_id, "FAILED")
    state = {"KILLED": "stopped", "FAILED": "failed"}[ended_as]
    assert state_of(find_run(run.info.run_id)) == state
    _restore_status(client, run.info.experiment_id, run.info.start_time)
    assert client.get_run(run.info.run_id).info.status == ended_as
    assert state_of(find_run(run.info.run_id)) == state
