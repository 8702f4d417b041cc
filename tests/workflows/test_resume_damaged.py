"""With a damaged checkpoint, a run resumes from the newest intact one."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.__main__ import run as run_command
from clew.config.schema import RunConfig
from clew.errors import CheckpointError
from clew.training.checkpoints import require_whole
from clew.training.manifest import list_checkpoints
from clew.workflows.resume import ResumePoint, find_in_folder, find_resume_point
from clew.workflows.train import train
from tests.made_once import copy_filled
from tests.workflows.test_resume import config_of, interrupt
from tests.workflows.trained import StoredRun, copy_store, dispose_of, use_store

pytestmark = pytest.mark.slow

Damage = Callable[[Path], None]


def settings() -> RunConfig:
    return config_of(evaluation__every_epochs=1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.unlink()  # other links to the same file stay as they were
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.unlink()
    path.touch()


DAMAGES: dict[str, tuple[str, Damage]] = {
    "cut model": ("model.safetensors", cut),
    "flipped optimizer": ("optimizer.safetensors", flip),
    "lost generators": ("training.safetensors", Path.unlink),
    "cut state": ("training.json", cut),
    "empty manifest": ("manifest.json", empty),
    "no manifest": ("manifest.json", Path.unlink),
}


class Stopped:
    """A run that was stopped after three epochs, in the store and in a folder."""

    def __init__(self, run_id: str, kept: Path, by: str) -> None:
        uri = MlflowClient().get_run(run_id).info.artifact_uri
        self.run_id, self.kept, self.by = run_id, kept, by
        self.root = kept if by == "folder" else Path(uri.removeprefix("file://"))

    def find(self, downloads: Path) -> ResumePoint:
        if self.by == "folder":
            return find_in_folder(self.kept, None, {})
        return find_resume_point(self.run_id, {}, downloads)

    def resume(self) -> Path:
        """Resume, and return the folder of the resumed run's files."""
        if self.by == "folder":
            train(self.find, checkpoint_dir=self.kept)
            return self.kept
        train(self.find, output_dir=self.kept.parent / "resumed")
        return self.kept.parent / "resumed"


@pytest.fixture(scope="module")
def stopped_once(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """Return a stopped run, with a copy of its checkpoints in `kept`, and a complete run."""
    folder = tmp_path_factory.mktemp("stopped") / "store"
    folder.mkdir()
    uri = copy_store(store_template, folder)
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        train(settings(), output_dir=folder / "whole")
        run_id = interrupt(settings(), after=3, checkpoint_dir=folder / "kept")
    dispose_of(uri)
    return StoredRun(uri, run_id, folder)


@pytest.fixture(params=["store", "folder"])
def stopped(
    request: pytest.FixtureRequest,
    stopped_once: StoredRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stopped]:
    """Return a copy of the stopped run in a new store, and use this store."""
    copy = tmp_path / "store"
    copy_filled(stopped_once.folder, copy)
    uri = f"sqlite:///{copy / 'mlflow.db'}"
    use_store(monkeypatch, uri)
    yield Stopped(stopped_once.run_id, copy / "kept", request.param)
    dispose_of(uri)


def require_equal(resumed: Path, whole: Path) -> None:
    for path in [whole / "best", *sorted((whole / "checkpoints").iterdir())]:
        other = resumed / path.relative_to(whole)
        for name in ("model.safetensors", "optimizer.safetensors"):
            if (path / name).exists():
                assert (path / name).read_bytes() == (other / name).read_bytes(), (path.name, name)
        require_whole(other)
    steps = [[r.step for r in list_checkpoints(f / "checkpoints")] for f in (whole, resumed)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_good_checkpoint_is_taken_and_this_is_said_in_one_line(
    stopped: Stopped, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, spoil = DAMAGES[damage]
    spoil(stopped.root / "checkpoints" / "epoch-0003" / name)
    with caplog.at_level(logging.WARNING, "clew"):
        point = stopped.find(tmp_path / "downloads")
    assert point.checkpoint.name == "epoch-0002"
    assert [path.name for path in point.earlier] == ["epoch-0001"]
    (line,) = [r.getMessage() for r in caplog.records if "; continuing" in r.getMessage()]
    source = str(stopped.kept) if stopped.by == "folder" else f"run {stopped.run_id}"
    assert line.startswith(f"{source}: epoch-0003")
    assert line.endswith("; continuing from epoch-0002")
    assert name in line
    assert "downloads" not in line
    assert len(line.splitlines()) == 1


def test_the_result_equals_the_uninterrupted_run(stopped: Stopped) -> None:
    flip(stopped.root / "checkpoints" / "epoch-0003" / "optimizer.safetensors")
    require_equal(stopped.resume(), stopped.kept.parent / "whole")


def test_a_damaged_best_checkpoint_is_made_again(
    stopped: Stopped, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(stopped.root / "best" / "model.safetensors")
    point = stopped.find(tmp_path / "downloads")
    assert point.checkpoint.name == "epoch-0002"
    assert point.best is None
    assert "best is damaged or missing; continuing from epoch-0002" in caplog.text
    require_equal(stopped.resume(), stopped.kept.parent / "whole")


def test_where_every_checkpoint_is_damaged_the_reasons_are_in_one_line(
    stopped: Stopped, tmp_path: Path
) -> None:
    for path in (stopped.root / "checkpoints").iterdir():
        cut(path / "training.json")
    with pytest.raises(CheckpointError) as caught:
        stopped.find(tmp_path / "downloads")
    line = str(caught.value)
    assert all(f"epoch-000{n}/training.json: changed or damaged" in line for n in (1, 2, 3))
    assert "downloads" not in line
    assert len(line.splitlines()) == 1


def test_what_a_killed_process_left_in_the_folder_is_cleared(
    stopped_once: StoredRun, tracking_store: Path, tmp_path: Path
) -> None:
    kept = shutil.copytree(stopped_once.folder / "kept", tmp_path / "kept")
    half = kept / "checkpoints" / ".epoch-0004.4711.tmp"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    stray = kept / "checkpoints" / "step-00000050"  # of a stop in the middle of an epoch
    (kept / "checkpoints" / "epoch-0003").rename(stray)
    flip(stray / "model.safetensors")
    train(lambda _: find_in_folder(kept, None, {}), checkpoint_dir=kept)
    names = sorted(path.name for path in (kept / "checkpoints").iterdir())
    wanted = [f"epoch-{epoch:04d}" for epoch in (1, 2, 3, 4)]
    assert names == [".step-00000050.aside", *wanted]


@pytest.mark.parametrize("command", ["evaluate", "tracin", "promote", "export"])
def test_a_flipped_bit_in_a_run_of_the_store_is_named_without_a_temporary_folder(
    tracking_store: Path, capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path
) -> None:
    run_id = train(config_of(training__num_epochs=1)).run_id or ""
    uri = MlflowClient().get_run(run_id).info.artifact_uri
    folder = "checkpoints/epoch-0001" if command == "tracin" else "best"
    flip(Path(uri.removeprefix("file://")) / folder / "model.safetensors")
    arguments = {
        "evaluate": ["--model", run_id],
        "tracin": ["--model", run_id, "--test", "virus,causes,pathologic_function"],
        "promote": ["--run-id", run_id],
        "export": ["--model", run_id, "--output-dir", str(tmp_path / "out")],
    }[command]
    assert run_command([command, *arguments]) == (3 if command == "promote" else 2)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{folder}/model.safetensors: changed or damaged since it was written" in line
    assert run_id in line
    assert tempfile.gettempdir() + "/clew" not in line
