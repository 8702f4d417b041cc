"""axe-core and a keyboard find no barrier on any page, in both themes and at three widths."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.accessibility import findings, focus_stops
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
    "review": "/influence?run={trace}&view=Review",
    "text": "/influence?run={trace text}",
    "frames": "/influence?run={trace frames}",
    "failed run": "/run?id={failed}",
}
BROKEN = {
    "color-contrast": '<p style="background: #fff; color: #aaa">pale</p>',
    "chart-contrast": '<svg class="marks"><text style="fill: #888">pale</text></svg>',
    "heading-order": "<h5>deep</h5>",
    "image-alt": '<img src="data:,">',
    "link-name": '<a href="/"></a>',
}
STREAMLITS_OWN = {
    # A menu over the page, which Streamlit puts outside all landmarks.
    'region | <div data-testid="stMainMenuList"',
    'region | <span class="st-emotion-cache',
    # The menu's small print is half transparent and has no stable name for our style sheet.
    'color-contrast | <span class="st-emotion-cache',
    # The area to drop files has a role that contradicts its own name.
    'presentation-role-conflict | <section role="presentation"',
}
"""Findings, as rule and element, in the menu and the file area, which Streamlit itself draws."""
WHOLE_AFTER_FRAMES = 30
FADE = """frames => {
    const faded = document.createElement('div');
    Object.assign(faded.dataset, {stale: true});
    faded.innerHTML = '<p style="opacity: 0.3">faded</p>';
    document.querySelector('h1').after(faded);
    const draw = left => left ? requestAnimationFrame(() => draw(left - 1)) : (
        faded.dataset.stale = false, faded.firstChild.style.opacity = 1
    );
    draw(frames);
}"""
ADD = "html => document.querySelector('h1').insertAdjacentHTML('afterend', html)"


@pytest.fixture(scope="module")
def dashboard(browser: Browser, filled_address: str) -> Iterator[Dashboard]:
    """Return one browser page for all tests, so that it fetches every file only once."""
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


def test_what_fades_is_checked_once_it_is_whole(dashboard: Dashboard) -> None:
    look_like(dashboard.page, "light", 1440)
    dashboard.open("/studies").page.evaluate(FADE, WHOLE_AFTER_FRAMES)
    assert findings(dashboard.page) == []
    assert dashboard.page.locator("[data-stale=false] >> text=faded").count() == 1


def test_what_only_streamlit_can_mend(dashboard: Dashboard) -> None:
    """Every listed exception is still needed, and there are no other findings."""
    look_like(dashboard.page, "light", 1440)
    found = []
    for opened, shown in {
        "stMainMenu": "stMainMenuList",
        "stPopover": "stFileUploaderDropzone",
    }.items():
        dashboard.open("/influence").page.get_by_test_id(opened).first.click()
        dashboard.page.get_by_test_id(shown).wait_for()
        found += findings(dashboard.settle().page)
    left = {" | ".join(line.split(" | ")[::2][:2]) for line in found}
    known = {line: [own for own in STREAMLITS_OWN if line.startswith(own)] for line in left}
    assert [line for line, owns in known.items() if not owns] == []
    assert {own for owns in known.values() for own in owns} == STREAMLITS_OWN


def test_the_keyboard_shows_where_it_is(dashboard: Dashboard) -> None:
    look_like(dashboard.page, "dark", 1440)
    stops = focus_stops(dashboard.open("/models").page)
    assert {"Compare", "Main menu", "Model name", "Promote"} <= set(stops)
    unseen = [name for name, is_seen in stops.items() if not is_seen]
    assert unseen == [], stops
