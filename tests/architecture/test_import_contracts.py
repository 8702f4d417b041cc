"""Every broken import contract of pyproject.toml is found; `make lint` checks the contracts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(sys.executable).with_name("lint-imports")


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT), "--no-cache", "--no-logo"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project / "platform"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


BROKEN = [
    (
        "platform/clew/config/base.py",
        "import clew.training",
        "Folders import only",
    ),
    ("platform/clew/layers/__init__.py", "import clew.training", "Folders import only"),
    ("platform/clew/helpers.py", "ANSWER = 42", "Folders import only"),
    ("platform/clew/training/__init__.py", "import mlflow", "Only clew.runs imports"),
    ("platform/clew/config/__init__.py", "import torch", "A configuration is checked"),
    ("platform/clew/runs/reading/__init__.py", "import clew.layers.products", "not import torch"),
    ("platform/clew/runs/base.py", "import mlflow", "interface does not import MLflow"),
    ("platform/clew/workflows/__init__.py", "import streamlit", "Only the dashboard imports"),
    ("platform/clew/ui/components/__init__.py", "import clew.ui.views", "Pages over components"),
]


@pytest.fixture(scope="module")
def broken_report(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report on a copy of the project in which every contract is broken."""
    copy = tmp_path_factory.mktemp("broken")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "bundled")
    shutil.copytree(root / "platform", copy / "platform", ignore=ignore)
    shutil.copy(root / "pyproject.toml", copy)
    for file, line, _ in BROKEN:
        with (copy / file).open("a", encoding="utf-8") as stream:
            stream.write(f"\n{line}\n")
    report = lint_imports(copy)
    assert report.returncode == 1, report.stdout + report.stderr
    return report.stdout


@pytest.mark.parametrize(("file", "line", "contract"), BROKEN)
def test_broken_import_is_found(broken_report: str, file: str, line: str, contract: str) -> None:
    summary, _, details = broken_report.partition("Broken contracts")
    assert any(contract in row for row in summary.splitlines() if " BROKEN" in row)
    module = file.removeprefix("platform/").removesuffix(".py").replace("/", ".")
    importer = module.removesuffix(".__init__")
    imported = line.removeprefix("import ")
    assert importer in details if imported == line else f"{importer} -> {imported} " in details
