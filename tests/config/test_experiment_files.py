"""Every shipped configuration is accepted, and a run's copy of it is the same configuration."""

from pathlib import Path

import pytest
import yaml

from clew.config.load import from_mapping, load, to_yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    path
    for path in sorted((ROOT / "experiments").glob("*/*.yaml"))
    if path.parent.name not in ("studies", "spaces")
]


def test_there_is_something_to_read():
    folders = {path.parent.name for path in FILES}
    assert folders >= {"link_prediction", "language_modeling", "image_sequences"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_accepted_and_repeats_itself(path: Path):
    config = load(path)
    assert from_mapping(yaml.safe_load(to_yaml(config))) == config
