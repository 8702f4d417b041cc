"""One small model that all tests of the API share; it is trained through the API and promoted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import clew
from tests.api.sample import train_and_ask
from tests.workflows.trained import dispose_of


@pytest.fixture(scope="session")
def store(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a tracking store for the tests of the API."""
    folder = tmp_path_factory.mktemp("api")
    yield folder
    dispose_of(uri_of(folder))


def uri_of(store: Path) -> str:
    """Return the address of the store in a folder."""
    return f"sqlite:///{store / 'mlflow.db'}"


@contextmanager
def in_use(store: Path) -> Iterator[None]:
    """Use a store inside this context, regardless of what other tests of this process have set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri_of(store))
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "CLEW_SPOOL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def store_in_use(store: Path) -> Iterator[None]:
    """Use the shared store in each test of the API."""
    with in_use(store):
        yield


@pytest.fixture(scope="session")
def why(store: Path) -> clew.Attribution:
    """Return the sample program's explanation; its run and its folder are in the store."""
    with in_use(store):
        return train_and_ask(store / "model")


@pytest.fixture(scope="session")
def champion(store: Path, why: clew.Attribution) -> str:
    """Return the address of the sample's model after its promotion."""
    from clew.workflows.promote import PromotionRequest, promote

    with in_use(store):
        promote(PromotionRequest(run_of(why), name="clew-umls"))
    return "models:/clew-umls@champion"


def run_of(why: clew.Attribution) -> str:
    """Return the id of the run that was explained."""
    from clew.runs.influence_report import InfluenceReport

    assert isinstance(why.report, InfluenceReport)
    return why.report.model.run_id
