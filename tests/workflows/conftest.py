"""Trained runs on real data that workflow tests share; each test registers under its own name."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.workflows.trained import TrainedStore, dispose_of, small_config, write_other_split


@pytest.fixture(scope="session")
def trained_runs(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainedStore]:
    from clew.workflows.train import train

    folder = tmp_path_factory.mktemp("trained")
    shutil.copyfile(store_template, folder / "mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as base, base:
        location = (folder / "mlartifacts" / "0").as_uri()
        base.execute("UPDATE experiments SET artifact_location = ?", [location])
    uri = f"sqlite:///{folder / 'mlflow.db'}"

    def run(**overrides: object) -> str:
        run_id = train(small_config(**overrides)).run_id
        assert run_id is not None
        return run_id

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
            patch.delenv(name, raising=False)
        other = write_other_split(folder / "other")
        yield TrainedStore(
            uri,
            strong=run(),
            weak=run(training__num_epochs=1),
            other=run(**other, tracking__experiment="other"),
            unvalidated=run(
                training__num_epochs=1, evaluation__enabled=False, tracking__experiment="blind"
            ),
        )
    dispose_of(uri)


@pytest.fixture
def trained(trained_runs: TrainedStore, monkeypatch: pytest.MonkeyPatch) -> TrainedStore:
    """Return the shared store with trained runs, which is the one in use."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", trained_runs.uri)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "CLEW_SPOOL"):
        monkeypatch.delenv(name, raising=False)
    return trained_runs
