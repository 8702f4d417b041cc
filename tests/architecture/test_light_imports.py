"""Modules that must start fast import nothing heavy, checked in one new interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def modules_of(package: str, root: Path) -> list[str]:
    """Return the package and every module below it; only the package itself if it is `clew`."""
    source = root / "platform"
    folder = source.joinpath(*package.split("."))
    if package == "clew" or not folder.is_dir():
        return [package]
    files = [path.relative_to(source).with_suffix("") for path in folder.rglob("*.py")]
    return sorted({".".join(path.parts).removesuffix(".__init__") for path in files})


# Packages in the order in which one interpreter imports them, with the modules that must not be
# imported after each. A module that one of them can import must be allowed for all that follow.
STEPS = [
    (["clew"], ["torch", "mlflow", "streamlit", "pandas", "numpy", "pydantic", "clew.api"]),
    (["clew.config"], ["torch", "mlflow", "streamlit", "numpy", "pandas", "pyarrow"]),
    (["clew.errors", "clew.names"], ["torch", "mlflow", "streamlit", "numpy"]),
    (["clew.cli", "clew.__main__"], ["torch", "mlflow", "streamlit", "pandas"]),
    (["clew.runs.store", "clew.runs.window_report"], ["torch", "mlflow", "streamlit"]),
    (["clew.runs.base"], ["torch", "mlflow", "streamlit"]),
    (["clew.runs.reading"], ["torch", "streamlit"]),
    (["clew.ui.views", "clew.ui.components"], ["torch"]),
    (["clew.training.checkpoints"], ["torch"]),
]
PROGRAM = """
import importlib, json, sys
for modules, heavy in json.loads(sys.argv[1]):
    for name in modules:
        importlib.import_module(name)
    print(json.dumps([name for name in heavy if name in sys.modules]))
"""


@pytest.fixture(scope="module")
def found(root: Path) -> list[list[str]]:
    """Return the forbidden modules that each step has imported."""
    steps = [
        ([name for package in packages for name in modules_of(package, root)], heavy)
        for packages, heavy in STEPS
    ]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(steps)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()[-len(STEPS) :]]


@pytest.mark.parametrize("number", range(len(STEPS) - 1), ids=[step[0][0] for step in STEPS[:-1]])
def test_import_stays_light(found: list[list[str]], number: int) -> None:
    assert found[number] == []


def test_the_check_sees_torch(found: list[list[str]]) -> None:
    assert found[-1] == ["torch"]


def test_building_a_model_and_training_it_need_no_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from clew.config import training\n"
        "from clew.training.optimizer import build_optimizer\n"
        "from clew.training.seeding import DrawingApart\n"
        "with DrawingApart():\n"
        "    model = torch.nn.Embedding(3, 4)\n"
        "kinds = training.Adam, training.AdamW, training.Adagrad, training.SGD\n"
        "for settings in (*(kind() for kind in kinds), training.Adagrad(row_wise=True)):\n"
        "    optimizer = build_optimizer(settings, model)\n"
        "    model(torch.zeros(1, dtype=int)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_answering_with_a_model_needs_no_store() -> None:
    program = (
        "import sys, clew.workflows.predict\n"
        "sys.exit(bool({'mlflow', 'sqlalchemy', 'torch._dynamo'} & sys.modules.keys()))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
