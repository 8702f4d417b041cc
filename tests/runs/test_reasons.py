"""A run that did not finish keeps the reason: as a tag, and as the last line of its log."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import RestException

from clew import names
from clew.__main__ import keeping_reason
from clew.__main__ import run as run_command
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, TrackingError
from clew.runs import mlflow_store
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.run_details import read_text
from clew.runs.tracker import MlflowTracker
from tests.runs.test_dead_runs import die

Open = Callable[..., MlflowTracker]


@pytest.fixture
def opened(tracking_store: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run that `mlflow run` opened for the command of this test."""
    run = MlflowClient().create_run("0")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    return run


def ended(run_id: str, status: str, said: str) -> Run:
    """Check how a run ended, and that its tag and the last line of its log say why."""
    run = MlflowClient().get_run(run_id)
    assert run.info.status == status
    assert said in run.data.tags[names.TAG_STOPPED_BECAUSE]
    last = read_text(run_id, names.ARTIFACT_LOG).splitlines()[-1]
    assert said in last
    assert "ERROR" in last
    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--set=training.num_epochs=abc"],
        ["train", "--num-epochs=abc"],
        ["evaluate", "--model=abc"],
        ["export", "--model=abc", "--output-dir=abc"],
        ["plan", "--memory-gib=abc"],
    ],
)
def test_a_command_that_fails_before_its_run_is_open(opened: Run, arguments: list[str]) -> None:
    assert run_command(arguments) == 2
    run = ended(opened.info.run_id, "FAILED", "abc")
    assert run.data.tags[names.TAG_COMMAND].startswith(f"clew {arguments[0]}")


def test_ctrl_c_before_the_run_is_open(opened: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clew.cli.options.load", interrupt)
    assert run_command(["train"]) == 130
    ended(opened.info.run_id, "KILLED", "stopped by the user")


def test_a_mistake_in_the_program(opened: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no way")

    monkeypatch.setattr("clew.cli.options.load", fail)
    with pytest.raises(ZeroDivisionError):
        run_command(["train"])
    ended(opened.info.run_id, "FAILED", "ZeroDivisionError: no way")


def test_a_run_that_has_ended_stays_as_it_is(opened: Run) -> None:
    MlflowClient().set_terminated(opened.info.run_id, "FINISHED")
    assert run_command(["train", "--num-epochs=abc"]) == 2
    run = MlflowClient().get_run(opened.info.run_id)
    assert run.info.status == "FINISHED"
    assert names.TAG_STOPPED_BECAUSE not in run.data.tags


def test_a_command_that_succeeds_leaves_the_run_to_mlflow(opened: Run) -> None:
    assert run_command(["--help"]) == 0
    assert MlflowClient().get_run(opened.info.run_id).info.status == "RUNNING"


def test_an_error_between_opening_and_use(open_run: Open) -> None:
    with pytest.raises(ConfigError), keeping_reason():  # noqa: PT012
        tracker = open_run()
        raise ConfigError("no such folder")
    ended(tracker.run_id, "FAILED", "no such folder")


def test_an_error_while_a_run_is_opened(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tracking_store / "a file"
    spool.touch()
    monkeypatch.setenv("CLEW_SPOOL", str(spool))
    with pytest.raises(TrackingError):
        open_tracker(TrackingConfig(), kind="train")
    client = MlflowClient()
    assert not client.search_runs([e.experiment_id for e in client.search_experiments()])


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "INTERNAL_ERROR"])
def test_a_run_that_the_store_refuses_leaves_no_folder(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RestException({"error_code": code, "message": "no"})

    monkeypatch.setattr(MlflowClient, "create_run", refuse)
    with pytest.raises(TrackingError):
        open_tracker(TrackingConfig(), kind="train")
    assert list((tracking_store / "spool").iterdir()) == []


def test_ctrl_c_while_a_run_is_opened(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mlflow_store, "MlflowTracker", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_tracker(TrackingConfig(), kind="train")
    client = MlflowClient()
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    ended(run.info.run_id, "KILLED", "stopped by the user")


def test_an_error_in_the_block(open_run: Open) -> None:
    with pytest.raises(ValueError, match="never"), open_run() as tracker:
        raise ValueError("never")
    ended(tracker.run_id, "FAILED", "ValueError: never")


def test_a_reason_that_was_given_stays(open_run: Open) -> None:
    with pytest.raises(KeyboardInterrupt), open_run() as tracker:  # noqa: PT012
        tracker.tags({names.TAG_STOPPED_BECAUSE: "pruned"})
        raise KeyboardInterrupt
    run = MlflowClient().get_run(tracker.run_id)
    assert run.data.tags[names.TAG_STOPPED_BECAUSE] == "pruned"


@pytest.mark.parametrize("status", ["RUNNING", "FAILED"])
def test_a_process_that_died(open_run: Open, status: str) -> None:
    """`mlflow run` itself ends the run of a command that was killed; it knows no reason."""
    tracker = open_run()
    die(tracker)
    if status != "RUNNING":
        MlflowClient().set_terminated(tracker.run_id, status)
    sync_spool()
    ended(tracker.run_id, "FAILED", "its process ended")
