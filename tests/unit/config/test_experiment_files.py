"""Every configuration that the project ships is accepted, and a run's copy of it repeats it."""

from pathlib import Path

import pytest
import yaml

from clew.config.load import from_mapping, load, to_yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("link_prediction", "language_modeling", "image_sequences")
FILES = [path for name in FOLDERS for path in sorted((ROOT / "experiments" / name).glob("*.yaml"))]


def test_there_is_something_to_read():
    assert {path.parent.name for path in FILES} == set(FOLDERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_accepted_and_repeats_itself(path: Path):
    config = load(path)
    assert from_mapping(yaml.safe_load(to_yaml(config))) == config
