"""Shared fixtures: the project's root and its files."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def project_files(root: Path) -> list[Path]:
    """Return every file of the project: tracked, or new and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout, so the project's files cannot be told from others")
    paths = [root / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]
