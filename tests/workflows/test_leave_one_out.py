"""Image sequences from the command line: one group held out, each group in turn, bad input."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import clew
from clew import names
from clew.__main__ import run
from clew.cli import cli
from clew.config.load import load
from clew.errors import CheckpointError, Interrupted
from clew.image_sequences.errors import RegressionResult
from clew.runs.reading.runs import download_artifact, find_run, list_artifact_folders
from clew.runs.reading.search import RunQuery, find_cell, search_runs
from clew.training.progress import Watch
from clew.workflows import leave_one_out
from clew.workflows.child import train_in_child
from clew.workflows.leave_one_out import train_each_group
from tests.image_sequences.sequence_files import sequence_columns, write_folder

pytestmark = pytest.mark.slow


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    write_folder(tmp_path / "clouds", sequence_columns(groups=3, frames_in_group=8))
    content = {
        "data": {
            "kind": "image_sequences",
            "path": str(tmp_path / "clouds"),
            "temporal_frames": 2,
            "hold_out_validation": False,
            "leave_one_group_out": True,
        },
        "model": {
            "kind": "sequence_regression",
            "architecture": "cnn",
            "channels": [8],
            "norm_groups": 4,
        },
        "training": {"num_epochs": 1, "batch_size": 8, "device": "cpu"},
        "evaluation": {"every_epochs": 1},
        "tracking": {"log_mfu": False},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_each_group_is_the_test_group_once(
    config_file: Path, tracking_store: Path, tmp_path: Path
) -> None:
    result = train_each_group(load(config_file), output_dir=tmp_path / "out")
    assert result.run_id is not None
    assert find_run(result.run_id).tags[names.TAG_UNIT] == "km"
    folder = download_artifact(result.run_id, names.ARTIFACT_EVALUATION, tmp_path)
    whole = RegressionResult.read(folder / "test_predictions.parquet")
    assert list(dict.fromkeys(whole.group)) == ["flight 0", "flight 1", "flight 2"]
    assert len(whole.target) == 3 * 7
    assert whole.metrics("test")["test/mae"] == pytest.approx(result.metrics["test/mae"])
    assert {"test/ridge_mae", "test/interval_coverage"} <= result.metrics.keys()
    assert "flight 1" in result.table()
    repeated = load(tmp_path / "out" / "group-01" / "config.yaml")
    assert repeated.data.test_group == "flight 1"
    assert not repeated.data.leave_one_group_out
    refusal = f"{result.run_id} is of kind evaluate, which has no model; give the id of a training"
    with pytest.raises(CheckpointError, match=refusal):
        clew.load(result.run_id)
    with pytest.raises(CheckpointError, match=refusal):
        clew.attribute(result.run_id)


def test_a_cell_of_a_study_is_the_run_of_all_groups(
    config_file: Path, tracking_store: Path
) -> None:
    tags = {names.TAG_CELL: "a cell", names.TAG_STUDY: "clouds"}
    result = train_in_child(load(config_file), tags=tags)
    cell = find_cell("a cell")
    assert cell is not None
    assert cell.run_id == result.run_id
    assert cell.metrics["test/mae"] == result.metrics["test/mae"]


class Stopping(Watch):
    """Stops the training in its second epoch, as a scheduler does."""

    steps = 0

    def before_step(self) -> None:
        self.steps += 1
        if self.steps == 4:
            os.kill(os.getpid(), signal.SIGTERM)


class StoppingAtOnce(Watch):
    """Ends the training before there is a checkpoint."""

    def before_step(self) -> None:
        raise Interrupted("stopped")


@pytest.mark.parametrize("watch", [Stopping, StoppingAtOnce])
@pytest.mark.parametrize("keeps_checkpoints", [False, True])
def test_groups_go_on_where_they_were_stopped(
    config_file: Path,
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    keeps_checkpoints: bool,
    watch: type[Watch],
) -> None:
    two_epochs = {"training.num_epochs": 2, "evaluation.every_epochs": 2}
    settings = ["--config", str(config_file), *(f"{k}={v}" for k, v in two_epochs.items())]
    if keeps_checkpoints:
        settings += ["tracking.log_checkpoints=false", f"--checkpoint-dir={tmp_path / 'kept'}"]
    whole = train_each_group(load(config_file, two_epochs))
    train = leave_one_out.train

    def train_until_stopped(fold: Any, **options: Any) -> Any:
        stops = fold.data.test_group == "flight 1"
        return train(fold, watch=watch() if stops else None, **options)

    with monkeypatch.context() as patch:
        patch.setattr(leave_one_out, "train", train_until_stopped)
        assert run(["train", *settings]) == 130
    assert "to continue all groups: clew train --config FILE --resume" in capsys.readouterr().err
    query = RunQuery(kind=names.KIND_EVALUATE, status="KILLED")
    (stopped,) = search_runs(query).runs
    result = CliRunner().invoke(cli, ["train", *settings, "--resume"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    resumed = find_run(result.output.split()[1])
    assert resumed.tags[names.TAG_RESUMED_FROM] == stopped.run_id
    assert {k: resumed.metrics[k] for k in whole.metrics} == whole.metrics
    parts = search_runs(RunQuery(kind=names.KIND_TRAIN, parent_run=resumed.run_id)).runs
    assert {part.name for part in parts} == {"without flight 1", "without flight 2"}


def test_nothing_to_resume(
    config_file: Path, tracking_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "--config", str(config_file), "--resume"]) == 2
    assert "finished, or there is none" in capsys.readouterr().err


def test_checkpoints_of_another_group_are_refused(
    config_file: Path,
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = ["--config", str(config_file), f"--checkpoint-dir={tmp_path / 'kept'}"]
    train = leave_one_out.train

    def fail_after_the_first(fold: Any, **options: Any) -> Any:
        if fold.data.test_group == "flight 0":
            return train(fold, **options)
        return train(fold, watch=StoppingAtOnce(), **options)

    with monkeypatch.context() as patch:
        patch.setattr(leave_one_out, "train", fail_after_the_first)
        assert run(["train", *settings]) == 130
    shutil.rmtree(tmp_path / "kept" / "group-01")
    (tmp_path / "kept" / "group-00").rename(tmp_path / "kept" / "group-01")
    capsys.readouterr()
    assert run(["train", *settings, "--resume"]) == 2
    assert "data.test_group: run" in capsys.readouterr().err


def test_several_processes_are_refused(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["train", "--config", str(config_file)]) == 2
    assert "start it without torchrun" in capsys.readouterr().err


def test_one_run_from_the_command_line(config_file: Path, tracking_store: Path) -> None:
    arguments = ["train", "--config", str(config_file), "--temporal-frames", "3"]
    held_out = ["data.leave_one_group_out=false", "data.test_group=flight 0"]
    result = CliRunner().invoke(cli, [*arguments, *held_out], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "test/mae" in result.output
    run_id = result.output.split()[1]
    tags = find_run(run_id).tags
    assert tags[names.TAG_TASK] == "image_sequence_regression"
    assert tags["clew.test_group"] == "flight 0"
    assert "best" in list_artifact_folders(run_id)


def test_the_data_are_described(config_file: Path) -> None:
    result = CliRunner().invoke(cli, ["data", "--config", str(config_file)], catch_exceptions=False)
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert lines["frames"] == "24"
    assert lines["groups"] == "flight 0, flight 1, flight 2"
    assert "windows to train       14" in result.output


def test_a_group_that_does_not_exist(
    config_file: Path, capsys: pytest.CaptureFixture[str], tracking_store: Path
) -> None:
    code = run(
        ["train", "--config", str(config_file), "data.leave_one_group_out=false",
         "data.test_group=flight 9"]
    )  # fmt: skip
    assert code == 2
    assert "flight 9" in capsys.readouterr().err
