"""Tests Clew in environments as people have them, each made afresh: `make cells`.

    python .ci/cells.py [CELL ...] [-- TESTS AND OPTIONS OF PYTEST]

A cell is a Python and its packages: `3.12-pinned` has the versions of constraints.txt,
`3.11-newest` the newest torch, MLflow, Streamlit and pandas, whatever pyproject.toml allows.
Without names, all cells are tried, one after the other. The packages of a cell take 2 to 8 GB in
`build/cells`, and stay there for a look.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CELLS = ("3.11-pinned", "3.12-pinned", "3.13-pinned", "3.11-newest")
NEWEST = ("torch", "mlflow", "streamlit", "pandas")
EVERY_TEST = ("-m", "not slow")


def main(arguments: list[str]) -> int:
    """Try cells, and return 1 if one cannot be installed or fails."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    cells, tests = arguments[:split] or CELLS, arguments[split + 1 :] or EVERY_TEST
    told = {cell: tried(cell, tests) for cell in cells}
    for cell, outcome in told.items():
        print(f"{cell}: {outcome}")
    return int(any("failed" in outcome for outcome in told.values()))


def tried(cell: str, tests: tuple[str, ...] | list[str]) -> str:
    """Make the environment of a cell, run tests in it, and say how it went."""
    version, _, packages = cell.partition("-")
    interpreter, folder = find_python(version), ROOT / "build" / "cells" / cell
    if interpreter is None:
        return f"failed: no Python {version}"
    print(f"== {cell}: {interpreter}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    python, limits = str(folder / "bin/python"), ["--constraint", "constraints.txt"]
    pip = [python, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check"]
    commands = [[interpreter, "-m", "venv", str(folder)], [*pip, *limits, "--editable", ".[test]"]]
    if packages == "newest":
        commands[1:] = [[*pip, *requirements("test")], [*pip, "--no-deps", "--editable", "."]]
    commands.append([python, ".ci/mlflow_environment.py"])
    for command in commands:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return f"failed: cannot be installed ({' '.join(command[1:4])})"
    pytest = [python, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadfile", *tests]
    found = subprocess.run(pytest, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE)
    print(found.stdout)
    return "failed: " * bool(found.returncode) + found.stdout.strip().splitlines()[-1].strip("= ")


def find_python(version: str) -> str | None:
    """Return the first interpreter of a version that runs: on the path, or of pyenv."""
    own = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
            f"versions/{version}.*/bin/python"
        )
    )
    for candidate in (f"python{version}", *map(str, own)):
        try:
            found = subprocess.run([candidate, "--version"], check=False, capture_output=True)
        except OSError:
            continue
        if found.returncode == 0:
            return candidate
    return None


def requirements(extra: str) -> Iterator[str]:
    """Yield what the project and an extra need, with any version of the packages in NEWEST."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [*project["dependencies"], f"clew[{extra}]"]
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.name == project["name"]:
            waiting += [
                each for name in needed.extras for each in project["optional-dependencies"][name]
            ]
        elif needed.marker is None or needed.marker.evaluate():
            yield needed.name if needed.name in NEWEST else str(needed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
