"""Every page in light and dark, wide and narrow: a picture, no error, and no overflow."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.browser.conftest import Look
from tests.browser.pictures import take
from tests.recorded import HOSTILE, Recorded
from tests.ui.seed_many import MODELS

PAGES = ("overview", "compare", "influence", "reviews", "models", "studies", "ask")


def path_of(page: str, filled: Recorded) -> str:
    """Return the address of a page with content."""
    if page == "overview":
        return "/"
    if page == "compare":
        return "/compare?runs=" + ",".join(filled.runs[name] for name in (*MODELS, "hostile"))
    if page == "influence":
        return f"/influence?run={filled.runs['trace']}&fact=2&edges=20"
    return f"/{page}"


# Pictures for people need all four; two combinations cover both themes and both widths.
FORMS = [("wide", "light"), ("narrow", "dark"), ("wide", "dark"), ("narrow", "light")]
SHOWN = FORMS if "CLEW_SCREENSHOTS" in os.environ else FORMS[:2]


@pytest.mark.parametrize(("width", "scheme"), SHOWN)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_looks_right(
    look: Look,
    filled: Recorded,
    filled_address: str,
    pictures: Path,
    page: str,
    width: str,
    scheme: str,
) -> None:
    dashboard = look(filled_address, path_of(page, filled), width=width, scheme=scheme)
    assert dashboard.page.locator("h1").inner_text().lower() == page
    assert not dashboard.page.get_by_test_id("stException").count()
    dashboard.picture(pictures / f"{page}-{width}-{scheme}.png")
    assert not dashboard.overflows()


def test_no_choice_is_cut_in_a_window_of_a_tablet(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    cut = """() => [...document.querySelectorAll(
        ':is([data-testid="stButtonGroup"], [data-testid="stCheckbox"]) *'
    )].filter(
        part => part.clientWidth && part.innerText && part.scrollWidth > part.clientWidth + 1
    ).map(part => part.innerText)"""
    for page in (path_of(page, filled) for page in PAGES):
        dashboard = look(filled_address, page)
        dashboard.page.set_viewport_size({"width": 800, "height": 900})
        assert dashboard.settle().page.evaluate(cut) == [], page


def test_the_table_of_facts_is_whole_beside_their_graph(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    path = f"/influence?run={filled.runs['trace']}&view=Training+facts"
    dashboard = look(filled_address, path)
    dashboard.page.set_viewport_size({"width": 1440, "height": 900})
    table = dashboard.settle().page.get_by_test_id("stDataFrame").filter(visible=True).last
    widths = table.locator(".dvn-scroller").evaluate(
        "table => [table.scrollWidth, table.clientWidth]"
    )
    assert widths[0] <= widths[1]


def test_a_table_has_the_width_of_a_tablet_to_itself(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    path = f"/influence?run={filled.runs['trace hostile']}&test=0&view=Training+facts"
    dashboard = look(filled_address, path)
    table = dashboard.page.get_by_test_id("stDataFrame").filter(visible=True).last
    beside = table.bounding_box()
    dashboard.page.set_viewport_size({"width": 800, "height": 900})
    dashboard.settle()
    below = table.bounding_box()
    assert beside is not None
    assert below is not None
    assert beside["x"] > 500
    assert below["x"] < 50
    assert below["width"] > 700


def test_hostile_names_are_text(look: Look, filled: Recorded, filled_address: str) -> None:
    for path in (
        "/",
        f"/influence?run={filled.runs['trace hostile']}&test=0",
        f"/influence?run={filled.runs['trace hostile']}&test=0&fact=1",
        f"/influence?run={filled.runs['trace hostile']}&test=0&view=Groups&group=shared+entity",
        f"/influence?run={filled.runs['trace hostile']}&test=1&view=Review",
        "/compare?runs=<script>alert(1)</script>&ref=[x](javascript:1)",
        "/influence?run=<script>alert(1)</script>",
        "/ask?h=<script>alert(1)</script>&answer=<b>&why=:smile:",
    ):
        dashboard = look(filled_address, path)
        main = dashboard.page.get_by_test_id("stMain")
        assert main.locator("script").count() == 0
        assert main.locator('a[href^="javascript"]').count() == 0
        assert main.locator("b b, h1 script").count() == 0
    hostile = look(filled_address, f"/influence?run={filled.runs['trace hostile']}&test=0")
    first_test = (filled.folder / "hostile/test.txt").read_text().splitlines()[0]
    named = [name for name in HOSTILE if name in first_test]
    assert len(named) == 2
    for name in named:
        hostile.shows(name)


def test_pointing_at_hostile_names_shows_text(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    path = f"/influence?run={filled.runs['trace hostile']}&test=0&view=Groups&group=shared+entity"
    dashboard = look(filled_address, path)
    place = dashboard.page.get_by_test_id("stVegaLiteChart").first.bounding_box()
    assert place is not None
    for share in (0.1, 0.3, 0.5, 0.7):
        dashboard.page.mouse.move(place["x"] + 80, place["y"] + place["height"] * share)
        dashboard.page.wait_for_timeout(200)
        assert dashboard.page.locator("#vg-tooltip-element script").count() == 0


def test_every_page_has_its_picture_for_the_documents(
    filled: Recorded, use: Callable[[str], None], tmp_path: Path
) -> None:
    use(filled.uri)
    # Another thread, because the browser of the other tests runs an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(take, tmp_path / "pictures").result()
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {*PAGES, "run"}


def test_the_first_page_over_no_store(look: Look, browser_empty: str) -> None:
    dashboard = look(browser_empty)
    assert "make demo" in dashboard.text() or "clew " in dashboard.text()


def test_links_between_pages(look: Look, filled_address: str) -> None:
    dashboard = look(filled_address)
    for page in (*PAGES[1:], PAGES[0]):
        dashboard.page.get_by_role("link", name=page.capitalize(), exact=True).first.click()
        dashboard.page.get_by_role("heading", name=page.capitalize(), level=1).wait_for()
        dashboard.settle()
        assert not dashboard.page.get_by_test_id("stException").count()
