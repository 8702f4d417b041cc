"""What is attacked: files that real commands wrote, made once, in tiny sizes."""

from pathlib import Path

import pytest

from tests.attack.material import Material, make_material
from tests.made_once import made_once
from tests.workflows.trained import copy_store, dispose_of, use_store


@pytest.fixture(scope="session")
def material(store_template: Path, shared_folder: Path) -> Material:
    """Return files of every kind that Clew reads; nothing may change them."""

    def make(folder: Path) -> dict[str, str]:
        uri = copy_store(store_template, folder)
        with pytest.MonkeyPatch.context() as patch:
            use_store(patch, uri)
            runs = make_material(folder)
        dispose_of(uri)
        return runs

    folder = shared_folder / "attacked"
    return Material(folder, **made_once(folder, make))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the files of one case after the other."""
    return tmp_path_factory.mktemp("case")
