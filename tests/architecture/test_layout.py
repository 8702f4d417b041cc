"""`platform/` does not hide the standard module of that name, and all make targets exist."""

import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = (
    "demo",
    "test",
    "test-slow",
    "test-all",
    "ui",
    "lint",
    "docs",
    "bench",
    "figures",
    "studies",
)


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


def test_files_that_come_first_are_there(root: Path) -> None:
    named = (root / "tests" / "longest_first.txt").read_text(encoding="utf-8").split()
    assert [path for path in named if not (root / path).is_file()] == []


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
