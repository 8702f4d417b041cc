"""What a reference names: a run, a registered version, or a folder of one of several kinds."""

import shutil
from pathlib import Path

import pytest

from clew import names
from clew.errors import CheckpointError, ConfigError, TrackingError
from clew.training.manifest import Manifest, write_manifest
from clew.workflows.open_run import open_run, references_in


def write(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    write_manifest(folder, Manifest(step, step, 0.5, "link_prediction", {}, "a", "b"))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a folder with the files of a run."""
    for step in (5, 10):
        write(tmp_path / "run" / "checkpoints" / f"epoch-{step:04}", step)
    shutil.copytree(tmp_path / "run/checkpoints/epoch-0005", tmp_path / "run/best")
    (tmp_path / "run/history.parquet").touch()
    return tmp_path / "run"


@pytest.mark.parametrize("given", ["", "checkpoints", "best_model.pt"])
def test_a_folder_of_a_run(run: Path, given: str) -> None:
    with open_run(str(run / given), "test") as found:
        assert [record.step for record in found.checkpoints()] == [5, 10]
        assert found.kept(names.ARTIFACT_HISTORY) == run / "history.parquet"
        assert found.run_id is None
        if given != "checkpoints":
            assert found.best() == run / "best"


def test_a_folder_of_one_checkpoint(run: Path) -> None:
    place = run / "checkpoints" / "epoch-0010"
    with open_run(str(place), "test") as found:
        assert found.best() == place
        assert [record.path for record in found.checkpoints()] == [place]


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    with open_run(str(tmp_path), "test") as found, pytest.raises(CheckpointError):
        found.checkpoints()


def test_a_pickled_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "best_model.pt").touch()
    with pytest.raises(CheckpointError), open_run(str(tmp_path / "best_model.pt"), "test"):
        pass


@pytest.mark.parametrize("reference", ["", " ", "name@champion", "models:/name", "models:/@a"])
def test_what_names_nothing(tracking_store: Path, reference: str) -> None:
    with pytest.raises(ConfigError), open_run(reference, "test"):
        pass


@pytest.mark.parametrize(
    ("reference", "kind"), [("0" * 32, TrackingError), ("no/such.folder", CheckpointError)]
)
def test_a_run_that_is_not_there(
    tracking_store: Path, reference: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind), open_run(reference, "test") as found:
        found.best()


def test_several_are_an_ensemble(tmp_path: Path) -> None:
    assert references_in("a, b,c") == ["a", "b", "c"]
    (tmp_path / "a,b").mkdir()
    assert references_in(str(tmp_path / "a,b")) == [str(tmp_path / "a,b")]
