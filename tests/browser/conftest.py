"""A browser, and dashboard servers over copies of stores that real commands recorded."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from clew.runs import store as clew_store

clew_store.prepare_client_environment()

from tests.browser.dashboard import (  # noqa: E402
    CHROMIUM,
    PATIENCE,
    Dashboard,
    chromium,
    serving,
)
from tests.recorded import Recorded  # noqa: E402
from tests.ui.conftest import fill  # noqa: E402

expect.set_options(timeout=PATIENCE)
WIDE = {"width": 1400, "height": 900}
NARROW = {"width": 420, "height": 900}
Look = Callable[..., Dashboard]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
            if not CHROMIUM.is_file():
                item.add_marker(pytest.mark.skip(reason=f"no Chromium at {CHROMIUM}"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def filled(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return fill(recorded, tmp_path_factory.mktemp("browser") / "store")


@pytest.fixture(scope="session")
def filled_address(filled: Recorded) -> Iterator[str]:
    with serving(filled.uri) as address:
        yield address


@pytest.fixture(scope="session")
def browser_empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('none') / 'mlflow.db'}") as address:
        yield address


@pytest.fixture(scope="session")
def champion(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a separate store, because training, asking and promoting write to it."""
    return recorded.copy(tmp_path_factory.mktemp("champion") / "store")


@pytest.fixture(scope="session")
def champion_address(champion: Recorded) -> Iterator[str]:
    with serving(champion.uri) as address:
        yield address


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Open pages in new browser contexts; fail at the end if a page had a problem."""
    opened: list[Dashboard] = []

    def open_page(
        address: str, path: str = "/", *, width: str = "wide", scheme: str = "light"
    ) -> Dashboard:
        context = browser.new_context(
            viewport=WIDE if width == "wide" else NARROW,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
            accept_downloads=True,
        )
        opened.append(Dashboard(context.new_page(), address))
        return opened[-1].open(path)

    yield open_page
    for dashboard in opened:
        dashboard.page.context.close()
    assert [problem for dashboard in opened for problem in dashboard.problems] == []


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of pictures: `$CLEW_SCREENSHOTS` or a temporary one."""
    folder = os.environ.get("CLEW_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("pictures")
    path.mkdir(parents=True, exist_ok=True)
    return path
