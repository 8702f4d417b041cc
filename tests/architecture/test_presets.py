"""Configurations are found by name in any folder."""

import logging
from pathlib import Path

import pytest

from clew.config.files import find, presets, spaces, studies
from clew.config.load import load
from clew.config.study import load_study
from clew.errors import ConfigError


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_preset_is_the_file_of_the_experiments(root: Path) -> None:
    shipped = (root / "experiments").glob("*/*.yaml")
    files = [path for path in shipped if path.parent.name not in ("studies", "spaces")]
    assert {path.resolve() for path in presets().values()} == set(files)
    assert len(presets()) == len(files), "two configurations have one name"
    assert {p.resolve() for p in studies().values()} == set(
        (root / "experiments/studies").glob("*.yaml")
    )
    assert {p.resolve() for p in spaces().values()} == set(
        (root / "experiments/spaces").glob("*.yaml")
    )


def test_a_name_and_the_path_of_the_project_mean_the_same(
    elsewhere: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, path in presets().items():
        here = f"experiments/{path.parent.name}/{path.name}"
        assert load(name) == load(here) == load(root / here)
    assert load_study("tracin").variants == load_study(find("tracin", studies)).variants
    assert caplog.text == ""


def test_a_path_for_another_folder_takes_the_preset_and_says_so(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load("configs/colab_optimized.yaml") == load("colab_optimized")
    assert (
        "configs/colab_optimized.yaml does not exist; using the colab_optimized that" in caplog.text
    )


def test_a_file_wins_over_a_preset(elsewhere: Path) -> None:
    (elsewhere / "umls").write_text("data: {name: own}\n")
    assert load("umls").data.source == "own"


def test_a_wrong_name_is_answered_with_near_ones(elsewhere: Path) -> None:
    with pytest.raises(ConfigError, match="'umls'"):
        load("umsl")
