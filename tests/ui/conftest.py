"""Stores for the pages (missing, empty, one run, all recorded runs, broken), and pages to run."""

import functools
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from clew import names
from clew.runs import store as clew_store

clew_store.prepare_client_environment()

from clew.ui import views  # noqa: E402
from tests.recorded import Recorded  # noqa: E402
from tests.ui.seed_many import copy_run  # noqa: E402

# Each page under test would search all installed packages for components; one search is enough.
manifest_scanner.scan_component_manifests = functools.cache(
    manifest_scanner.scan_component_manifests
)
TIMEOUT_SECONDS = 300
Open = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def imported_pages() -> None:
    """Import every page before tests replace parts of modules.

    A page imports its parts when it is first opened. If a test has replaced a function by then,
    the page would keep the replacement in all later tests.
    """
    for path in Path(views.__file__).parent.glob("*.py"):
        importlib.import_module(f"{views.__name__}.{path.stem}")


@pytest.fixture(autouse=True)
def own_main() -> Iterator[None]:
    """Restore `__main__`, which a page replaces: spawned processes would run the page."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def page(use: Callable[[str], None]) -> Open:
    """Return a function that opens a page over a store and fails on unexpected errors."""

    def open_page(name: str, uri: str, **parameters: str) -> AppTest:
        use(uri)
        app = AppTest.from_string(
            f"from clew.ui.views import {name}\n{name}.render()", default_timeout=TIMEOUT_SECONDS
        )
        for key, value in parameters.items():
            app.query_params[key] = value
        return no_surprise(app.run())

    return open_page


def no_surprise(app: AppTest) -> AppTest:
    """Fail if the page shows an exception or the message about an unexpected error."""
    assert not app.exception, [error.value for error in app.exception]
    surprises = [error.value for error in app.error if "unexpected" in error.value]
    assert surprises == []
    return app


def shown(app: AppTest) -> str:
    """Return all text of a page: prose, messages, captions, HTML, code."""
    kinds = ("title", "header", "markdown", "caption", "error", "warning", "info", "code")
    texts = [str(element.value) for kind in kinds for element in app.get(kind)]
    texts += [str(element.proto.body) for element in app.get("html")]
    return "\n".join(texts).replace("\\", "").replace("\u2060", "")


@pytest.fixture
def no_store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'nothing' / 'mlflow.db'}"


@pytest.fixture
def empty(store_template: Path, tmp_path: Path) -> str:
    shutil.copyfile(store_template, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def single(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store with one run, which `mlflow run` recorded."""
    return recorded.copy(tmp_path / "single").keep_only("fp32 0")


@pytest.fixture(scope="session")
def many(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a filled store that tests must not change."""
    return fill(recorded, tmp_path_factory.mktemp("many") / "store")


@pytest.fixture
def fresh_many(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a filled store that a test can change."""
    return fill(recorded, tmp_path / "fresh")


def fill(recorded: Recorded, folder: Path) -> Recorded:
    """Copy the recorded store, with one run that is alive and one without a recent heartbeat.

    Both are copies of the training that killed itself. So no test has to wait until a heartbeat is
    old, or to keep a process alive.
    """
    store = recorded.copy(folder)
    stuck, alive = store.runs["killed"], "a11fe" * 6 + "00"
    with store.database() as base:
        copy_run(base, stuck, alive)
        for run_id, age_seconds in ((stuck, 4000), (alive, -1_000_000)):
            base.execute(
                "UPDATE tags SET value = ? WHERE run_uuid = ? AND key = ?",
                (str(time.time() - age_seconds), run_id, names.TAG_HEARTBEAT),
            )
        for table in ("metrics", "latest_metrics"):  # a metric is a sign of life too
            base.execute(
                f"UPDATE {table} SET timestamp = ? WHERE run_uuid = ?",
                (int(1000 * (time.time() - 4000)), stuck),
            )
    return Recorded(folder, {**store.runs, "stuck": stuck, "alive": alive})


@pytest.fixture(scope="session")
def broken(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a store whose explanations are all unusable, each in a different way."""
    store = recorded.copy(tmp_path_factory.mktemp("broken") / "store")
    for name, text in (("trace", "{not json"), ("trace bf16", '{"schema_version": 9}')):
        for path in store.files(name, names.ARTIFACT_INFLUENCE).iterdir():
            path.unlink()
        folder = store.files(name, names.ARTIFACT_INFLUENCE)
        (folder / names.INFLUENCE_JSON).write_text(text, encoding="utf-8")
    for path in store.files("trace hostile", names.ARTIFACT_INFLUENCE).iterdir():
        path.unlink()
    store.client.delete_run(store.runs["trace frames"])
    named = {
        "malformed": "trace",
        "other_schema": "trace bf16",
        "no_files": "trace hostile",
        "deleted": "trace frames",
    }
    return Recorded(store.folder, {key: store.runs[name] for key, name in named.items()})
