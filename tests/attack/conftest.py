"""What is attacked: files that real commands wrote, made once, in tiny sizes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.material import Material, make_material
from tests.workflows.trained import copy_store, dispose_of, use_store


@pytest.fixture(scope="session")
def material(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Material]:
    """Return files of every kind that Clew reads.

    `CLEW_ATTACKED` names a folder to keep them in; the next test run takes them from there.
    """
    kept = os.environ.get("CLEW_ATTACKED")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("attacked")
    if (folder / "runs.json").is_file():
        yield Material(folder, **json.loads((folder / "runs.json").read_text()))
        return
    folder.mkdir(exist_ok=True)
    uri = copy_store(store_template, folder)
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        runs = make_material(folder)
    dispose_of(uri)
    (folder / "runs.json").write_text(json.dumps(runs))
    yield Material(folder, **runs)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the files of one case after the other."""
    return tmp_path_factory.mktemp("case")
