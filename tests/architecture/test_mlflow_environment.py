"""`mlflow run .` uses the project's own environment, without conda, pyenv or activation.

The name of the environment comes from a private helper of MLflow; these tests fail if an upgrade
changes it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MLFLOW = Path(sys.executable).with_name("mlflow")
BARE_PATH = "/usr/bin:/bin"


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """Return variables of a shell without conda, pyenv or an activated environment."""
    return {
        "PATH": BARE_PATH,
        "HOME": str(tmp_path / "home"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "MLFLOW_ENV_ROOT": str(tmp_path / "elsewhere"),
    }


def test_link_is_there_and_leads_to_this_environment() -> None:
    links = list((Path(sys.prefix) / "mlflow-envs").glob("mlflow-*"))
    assert len(links) == 1, "run make to link the environment"
    assert links[0].resolve() == Path(sys.prefix).resolve()


def test_every_python_of_the_environment_knows_the_root(bare_environment: dict[str, str]) -> None:
    program = "import os; print(os.environ['MLFLOW_ENV_ROOT'])"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=bare_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.strip() == str(Path(sys.prefix) / "mlflow-envs"), told.stderr


@pytest.mark.slow
def test_mlflow_run_takes_this_environment(
    root: Path, tmp_path: Path, bare_environment: dict[str, str]
) -> None:
    """A project with the same python_env.yaml runs and gets its parameters unchanged."""
    if shutil.which("pyenv", path=BARE_PATH) or shutil.which("conda", path=BARE_PATH):
        pytest.skip(f"conda or pyenv is in {BARE_PATH}, so this proves nothing")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("python_env.yaml", "constraints.txt"):
        shutil.copy(root / name, project)
    (project / "MLproject").write_text(
        "python_env: python_env.yaml\n"
        "entry_points:\n"
        "  main:\n"
        "    parameters:\n"
        '      empty: {type: string, default: ""}\n'
        "      spaced: string\n"
        '    command: python -c "import sys; print(sys.prefix, sys.argv[1:])"'
        " --empty={empty} --spaced={spaced}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [str(MLFLOW), "run", ".", "-P", "spaced=two 'words'; exit 9"],
        cwd=project,
        env=bare_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    arguments = ["--empty=", "--spaced=two 'words'; exit 9"]
    assert done.stdout.splitlines()[-1] == f"{Path(sys.prefix)} {arguments}"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_mlflow_run_without_an_experiment_is_in_clew(
    root: Path, tmp_path: Path, bare_environment: dict[str, str]
) -> None:
    """The provider is found through the installed project's entry points."""
    program = (
        "from mlflow.tracking.fluent import _get_experiment_id; from mlflow import MlflowClient\n"
        "found = MlflowClient().get_experiment(_get_experiment_id())\n"
        "print(found.name, found.artifact_location)"
    )
    inside = mlflow_told(program, root, bare_environment)
    assert inside == f"clew {(tmp_path / 'mlartifacts' / 'clew').as_uri()}"
    assert mlflow_told(program, tmp_path, bare_environment).startswith("Default ")


def mlflow_told(program: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_setup_links_again_in_place_of_an_old_link(tmp_path: Path) -> None:
    """The link of an older python_env.yaml or another version of MLflow is removed."""
    root = Path(__file__).resolve().parents[2]
    program = (
        "import importlib.util, pathlib, sys\n"
        f"spec = importlib.util.spec_from_file_location('e', {str(root)!r} "
        "+ '/.ci/mlflow_environment.py')\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        f"prefix = pathlib.Path({str(tmp_path)!r})\n"
        f"print(module.link_environment(pathlib.Path({str(root)!r}), prefix))\n"
    )
    old = tmp_path / "mlflow-envs" / "mlflow-old"
    old.parent.mkdir()
    old.symlink_to("..")
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    link = Path(told.stdout.strip())
    assert list(old.parent.iterdir()) == [link], told.stderr
    assert link.resolve() == tmp_path.resolve()
