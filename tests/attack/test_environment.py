"""Arbitrary values of the environment variables that locate runs, data and files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.attack.cases import attempt, fuzz
from tests.attack.damage import texts
from tests.attack.material import Material
from tests.attack.test_command_line import ends_well
from tests.workflows.trained import use_store

pytestmark = pytest.mark.slow

STARTS = (
    "", "sqlite:///", "sqlite://", "sqlite+x:///", "file:", "file://", "file:///nowhere/",
    "http://127.0.0.1:1/", "https://user:secret@127.0.0.1:1/", "http://", "http://[", "http://:x",
    "postgresql://a:b@127.0.0.1:1/", "postgresql+none://", "mysql://127.0.0.1:1/", "mssql://",
    "databricks", "databricks-uc://", "uc:", "s3://", "://", "x://", "~", "~nobody/", "/dev/null",
    "/proc/self/", "/dev/full", "%", "sqlite:///%2e%2e/", "sqlite:////dev/null", "sqlite:////proc/",
)  # fmt: skip
"""Parts of a variable's value: they name no other machine and no server that answers."""
READ = ("MLFLOW_TRACKING_URI", "CLEW_DATA", "CLEW_USER")
WRITTEN = ("CLEW_SPOOL", "CLEW_ARTIFACTS", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
COMMANDS = (
    ("runs",),
    ("sync",),
    ("data", "--dataset=codex-s"),
    ("predict", "--model=models:/graph@champion", "--head=virus", "--relation=location_of"),
    ("train", "data.name=codex-s", "training.max_steps=1"),
)


@pytest.fixture
def in_use(material: Material, tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        patch.chdir(tmp_path)
        yield


def drawn_value(draw: DrawFn, *, stays_here: bool) -> str:
    """Return a value that the system allows; optionally a path in the current folder."""
    text = draw(texts).replace("\0", "").encode("utf-8", "replace").decode()
    if stays_here:
        return text.replace("..", "").lstrip("/~")
    start = draw(st.sampled_from(STARTS))
    return start + (text.replace("..", "").lstrip("/") if start.startswith("sqlite") else text)


def test_environments(in_use: None) -> None:
    before = dict(os.environ)

    def case(draw: DrawFn) -> None:
        names = draw(st.lists(st.sampled_from(READ + WRITTEN), min_size=1, max_size=3, unique=True))
        given = {name: drawn_value(draw, stays_here=name in WRITTEN) for name in names}
        command = list(draw(st.sampled_from(COMMANDS)))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            attempt(lambda: ends_well(command))
        assert dict(os.environ) == before

    fuzz(0.005, case)
