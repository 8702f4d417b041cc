"""Every page, in both themes and at three widths: axe-core and a keyboard find nothing wrong."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.accessibility import findings
from tests.browser.dashboard import Dashboard
from tests.recorded import Recorded
from tests.ui.seed_many import MODELS

WIDTHS = (1440, 1024, 390)
SCHEMES = ("light", "dark")
PAGES = {
    "overview": "/",
    "run": "/run?id={fp32 1}",
    "compare": "/compare?runs=" + ",".join(f"{{{name}}}" for name in MODELS),
    "influence": "/influence?run={trace}&fact=2&edges=20",
    "ask": "/ask",
    "models": "/models",
    "reviews": "/reviews",
    "studies": "/studies",
}
VIEWS = {
    "paths": "/influence?run={trace hostile}",
    "bars": "/influence?run={trace}&view=Training+facts&picture=bars",
    "groups": "/influence?run={trace}&view=Groups",
    "review": "/influence?run={trace}&view=Review",
    "text": "/influence?run={trace text}",
    "frames": "/influence?run={trace frames}",
    "memory": "/studies?view=Memory",
    "failed run": "/run?id={failed}",
    "nothing": "/influence?run=nothing",
}
BROKEN = {
    "color-contrast": '<p style="background: #fff; color: #aaa">pale</p>',
    "chart-contrast": '<svg class="marks"><text style="fill: #888">pale</text></svg>',
    "heading-order": "<h5>deep</h5>",
    "image-alt": '<img src="data:,">',
    "link-name": '<a href="/"></a>',
}
ADD = "html => document.querySelector('h1').insertAdjacentHTML('afterend', html)"


@pytest.fixture(scope="module")
def dashboard(browser: Browser, filled_address: str) -> Iterator[Dashboard]:
    """Return a page of the browser for all tests: what it has fetched, it need not fetch again."""
    with browser.new_context() as context:
        yield Dashboard(context.new_page(), filled_address)


def look_like(page: Page, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_findings(dashboard: Dashboard, filled: Recorded, page: str) -> None:
    look_like(dashboard.page, SCHEMES[0], WIDTHS[0])
    dashboard.open(PAGES[page].format_map(filled.runs))
    found = {}
    for scheme in SCHEMES:
        for width in WIDTHS:
            look_like(dashboard.page, scheme, width)
            dashboard.settle(50)
            found[scheme, width] = findings(dashboard.page)
    assert {form: lines for form, lines in found.items() if lines} == {}
    assert dashboard.problems == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_no_findings(dashboard: Dashboard, filled: Recorded, view: str) -> None:
    look_like(dashboard.page, "dark", 1024)
    dashboard.open(VIEWS[view].format_map(filled.runs))
    assert findings(dashboard.page) == []


def test_what_is_broken_is_found(dashboard: Dashboard) -> None:
    look_like(dashboard.page, "light", 1440)
    dashboard.open("/studies").page.evaluate(ADD, "".join(BROKEN.values()))
    found = findings(dashboard.page)
    assert {line.partition(" ")[0] for line in found} == set(BROKEN), found
