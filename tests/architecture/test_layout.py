"""The top level stays small, and `platform/` never hides the standard module of that name."""

import subprocess
import sys
from pathlib import Path

import pytest

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    ".streamlit",
    "CHANGELOG.md",
    "LICENSE",
    "MLproject",
    "Makefile",
    "README.md",
    "conda.yaml",
    "constraints.txt",
    "experiments",
    "platform",
    "pyproject.toml",
    "python_env.yaml",
    "tests",
    "ui",
}
TARGETS = ("demo", "test", "ui", "lint", "bench")


def test_top_level_is_fixed(root: Path, project_files: list[Path]) -> None:
    found = {path.relative_to(root).parts[0] for path in project_files}
    assert found <= TOP_LEVEL


def test_platform_is_a_source_root_and_no_package(root: Path) -> None:
    assert not (root / "platform" / "__init__.py").exists()
    assert [path.name for path in (root / "platform").glob("*/__init__.py")] == ["__init__.py"]


@pytest.mark.parametrize("folder", [".", "platform", "tests"])
def test_standard_platform_module_wins(root: Path, folder: str) -> None:
    program = "import importlib.util; print(importlib.util.find_spec('platform').origin)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root / folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip().endswith("platform.py"), found.stderr


def test_tests_are_no_package(root: Path) -> None:
    assert list((root / "tests").rglob("__init__.py")) == []


def test_every_room_says_what_it_is(root: Path) -> None:
    rooms = [path for path in (root / "platform" / "clew").iterdir() if (path / "base.py").exists()]
    for init in (path / "__init__.py" for path in rooms):
        assert init.read_text(encoding="utf-8").startswith('"""'), init


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_what_people_type(root: Path, target: str) -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert plan.returncode == 0, plan.stderr
    assert ".ci/setup" in plan.stdout


def test_ci_runs_what_people_run(root: Path) -> None:
    text = (root / ".ci" / "run").read_text(encoding="utf-8")
    assert text.rstrip().splitlines()[-2:] == ["make lint", "make test"]
    assert "set -euo pipefail" in text
