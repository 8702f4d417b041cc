"""`make release` prints one line for each step, and stops at the first that fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

AUTHOR = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
COMMITTER = {"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"}
WORKS = """
case "$1" in
wheel) mkdir -p dist; touch dist/clew-7.8.9.whl dist/clew-7.8.9.tar.gz dist/clew-7.8.9.cdx.json ;;
docs) mkdir -p site; touch site/index.html ;;
esac
"""
PYTHON = """
mkdir -p build/empty/bin
for name in pip clew; do printf '#!/bin/sh\\necho noise of $0\\n' > build/empty/bin/$name; done
chmod +x build/empty/bin/*
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho noise of $0 $1\n{text}")
    path.chmod(0o755)


@pytest.fixture
def project(root: Path, tmp_path: Path) -> Path:
    """Return a repository with the script of a release, and beside it programs that do little."""
    folder = tmp_path / "project"
    (folder / "platform/clew").mkdir(parents=True)
    (folder / "platform/clew/__init__.py").write_text('__version__ = "7.8.9"\n')
    shutil.copytree(root / ".ci", folder / ".ci")
    shutil.copy(root / ".gitignore", folder)
    write_program(tmp_path / "bin/make", WORKS)
    write_program(tmp_path / "bin/python3", PYTHON)
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        run(folder, "git", *arguments)
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | AUTHOR | COMMITTER | {"PATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_each_step_is_a_line_and_the_last_names_the_log(project: Path) -> None:
    done = run(project, ".ci/release")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert not any("noise" in line for line in lines)
    steps = [line.partition(":")[0] for line in lines[:-1]]
    assert sorted(steps[:3]) == ["bill of materials", "sources", "wheel"]
    assert steps[3:] == ["site", "empty environment", "tag"]
    assert "release.log" in lines[-1]
    assert "noise of" in (project / "release.log").read_text()
    assert run(project, "git", "tag").stdout == "v7.8.9\n"
    assert run(project, "git", "status", "--porcelain").stdout == ""


def test_a_step_that_fails_shows_its_end_and_stops(project: Path) -> None:
    write_program(project.parent / "bin/make", "echo the reason >&2; exit 2")
    done = run(project, ".ci/release")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the reason" in done.stderr
    assert "release.log" in done.stderr.splitlines()[-1]
    assert run(project, "git", "tag").stdout == ""


@pytest.mark.parametrize("wrong", ["changed", "tagged"])
def test_what_is_changed_or_tagged_is_refused(project: Path, wrong: str) -> None:
    if wrong == "changed":
        (project / "new").touch()
    else:
        run(project, "git", "tag", "v7.8.9")
    done = run(project, ".ci/release")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert not (project / "dist").exists()
