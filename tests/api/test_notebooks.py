"""The example notebooks run from top to bottom, and their results match their text."""

import runpy
from pathlib import Path
from typing import Any

import pytest

import clew

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def execute(name: str) -> dict[str, Any]:
    """Run a notebook in the current folder and store, and return its variables."""
    return runpy.run_path(str(NOTEBOOKS / f"{name}.py"))


@pytest.fixture(autouse=True)
def own_folder(tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shares_add_up(why: clew.Attribution) -> bool:
    frame = why.to_frame()
    parts = frame[[name for name in frame if name.startswith("part_")]].sum(axis=1)
    return bool(parts.tolist() == pytest.approx(frame["influence"].tolist(), rel=1e-3))


def test_link_prediction() -> None:
    found = execute("link_prediction")
    assert len(found["answers"]) == 10
    assert len(found["facts"]) == 20
    assert "causes" not in set(found["other"]["relation"])
    assert found["chart"].to_dict()
    assert shares_add_up(found["why"])


def test_text() -> None:
    found = execute("text")
    assert "zwieback" in found["why"].proponents["text"][0]
    assert found["chart"].to_dict()
    assert "zwieback" in found["why"]._repr_html_()
    assert shares_add_up(found["why"])
    with pytest.raises(clew.errors.ConfigError):
        found["run"].load().predict(head="a", relation="b")


def test_image_sequences() -> None:
    found = execute("image_sequences")
    assert list(found["why"].proponents["rank"]) == [1, 2, 3, 4, 5]
    assert found["chart"].to_dict()
    assert "predicted" in found["why"]._repr_html_()
    assert shares_add_up(found["why"])


def test_every_notebook_is_executed() -> None:
    executed = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} <= executed
