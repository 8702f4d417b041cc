"""A model that was trained on files of one folder is explained and measured in another folder."""

from pathlib import Path

import pytest

from clew.config.load import from_mapping
from clew.errors import CheckpointError, DataError
from clew.training.manifest import read_manifest
from clew.workflows.evaluate import evaluate
from clew.workflows.explaining.tracin import tracin
from clew.workflows.resume import find_resume_point
from clew.workflows.train import train

TRAIN = "".join(f"e{i}\tr{i % 2}\te{(i * i + 1) % 12}\n" for i in range(12))
TEST, VALID = "e1\tr1\te5\n", "e2\tr0\te5\n"
CONFIG = {
    "data": {"train": "train.txt", "valid": "valid.txt", "test": "test.txt"},
    "model": {"kind": "distmult", "embedding_dim": 4},
    "training": {"num_epochs": 1, "batch_size": 8, "device": "cpu"},
    "tracking": {"log_mfu": False, "log_system_metrics": False},
}


@pytest.fixture
def trained(tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a run that was trained in the folder `first`; the test runs in `second`."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "first/train.txt").write_text(TRAIN)
    (tmp_path / "first/test.txt").write_text(TEST)
    (tmp_path / "first/valid.txt").write_text(VALID)
    monkeypatch.chdir(tmp_path / "first")
    run_id = train(from_mapping(CONFIG), output_dir=tmp_path / "kept").run_id
    assert run_id is not None
    monkeypatch.chdir(tmp_path / "second")
    return run_id


def test_a_run_and_its_folder_are_used_from_another_folder(trained: str, tmp_path: Path) -> None:
    assert read_manifest(tmp_path / "kept/best").folder == str(tmp_path / "first")
    for model in (trained, str(tmp_path / "kept")):
        assert "test/mrr" in evaluate(model).metrics
        assert len(tracin(model, "e1,r1,e5", {}).report.tests) == 1
        assert len(tracin(model, "../first/test.txt", {}).report.tests) == 1


def test_a_run_is_resumed_from_another_folder(trained: str, tmp_path: Path) -> None:
    longer = {"training.num_epochs": "2"}
    kept = tmp_path / "resumed"
    run = train(lambda folder: find_resume_point(trained, longer, folder), output_dir=kept)
    assert read_manifest(kept / "best").folder == str(tmp_path / "first")
    assert run.run_id is not None
    assert "test/mrr" in evaluate(run.run_id).metrics


def test_a_file_of_this_folder_comes_first_and_must_be_the_same(trained: str) -> None:
    Path("train.txt").write_text(TRAIN + "e0\tr0\te9\n")
    with pytest.raises(CheckpointError):
        evaluate(trained)
    Path("train.txt").write_text(TRAIN)
    assert "test/mrr" in evaluate(trained).metrics


@pytest.mark.parametrize("name", ["l" * 240, "a\nb"])
def test_a_folder_with_an_unusual_name(
    tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place = tmp_path / name
    place.mkdir()
    for file, text in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        (place / f"{file}.txt").write_text(text)
    monkeypatch.chdir(place)
    run_id = train(from_mapping(CONFIG)).run_id
    assert run_id is not None
    assert "test/mrr" in evaluate(run_id).metrics
    monkeypatch.chdir(tmp_path)
    if name.isprintable():
        assert "test/mrr" in evaluate(run_id).metrics
    else:  # a message could not name the file in one line
        with pytest.raises(DataError, match=r"train\.txt"):
            evaluate(run_id)


def test_a_file_that_is_nowhere_is_named(trained: str, tmp_path: Path) -> None:
    (tmp_path / "first/train.txt").unlink()
    with pytest.raises(DataError, match=r"train\.txt"):
        evaluate(trained)
