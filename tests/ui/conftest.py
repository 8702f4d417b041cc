"""Stores for the pages: none, empty, one run, many, broken; and a way to run a page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from clew.runs import store as clew_store

clew_store.prepare_client_environment()

from tests.ui.seed import Seeder, empty_store  # noqa: E402
from tests.ui.seed_influence import (  # noqa: E402
    add_broken_report,
    other_schema,
    trace_run,
    write_vocabulary,
)

TIMEOUT_SECONDS = 60
Open = Callable[..., AppTest]


@dataclass(frozen=True)
class Filled:
    """A store with runs, and the ids of those that tests ask for."""

    uri: str
    train: str
    trace: str
    trace_fp16: str
    hostile: str
    seeder: Seeder


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    st.cache_data.clear()
    yield
    st.cache_data.clear()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Point the pages to a store."""
    return lambda uri: monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


@pytest.fixture
def page(use: Callable[[str], None]) -> Open:
    """Open a page over a store with an address, and check that nothing went wrong by surprise."""

    def open_page(name: str, uri: str, **parameters: str) -> AppTest:
        use(uri)
        app = AppTest.from_string(
            f"from ui.views import {name}\n{name}.render()", default_timeout=TIMEOUT_SECONDS
        )
        for key, value in parameters.items():
            app.query_params[key] = value
        return no_surprise(app.run())

    return open_page


def no_surprise(app: AppTest) -> AppTest:
    """Fail on an exception in the page, or on a message about an unexpected one."""
    assert not app.exception, [error.value for error in app.exception]
    surprises = [error.value for error in app.error if "unexpected" in error.value]
    assert surprises == []
    return app


def shown(app: AppTest) -> str:
    """Return all text of a page: prose, messages, captions, HTML, code."""
    kinds = ("title", "subheader", "markdown", "caption", "error", "warning", "info", "code")
    texts = [str(element.value) for kind in kinds for element in app.get(kind)]
    texts += [str(element.proto.body) for element in app.get("html")]
    return "\n".join(texts).replace("\\", "").replace("\u2060", "")


@pytest.fixture
def no_store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'nothing' / 'mlflow.db'}"


@pytest.fixture
def empty(tmp_path: Path) -> str:
    return empty_store(tmp_path / "empty")


@pytest.fixture
def single(tmp_path: Path) -> Seeder:
    seeder = Seeder(empty_store(tmp_path / "single"))
    seeder.train("fp32")
    return seeder


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Return a store that tests read and do not change."""
    return fill(tmp_path_factory.mktemp("many"))


@pytest.fixture
def fresh_many(tmp_path: Path) -> Filled:
    """Return such a store that a test may change."""
    return fill(tmp_path / "fresh")


def fill(folder: Path) -> Filled:
    """Fill a store with variants over seeds, unfinished runs and explanations."""
    seeder = Seeder(empty_store(folder))
    trained = {
        (variant, seed): seeder.train(variant, seed=seed)
        for seed in range(2)
        for variant in ("fp32", "fp16", "fp32+ckpt", "fp16+ckpt")
    }
    seeder.train("fp16", seed=7, status="FAILED", epochs_done=5)
    seeder.train("fp32", seed=8, status="RUNNING", epochs_done=10, heartbeat_age=5)
    seeder.train("fp32", seed=9, status="RUNNING", epochs_done=3, heartbeat_age=4000)
    seeder.train("fp32", seed=10, name="<script>alert(1)</script> [x](javascript:1)")
    model = trained["fp32", 0]
    write_vocabulary(seeder, model)
    return Filled(
        uri=seeder.uri,
        train=model,
        trace=trace_run(seeder, model),
        trace_fp16=trace_run(seeder, trained["fp16", 0], variant="fp16", jitter=0.2),
        hostile=trace_run(seeder, model, hostile=True),
        seeder=seeder,
    )


@dataclass(frozen=True)
class Broken:
    """A store whose trace runs are all unusable, each in its own way."""

    uri: str
    malformed: str
    other_schema: str
    no_files: str
    deleted: str


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    seeder = Seeder(empty_store(tmp_path_factory.mktemp("broken")))
    model = seeder.train("fp32")
    deleted = trace_run(seeder, model, num_tests=1)
    without = trace_run(seeder, model, num_tests=1)
    seeder.client.delete_run(deleted)
    for path in Path(seeder.uri.removeprefix("sqlite:///")).parent.rglob(
        f"{without}/**/influence.*"
    ):
        path.unlink()
    return Broken(
        uri=seeder.uri,
        malformed=add_broken_report(seeder, model, "{not json", "malformed"),
        other_schema=add_broken_report(seeder, model, other_schema(), "other schema"),
        no_files=without,
        deleted=deleted,
    )
