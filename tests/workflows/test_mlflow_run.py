"""`mlflow run . -e train -P use_mixed_precision=true`, exactly as typed, without conda or pyenv.

Each test works in a copy of the project's root whose folders are links, so that the store at the
root is new.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MLFLOW = Path(sys.executable).with_name("mlflow")
LINKED = ("MLproject", "python_env.yaml", "constraints.txt", "experiments", "platform")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def mlflow_run(
    project: Path, *parameters: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    words = [word for parameter in parameters for word in ("-P", parameter)]
    return subprocess.run(
        [str(MLFLOW), "run", "." if cwd is None else str(project), "-e", "train", *words],
        cwd=cwd or project,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def runs_of(project: Path) -> list[Run]:
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments))


def test_training_with_mixed_precision(project: Path) -> None:
    done = mlflow_run(project, "use_mixed_precision=true", "num_epochs=1")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(project)
    assert run.info.status == "FINISHED"
    assert run.data.tags["clew.kind"] == "train"
    assert run.data.tags["clew.variant"] == "bf16"
    assert run.data.params["use_mixed_precision"] == "true"
    assert run.data.params["cfg.optimizations.use_mixed_precision"] == "true"
    assert run.data.params["cfg.training.num_epochs"] == "1"
    command = "clew train --config=experiments/link_prediction/umls.yaml"
    assert run.data.tags["clew.command"] == f"{command} --num-epochs=1 --use-mixed-precision=true"
    assert "test/mrr" in run.data.metrics
    assert run.info.artifact_uri.startswith((project / "mlartifacts" / "clew").as_uri())
    assert (project / "mlartifacts" / "clew" / run.info.run_id / "artifacts" / "best").is_dir()
    assert not (project / "mlruns").exists()


def test_a_wrong_value_ends_the_run_with_one_line_and_the_reason(
    project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = mlflow_run(project, "num_epochs=abc", cwd=elsewhere)
    assert done.returncode == 1, "MLflow's own, where the command ended with 2"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("clew: error:")]
    assert "num_epochs" in line
    assert "abc" in line
    (run,) = runs_of(project)
    assert run.info.status == "FAILED"
    assert "abc" in run.data.tags["clew.stopped_because"]
    assert list(elsewhere.iterdir()) == []
