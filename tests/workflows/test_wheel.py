"""The wheel of a release works without a checkout.

It is installed into an environment with the packages of this one, but without its paths to the
project.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from clew.config.files import presets
from tests.browser.dashboard import wait_for
from tests.ports import free_port
from tests.recorded import run_id_in
from tests.workflows.trained import ROOT

pytestmark = pytest.mark.slow

PRESETS = """
from clew.config.load import load
from clew.config.files import SHIPPED, presets
from clew.config.study import load_space
from clew.config.study import load_study

assert "env" in SHIPPED.parts, SHIPPED
for name in presets():
    load(name)
load("experiments/link_prediction/umls.yaml")
load_study("training")
load_space("conve", load("umls"))
print(*presets())
"""
PAGES = """
import clew.ui
from streamlit.testing.v1 import AppTest
app = AppTest.from_file(clew.ui.__path__[0] + "/app.py", default_timeout=300).run()
assert not app.exception, app.exception
assert "env" in clew.ui.__path__[0], clew.ui.__path__
print(*(item.value for item in [*app.title, *app.code]))
"""
SMALL = ["--embedding-dim=24", "--output-channels=6", "--num-epochs=1", "training.device=cpu"]
Run = Callable[..., subprocess.CompletedProcess[str]]


def tracked_files() -> list[str]:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout, so the project's files cannot be told from others")
    return [name for name in found.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel that was built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    source, env = folder / "source", folder / "env"
    for name in tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    succeed(build)
    venv.create(env, with_pip=False, symlinks=True)
    python = env / "bin" / "python"
    variables = {"base": str(env), "platbase": str(env)}
    site = Path(sysconfig.get_path("purelib", scheme="venv", vars=variables))
    (site / "packages.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    (wheel,) = folder.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # The editable package of this environment is on the path; pip would take it for installed.
    succeed([*pip, "--ignore-installed", "--no-deps", "--no-index", str(wheel)])
    return env


def succeed(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Run a program of this environment in an empty folder."""

    def run_there(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(environment / "bin" / program), *arguments],
            cwd=tmp_path, env=bare(tmp_path), check=False, capture_output=True, text=True,
        )  # fmt: skip

    return run_there


def bare(home: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("OMP_NUM_THREADS",) if key in os.environ}
    return kept | {"PATH": "/usr/bin:/bin", "HOME": str(home)}


def test_everything_belongs_to_one_package(environment: Path) -> None:
    (site,) = environment.glob("lib/*/site-packages")
    found = {path.name for path in site.iterdir() if not path.name.endswith((".dist-info", ".pth"))}
    assert found <= {"clew", "__pycache__"}
    for name in ("py.typed", "api/__init__.py", "ui/.streamlit/config.toml", "ui/app.py"):
        assert (site / "clew" / name).is_file(), f"the wheel lacks {name}"
    packaged = [path for path in (site / "clew" / "presets").rglob("*") if path.is_file()]
    assert {path.suffix for path in packaged} == {".yaml", ".json"}
    assert (site / "clew/presets/studies/results/training.json").is_file()


def test_presets_come_along(run: Run) -> None:
    done = run("python", "-c", PRESETS)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(presets())


def test_a_model_is_trained_and_asked(run: Run, tmp_path: Path) -> None:
    help_text = run("clew", "demo", "--help")
    assert help_text.returncode == 0, help_text.stderr
    trained = run("clew", "train", *SMALL)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "mlflow.db").is_file()
    model = f"--model={run_id_in(trained.stdout)}"
    asked = run("clew", "predict", model, "--head=cell", "--relation=part_of")
    assert asked.returncode == 0, asked.stderr


def test_the_dashboard_draws_its_first_page(run: Run) -> None:
    done = run("python", "-c", PAGES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Overview clew demo"


@pytest.fixture
def served(environment: Path, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [str(environment / "bin" / "clew"), "ui", f"--port={port}"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=bare(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(60)


def test_the_dashboard_is_served(served: str) -> None:
    wait_for(served, seconds=300)
    with urllib.request.urlopen(served, timeout=60) as page:
        assert "html" in page.headers["Content-Type"]
        assert b"streamlit" in page.read().lower()
