"""Trained runs on real data that workflow tests share; each test registers its own model name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.config.schema import RunConfig
from tests.image_sequences.sequence_files import sequence_columns
from tests.made_once import copy_filled
from tests.workflows.trained import (
    StoredRun,
    TrainedStore,
    copy_store,
    dispose_of,
    filled_once,
    sequence_config,
    small_config,
    text_config,
    use_store,
    write_other_split,
)


@pytest.fixture(scope="session")
def trained_runs(
    store_template: Path, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainedStore]:
    """Yield this test process's own copy of a store with runs on UMLS.

    Tests move and change the files of the other split, so each process has its own and trains on
    them.
    """
    runs = filled_once(shared_folder / "trained", store_template, trained_on_umls)
    folder = tmp_path_factory.mktemp("trained") / "store"
    copy_filled(shared_folder / "trained", folder)
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    files = write_other_split(tmp_path_factory.mktemp("other") / "split")
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        runs["other"] = run_of(small_config(**files, tracking__experiment="other"))
    yield TrainedStore(uri, **runs)
    dispose_of(uri)


def trained_on_umls(folder: Path) -> dict[str, str]:
    """Train the runs of `TrainedStore` on the whole graph."""
    blind = {"evaluation__enabled": False, "tracking__experiment": "blind"}
    configs = {
        "strong": small_config(),
        "weak": small_config(training__num_epochs=1),
        "unvalidated": small_config(training__num_epochs=1, **blind),
    }
    return {name: run_of(config) for name, config in configs.items()}


def run_of(config: RunConfig) -> str:
    """Train, and return the id of the run."""
    from clew.workflows.train import train

    run_id = train(config).run_id
    assert run_id is not None
    return run_id


def stored_run(template: Path, folder: Path, config: RunConfig) -> Iterator[StoredRun]:
    """Train in a new store in the folder of the data, and close the store at the end."""
    uri = copy_store(template, folder)
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        run_id = run_of(config)
    yield StoredRun(uri, run_id, folder)
    dispose_of(uri)


@pytest.fixture
def trained(trained_runs: TrainedStore, monkeypatch: pytest.MonkeyPatch) -> TrainedStore:
    """Return the shared store with trained runs, and use it in the test."""
    use_store(monkeypatch, trained_runs.uri)
    return trained_runs


@pytest.fixture(scope="session")
def text_run(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredRun]:
    folder = tmp_path_factory.mktemp("text")
    yield from stored_run(store_template, folder, text_config(folder))


@pytest.fixture
def text(text_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> StoredRun:
    """Return a trained language model, and use its store in the test."""
    use_store(monkeypatch, text_run.uri)
    return text_run


@pytest.fixture(scope="session")
def sequence_run(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoredRun]:
    folder = tmp_path_factory.mktemp("sequences")
    yield from stored_run(store_template, folder, sequence_config(folder, sequence_columns()))


@pytest.fixture
def sequences(sequence_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> StoredRun:
    """Return a trained model of image sequences, and use its store in the test."""
    use_store(monkeypatch, sequence_run.uri)
    return sequence_run
