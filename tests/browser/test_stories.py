"""Two people's whole way through the pages, on stores that real commands wrote.

A screenshot of each step, at 1440 and at 390 pixels, is in the folder of the pictures.
"""

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from clew.runs.reading.reviews import read_reviews
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery, search_runs
from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard
from tests.browser.held_training import held_trainings
from tests.recorded import MODEL, Recorded, flags

SECONDS = 120
WIDTHS = (390, 1440)
ACTIONS = 5
"""From the first page to an explanation."""


class Story:
    """The steps of one person, with their number of actions and a picture of each."""

    def __init__(self, dashboard: Dashboard, folder: Path, name: str) -> None:
        self.dashboard, self.actions = dashboard, 0
        self._folder, self._name, self._steps = folder, name, 0
        dashboard.page.set_viewport_size({"width": WIDTHS[-1], "height": 900})
        dashboard.settle()

    @property
    def page(self) -> Page:
        return self.dashboard.page

    def does(self, action: Callable[[], object]) -> "Story":
        """Do one thing, such as a click, and wait until the page is drawn."""
        action()
        self.actions += 1
        self.dashboard.settle()
        return self

    def follows(self, link: str) -> "Story":
        return self.does(self.page.get_by_role("link", name=link).first.click)

    def to_the_top(self, of: str = "") -> None:
        """Scroll to the beginning of the page, or of a part."""
        self.page.get_by_test_id("stMain").evaluate("found => found.scrollTo(0, 0)")
        if of:
            self.page.locator(of).first.evaluate("found => found.scrollIntoView()")

    def sees(self, step: str, *, top: str = "") -> "Story":
        """Take the step's pictures; nothing may be wider than the window."""
        self._steps += 1
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.mouse.move(0, 0)
            self.dashboard.settle(400)
            self.to_the_top(top)
            assert not self.dashboard.overflows(), f"{step}, {width} wide"
            name = f"{self._name}-{self._steps:02d}-{step}-{width}.png"
            self.page.screenshot(path=self._folder / name)
        return self


def in_view(page: Page, name: str) -> bool:
    place = page.get_by_role("button", name=name).bounding_box()
    return place is not None and place["y"] >= 0 and place["y"] + place["height"] <= 900


def test_a_biologist_asks_sees_why_and_judges(
    look: Look,
    champion: Recorded,
    champion_address: str,
    use: Callable[[str], None],
    pictures: Path,
) -> None:
    use(champion.uri)
    story = Story(look(champion_address), pictures, "biologist").sees("overview")
    dashboard, page = story.dashboard, story.page
    story.follows("Ask →")
    dashboard.shows("For example")
    story.does(lambda: dashboard.choose("Relation", "treats"))
    story.does(lambda: dashboard.choose("Tail", "disease_or_syndrome"))
    dashboard.shows("Why ", seconds=SECONDS)
    story.sees("answers")
    story.does(page.get_by_role("button", name="Why ").click)
    dashboard.shows("Read the explanation", seconds=SECONDS)
    dashboard.settle()
    assert "most helpful fact" in dashboard.text(), "what it found, in words"
    story.sees("why").follows("Read the explanation")
    page.get_by_role("heading", name="Influence", level=1).wait_for()
    assert story.actions == ACTIONS
    text = dashboard.settle().shows("The most specific path from")
    assert "tested" in text.lower(), "how far to trust it stands beside it"
    steps = page.get_by_role("listitem").all_inner_texts()
    assert any("disease or syndrome" in step for step in steps), steps
    graph = page.locator(".clew-graph").bounding_box()
    assert graph is not None
    assert graph["y"] + graph["height"] < 900, "the mechanism is on the first screen"
    story.sees("explanation")
    entity = page.locator(".clew-graph svg:visible [data-entity]").nth(2)
    story.does(entity.locator("text").first.dblclick)
    dashboard.shows("in the whole training graph")
    assert "near=" in page.url
    story.sees("neighbours")
    story.does(lambda: dashboard.press("Review"))
    run_id = re.findall(r"run=(\w+)", page.url)[0]
    page.get_by_role("textbox", name="Your name").fill("Ada")
    page.get_by_role("textbox", name="Your name").blur()
    dashboard.settle()
    story.to_the_top()
    assert all(in_view(page, name) for name in ("✓ plausible", "✗ implausible", "? unsure", "Next"))
    story.sees("review")
    story.does(lambda: page.keyboard.press("1"))
    dashboard.shows("Saved with the run")
    colleague = look(champion_address, f"/influence?run={run_id}&view=Review")
    colleague.page.get_by_role("textbox", name="Your name").fill("Grace")
    colleague.page.get_by_role("textbox", name="Your name").blur()
    assert "Ada" not in colleague.settle().text(), "a colleague judges blind"
    colleague.page.get_by_role("button", name="✗ implausible").click()
    colleague.settle().shows("Saved with the run")
    assert "Ada" in colleague.settle().text()
    assert {each.verdict for each in read_reviews(run_id).records} == {"plausible", "implausible"}
    story.does(lambda: dashboard.open(f"/reviews?run={run_id}"))
    dashboard.shows("To settle")
    story.sees("reviews")
    dashboard.open(f"/influence?run={run_id}").press("Share")
    with page.expect_download() as download:
        dashboard.button("⤓ Report to mail (HTML)").click()
    download.value.save_as(pictures / "biologist-report.html")
    report = page.context.new_page()
    report.goto(f"file://{pictures}/biologist-report.html")
    for width in WIDTHS:
        report.set_viewport_size({"width": width, "height": 900})
        report.screenshot(path=pictures / f"biologist-08-report-{width}.png")
    assert "disease or syndrome" in report.locator("body").inner_text()


def champion_of(store: Recorded) -> str:
    """Return the version of the model that answers questions."""
    return str(store.client.get_model_version_by_alias(MODEL, "champion").version)


def found_by(text: str) -> list[RunRecord]:
    return list(search_runs(RunQuery(text=text)).runs)


def test_an_engineer_watches_finds_compares_promotes_and_rolls_back(
    look: Look,
    champion: Recorded,
    champion_address: str,
    use: Callable[[str], None],
    pictures: Path,
    tmp_path: Path,
) -> None:
    use(champion.uri)
    before = champion_of(champion)
    options = [*flags(2), "--batch-size=96"]
    with held_trainings(champion.uri, tmp_path, options) as let_go:
        story = Story(look(champion_address), pictures, "engineer")
        dashboard, page = story.dashboard, story.page
        expect(page.get_by_text("epoch 1 of 2")).to_have_count(2, timeout=SECONDS * 1000)
        story.sees("live")
        let_go()
        running = page.get_by_test_id("stMetric").filter(has_text="▶ Running")
        expect(running).to_have_text(re.compile(r"\D0$"), timeout=SECONDS * 1000)
    line = "batch_size=96 state:finished"
    assert len(found_by(line)) == 2
    box = page.get_by_role("searchbox", name="Search")
    box.fill(line)
    story.does(lambda: box.press("Enter"))
    dashboard.shows("1 to 2 of 2 runs")
    story.sees("found", top="#runs")
    dashboard.tick(0, 0).tick(0, 1)
    story.follows("Compare 2 runs")
    page.get_by_role("heading", name="Compare", level=1).wait_for()
    dashboard.settle().shows("reference · 2 runs")
    story.sees("compared")
    dashboard.open(f"/?search={line.replace(' ', '+')}").tick(0, 0)
    story.follows("Promote this run")
    page.get_by_role("heading", name="Models", level=1).wait_for()
    dashboard.settle()
    story.sees("candidate").does(lambda: dashboard.press("Check only"))
    text = dashboard.shows("dry run", "cannot be shown", seconds=SECONDS)
    assert "nothing written" in text
    assert all(check in text for check in ("weights", "validation"))
    assert "job=" in page.url
    story.sees("checked")
    page.get_by_role("textbox", name="Overrule, with a reason").fill("a trial")
    page.get_by_role("textbox", name="Overrule, with a reason").blur()
    dashboard.settle().press("Promote")
    roll_back = page.get_by_role("button", name=f"Roll back to version {before}")
    roll_back.wait_for(timeout=SECONDS * 1000)
    assert champion_of(champion) == "3"
    dashboard.settle()
    story.sees("promoted")
    dashboard.press(f"Roll back to version {before}").press("Roll back now")
    page.get_by_role("button", name="Roll back to version 3").wait_for(timeout=SECONDS * 1000)
    assert champion_of(champion) == before
    dashboard.settle()
    story.sees("rolled-back")
