"""What a reference names: a run, a registered version, or a folder of one of several kinds."""

import shutil
from pathlib import Path

import pytest

from clew import names
from clew.errors import CheckpointError, ConfigError, TrackingError
from clew.training.manifest import Manifest, write_manifest
from clew.workflows.open_run import open_run, references_in
from clew.workflows.promote import rollback


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
    ("reference", "kind"),
    [("0" * 32, TrackingError), ("no/such.folder", CheckpointError), ("umls", CheckpointError)],
)
def test_a_run_that_is_not_there(
    tracking_store: Path, reference: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind), open_run(reference, "test") as found:
        found.best()


def test_two_slashes_are_one(tracking_store: Path) -> None:
    with (
        pytest.raises(TrackingError, match="no model 'clew-umls' is registered"),
        open_run("models://clew-umls@champion", "test"),
    ):
        pass


def test_looking_for_a_registered_model_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(TrackingError), open_run("models:/clew-umls@champion", "test"):
        pass
    with pytest.raises(TrackingError):
        rollback("clew-umls")
    assert not list(tmp_path.iterdir())


def test_several_are_an_ensemble(tmp_path: Path) -> None:
    assert references_in("a, b,c") == ["a", "b", "c"]
    (tmp_path / "a,b").mkdir()
    assert references_in(str(tmp_path / "a,b")) == [str(tmp_path / "a,b")]
