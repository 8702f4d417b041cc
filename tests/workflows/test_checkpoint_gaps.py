"""An explanation sums over every checkpoint of a run, or names the missing one."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from clew.__main__ import run as run_command
from clew.link_prediction.sources import BUNDLED
from clew.runs.influence_report import InfluenceReport, read_influence_json
from clew.training.manifest import MANIFEST_FILE
from clew.training.trainer import Trainer
from tests.edited import edit_manifest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "experiments" / "link_prediction" / "umls.yaml")
SMALL = [
    "model.embedding_dim=16",
    "model.output_channels=4",
    "training.num_epochs=3",
    "training.checkpoint_frequency=1",
    "training.device=cpu",
    "training.num_threads=1",
    "tracking.log_mfu=false",
]
TEST = (BUNDLED / "umls" / "test.txt").read_text().splitlines()[0].replace("\t", ",")

Clew = Callable[..., str]


@pytest.fixture
def clew(
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Clew:
    """Return a function that runs a command and returns its error line, or an empty text."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        found, said = run_command(list(arguments)), capsys.readouterr().err
        assert found == code, said
        lines = [line for line in said.splitlines() if line.startswith("clew: error: ")]
        assert len(lines) == (code != 0)
        return "".join(lines)

    return run


def train(clew: Clew, *settings: str) -> str:
    """Train with a copy of all checkpoints in `out`, and return the run's id."""
    clew("train", "--config", CONFIG, "--output-dir", "out", *SMALL, *settings)
    (manifest, *_) = Path("out/checkpoints").glob(f"*/{MANIFEST_FILE}")
    return str(json.loads(manifest.read_text())["run_id"])


def explain(clew: Clew, model: str, output: str) -> InfluenceReport:
    clew("tracin", "--model", model, "--test", TEST, "--output", output)
    return read_influence_json(Path(output) / "influence.json")


def stored_checkpoints(run_id: str) -> Path:
    """Return the folder of the store that holds a run's checkpoints."""
    location = MlflowClient().get_run(run_id).info.artifact_uri.removeprefix("file://")
    return Path(location) / "checkpoints"


def test_the_output_folder_explains_as_the_run_does(clew: Clew) -> None:
    run_id = train(clew, "training.max_steps=35", "training.checkpoint_every_steps=5")
    by_run, by_folder = (explain(clew, model, f"by-{model[:3]}") for model in (run_id, "out"))
    steps = [checkpoint.step for checkpoint in by_run.model.checkpoints]
    assert steps == [5, 10, 13, 15, 20, 25, 26, 30, 35]
    assert by_folder.model.checkpoints == by_run.model.checkpoints
    assert by_folder.tests == by_run.tests
    assert all(checkpoint.weight > 0 for checkpoint in by_run.model.checkpoints)


def test_a_folder_kept_during_training_stays_whole_beside_one_written_at_its_end(
    clew: Clew,
) -> None:
    train(clew, "--checkpoint-dir", "kept")
    kept, out = explain(clew, "kept", "by-kept"), explain(clew, "out", "by-out")
    assert len(kept.model.checkpoints) == 3
    assert kept.tests == out.tests
    for name in ("config.yaml", "best/manifest.json"):
        assert Path("kept", name).read_bytes() == Path("out", name).read_bytes()


def test_a_folder_with_a_gap_or_a_foreign_checkpoint_is_refused(clew: Clew) -> None:
    run_id = train(clew)
    folder = Path("out/checkpoints")
    refused = ("tracin", "--model", "out", "--test", TEST)
    for lost, says in (
        ("epoch-0001", "out: the checkpoint of step 13, before epoch-0002 (step 26), is missing"),
        ("epoch-0002", "out: the checkpoint of step 26, before epoch-0003 (step 39), is missing"),
        ("epoch-0003", "out: the checkpoint of the last step, 39, is missing"),
    ):
        (folder / lost).rename(lost)
        assert says in clew(*refused, code=2)
        Path(lost).rename(folder / lost)
    shutil.copytree(folder / "epoch-0002", folder / "epoch-0004")
    edit_manifest(folder / "epoch-0004", lambda m: m.update(step=30, previous_step=20))
    assert "epoch-0004 (step 30) follows step 20, but there is" in clew(*refused, code=2)
    shutil.rmtree(folder / "epoch-0004")
    shutil.rmtree(folder / "epoch-0003")
    line = clew("tracin", "--model", "out/checkpoints", "--test", TEST, code=2)
    assert "out/checkpoints: the checkpoint of the last step, 39, is missing" in line
    (stored_checkpoints(run_id) / "epoch-0003").rename("epoch-0003")
    says = clew("tracin", "--model", run_id, "--test", TEST, code=2)
    assert f"run {run_id}: the checkpoint of the last step, 39, is missing" in says
    Path("epoch-0003").rename(stored_checkpoints(run_id) / "epoch-0003")
    shutil.rmtree(stored_checkpoints(run_id) / "epoch-0002")
    says = clew("tracin", "--model", run_id, "--test", TEST, code=2)
    assert (
        f"run {run_id}: the checkpoint of step 26, before epoch-0003 (step 39), is missing" in says
    )


def test_one_checkpoint_by_itself_can_be_explained(clew: Clew) -> None:
    train(clew)
    for name in ("out/best", "out/checkpoints/epoch-0002"):
        (checkpoint,) = explain(clew, name, name.replace("/", "-")).model.checkpoints
        assert checkpoint.weight > 0


def test_a_run_that_stops_where_a_checkpoint_is_due_and_is_resumed_has_no_gap(
    clew: Clew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in the last step of an epoch, when a checkpoint is due anyway."""
    step = Trainer._step

    def interrupted(trainer: Trainer[Any], window: list[Any]) -> None:
        step(trainer, window)
        if trainer.progress.step == 26:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = [*SMALL, "training.checkpoint_every_steps=13"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        line = clew("train", "--config", CONFIG, *settings, code=130)
    stopped = line.rpartition(" ")[2]
    clew("train", "--resume", stopped, "--output-dir", "resumed")
    clew("train", "--config", CONFIG, "--output-dir", "whole", *settings)
    resumed, whole = (explain(clew, name, f"by-{name}") for name in ("resumed", "whole"))
    assert [checkpoint.step for checkpoint in whole.model.checkpoints] == [13, 26, 39]
    assert resumed.model.checkpoints == whole.model.checkpoints
    assert resumed.tests == whole.tests
