"""Set-up of all tests: checks the shapes in signatures, and turns off telemetry."""

import gc
import itertools
import logging
import math
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.recorded import Recorded

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
# Tests run in parallel. With more threads than cores, threads wait for each other at every small
# product, and some tests take four times as long. This must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
from jaxtyping import install_import_hook

from clew.processes import collect_garbage_rarely

collect_garbage_rarely()
# Examples without a limit of time, and not drawn anew in each run. They still depend on the modules
# that the tests before have imported, because Hypothesis draws constants from them.
hypothesis.settings.load_profile("ci")

BROWSER = Path(__file__).with_name("browser")
"""The folder of browser tests. Its `conftest.py` marks all of them as slow."""
LONGEST_FIRST = Path(__file__).with_name("longest_first.txt")
"""Lists the test files by the processor time of all their tests, the longest first."""

# Modules whose signatures have shapes. The checks slow down every call of every function in a
# module, so modules without shapes are left out, such as `capture`, through which each torch
# function of a recorded pass goes.
SHAPES_ARE_CHECKED = {
    "clew.layers": [
        "eigenstate",
        "scan",
        "training_mode",
    ],
    "clew.influence": [
        "factors",
        "scores",
        "summation",
        "outcomes",
        "unrolling",
        "linearization",
        "link_prediction",
        "projections",
        "window_index",
        "window_tracer",
    ],
    "clew.link_prediction": [
        "models",
        "losses",
        "calibration",
        "prediction",
        "query_scores",
        "rank_metrics",
        "ranking",
    ],
    "clew.language_modeling": ["model", "loss"],
    "clew.image_sequences": [
        "model",
        "errors",
        "baselines",
    ],
}
install_import_hook(
    [f"{package}.{name}" for package, names in SHAPES_ARE_CHECKED.items() for name in names],
    "beartype.beartype",
)

from clew.cli import output  # noqa: E402  # after the hook

output.SILENT_SECONDS = math.inf  # a command that says one line says it on a slow machine too


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of which no test would run, because each process imports all collected files."""
    chosen = config.getoption("markexpr")
    if chosen == "not slow" and collection_path == BROWSER:
        return True
    if collection_path.suffix != ".py" or collection_path.parent == BROWSER:
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_slow, has_slow = "\npytestmark = pytest.mark.slow" in text, "mark.slow" in text
    return (chosen == "not slow" and is_slow) or (chosen == "slow" and not has_slow) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process fill the recorded store at once, while others run tests without a store.

    Files that take long come first, then files with many tests, so that all processes end at about
    the same time: a process gets one file after the other, and a long file at the end would keep
    one process working while the others are idle.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    known = LONGEST_FIRST.read_text(encoding="utf-8").split()
    place = {LONGEST_FIRST.parents[1] / path: number for number, path in enumerate(known)}
    longest = sorted(files.values(), key=lambda f: (place.get(f[0].path, len(place)), -len(f)))
    waiting = [file for file in longest if any(_needs_a_store(item) for item in file)]
    others = [file for file in longest if file not in waiting]
    items[:] = itertools.chain(*waiting[:1], *others, *waiting[1:])


def _needs_a_store(item: pytest.Item) -> bool:
    return "recorded" in getattr(item, "fixturenames", ())


def pytest_collection_finish() -> None:
    """Exclude everything that is imported by now from later garbage collections."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for stores that one worker makes for all (`tests.made_once`).

    Set `CLEW_RECORDED` to a permanent folder to use its stores again in the next test run, for
    example while working on the dashboard.
    """
    base = tmp_path_factory.getbasetemp()
    own = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Path(os.environ.get("CLEW_RECORDED") or own)


@pytest.fixture(scope="session")
def recorded(shared_folder: Path) -> "Recorded":
    """Return a store that real commands filled; a test that changes it must copy it."""
    from tests.recorded import record

    return record(shared_folder / "recorded")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that selects the tracking store by its address."""
    return lambda uri: monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


@pytest.fixture(autouse=True)
def artifacts_of_one_store() -> None:
    """Clear MLflow's cache of artifact locations by run id, because copies share these ids."""
    if loaded := sys.modules.get("mlflow.tracking._tracking_service.utils"):
        loaded._artifact_repos_cache.clear()


@pytest.fixture(autouse=True)
def pages_of_one_store() -> None:
    """Clear the caches of pages: a dashboard has one store, but tests use many."""
    if streamlit := sys.modules.get("streamlit"):
        streamlit.cache_data.clear()
    if loaded := sys.modules.get("clew.ui.components.runs"):
        for kept in (loaded.vocabulary, loaded.champion_vocabulary, loaded._learned):
            kept.clear()


@pytest.fixture(scope="session", autouse=True)
def import_path() -> list[str]:
    return list(sys.path)


@pytest.fixture(autouse=True)
def own_import_path(import_path: list[str]) -> None:
    """Undo MLflow's change of the import path: a loaded model puts its own `clew` first.

    A process that a test starts would find this copy, which has no dashboard.
    """
    sys.path = list(import_path)


@pytest.fixture(autouse=True)
def log_has_its_level() -> None:
    """Reset the log level, because `clew tune` raises it for its process."""
    logging.getLogger("clew").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty tracking database to copy; MLflow needs seconds to make a new one."""
    from clew.runs.store import connect

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def tracking_store(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Return the folder of a new, empty tracking store, and use this store in the test."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tmp_path / "tracking"
    folder.mkdir()
    shutil.copyfile(store_template, folder / "mlflow.db")
    with closing(sqlite3.connect(folder / "mlflow.db")) as base, base:
        location = (folder / "mlartifacts" / "0").as_uri()
        base.execute("UPDATE experiments SET artifact_location = ?", [location])
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "CLEW_SPOOL"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    # MLflow keeps a connection to every database that it has opened.
    engine = SqlAlchemyStore._engine_map.pop(uri, None)
    if engine is not None:
        engine.dispose()
