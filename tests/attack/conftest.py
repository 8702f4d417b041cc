"""The files to attack: small files that real commands wrote once."""

from pathlib import Path

import pytest

from tests.attack.material import Material, make_material
from tests.workflows.trained import filled_once


@pytest.fixture(scope="session")
def material(store_template: Path, shared_folder: Path) -> Material:
    """Return files of every kind that Clew reads; tests must not change them."""
    folder = shared_folder / "attacked"
    return Material(folder, **filled_once(folder, store_template, make_material))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that consecutive cases share for their files."""
    return tmp_path_factory.mktemp("case")
