"""What must start fast imports nothing heavy, checked in a fresh interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def modules_of(package: str, root: Path) -> list[str]:
    """Return the package and every module below it."""
    source = root / "platform"
    folder = source.joinpath(*package.split("."))
    if not folder.is_dir():
        return [package]
    files = [path.relative_to(source).with_suffix("") for path in folder.rglob("*.py")]
    return sorted({".".join(path.parts).removesuffix(".__init__") for path in files})


def heavy_after_import(modules: list[str], heavy: list[str], root: Path) -> list[str]:
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return list(json.loads(result.stdout.splitlines()[-1]))


# Packages that are imported together, one interpreter for each line.
CASES = [
    (["clew.config"], ["torch", "mlflow", "streamlit", "numpy", "pandas", "pyarrow"]),
    (["clew.errors", "clew.names"], ["torch", "mlflow", "streamlit", "numpy"]),
    (["clew.runs.store", "clew.runs.influence_report"], ["torch", "mlflow", "streamlit"]),
    (["clew.cli", "clew.__main__"], ["torch", "mlflow", "streamlit", "pandas"]),
    (["clew.runs.base"], ["mlflow", "streamlit"]),
    (["clew.runs.reading"], ["torch", "streamlit"]),
    (["clew.ui.views", "clew.ui.components", "clew.ui.data"], ["torch"]),
]


@pytest.mark.parametrize(("packages", "heavy"), CASES, ids=[case[0][0] for case in CASES])
def test_import_stays_light(root: Path, packages: list[str], heavy: list[str]) -> None:
    modules = [name for package in packages for name in modules_of(package, root)]
    assert heavy_after_import(modules, heavy, root) == []


def test_import_clew_waits_for_its_first_use(root: Path) -> None:
    heavy = ["torch", "mlflow", "pandas", "numpy", "pydantic", "clew.api"]
    assert heavy_after_import(["clew"], heavy, root) == []


def test_the_check_sees_torch(root: Path) -> None:
    assert heavy_after_import(["clew.training.checkpoints"], ["torch"], root) == ["torch"]
