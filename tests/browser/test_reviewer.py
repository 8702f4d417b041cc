"""The reviewer's path: why does the model believe this, and is that a good reason?"""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import streamlit as st
from playwright.sync_api import Browser, expect

from clew.runs.reading import picture
from clew.runs.reading.explanation import (
    SharedExplanation,
    html_report,
    open_explanation,
    picture_of,
)
from clew.runs.reading.facts import Paths
from clew.runs.reading.reviews import read_reviews
from clew.runs.verification import marked_in
from clew.ui.components import graph
from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard, serving
from tests.recorded import NUM_TESTS, Recorded
from tests.runs.reading.test_checked_pictures import check_of
from tests.ui.test_charts import head

FACTS = "view=Training+facts"


@pytest.fixture
def own(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    own = recorded.copy(tmp_path / "own")
    use(own.uri)
    return own


@pytest.fixture
def own_address(own: Recorded) -> Iterator[str]:
    with serving(own.uri) as address:
        yield address


def fact(dashboard: Dashboard) -> str | None:
    found = re.search(r"[?&]fact=(\d+)", dashboard.page.url)
    return found[1] if found else None


def test_reading_an_explanation(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}")
    dashboard.shows("steroid")
    dashboard.page.get_by_text(f"Explained triples: {NUM_TESTS}").click()
    dashboard.settle().tick(0, 1)
    assert "test=1" in dashboard.page.url
    dashboard.shows("Asked for clinical attribute")
    dashboard.page.get_by_role("searchbox", name="Search test triples").fill("neopl")
    dashboard.page.keyboard.press("Enter")
    dashboard.settle()
    dashboard.shows("Asked for neoplastic process")


def test_paths_come_first_on_one_screen(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace hostile']}")
    dashboard.shows("The most specific path from")
    chart = dashboard.page.locator(".clew-graph").bounding_box()
    assert chart is not None
    bottom = chart["y"] + chart["height"]
    assert bottom < 900, f"the picture ends at {bottom:.0f}, below the window"
    first = dashboard.page.get_by_role("listitem").all_inner_texts()
    dashboard.tick(0, 1)
    assert "path=1" in dashboard.page.url
    steps = dashboard.page.get_by_role("listitem").all_inner_texts()
    assert steps != first
    path = dashboard.page.url.removeprefix(filled_address)
    assert look(filled_address, path).page.get_by_role("listitem").all_inner_texts() == steps


# Turned names have turned boxes: two are apart if one of their four directions separates them.
OVERLAPS = """() => {
    const corners = name => {
        const {x, y, width, height} = name.getBBox(), m = name.getScreenCTM();
        return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]].map(
            ([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]
        );
    };
    const depth = (one, other) => Math.min(...[one, other].flatMap(box => [0, 1].map(side => {
        const [x, y] = [0, 1].map(axis => box[side + 1][axis] - box[side][axis]);
        const [a, b] = [one, other].map(
            found => found.map(([left, down]) => (left * x + down * y) / (Math.hypot(x, y) || 1))
        );
        return Math.min(Math.max(...a), Math.max(...b)) - Math.max(Math.min(...a), Math.min(...b));
    })));
    const around = document.querySelector('.clew-graph').getBoundingClientRect();
    const svg = [...document.querySelectorAll('.clew-graph svg')].find(svg => svg.clientWidth);
    const paper = svg.getBoundingClientRect();
    const names = [...svg.querySelectorAll('text')].map(name => [name.textContent, corners(name)]);
    if (names.length < 2) return ['too few names: ' + names.length];
    const left = Math.max(around.left, paper.left), right = Math.min(around.right, paper.right);
    const cut = names.filter(([_, box]) => box.some(([x, y]) =>
        x < left || x > right || y < paper.top - 2 || y > paper.bottom + 2));
    return [...cut.map(([name]) => `${name} is cut`), ...names.flatMap(([one, a], place) =>
        names.slice(place + 1).filter(([_, b]) => depth(a, b) > 3)  // less is empty line height
            .map(([other]) => `${one} over ${other}`))];
}"""
WIDTHS = (1440, 1024, 768, 390, 1440)
"""Of the window; the last is the first again."""


@pytest.mark.parametrize("view", ["Paths", "Training+facts"])
def test_no_name_is_over_another(
    look: Look, filled: Recorded, filled_address: str, view: str
) -> None:
    for run, test in (("trace", 0), ("trace", 4), ("trace hostile", 1)):
        path = f"/influence?run={filled.runs[run]}&test={test}&view={view}"
        dashboard = look(filled_address, path)
        for width in WIDTHS:
            dashboard.page.set_viewport_size({"width": width, "height": 900})
            assert dashboard.settle().page.evaluate(OVERLAPS) == [], f"{path}, {width} wide"


WORDS = (
    *("receptor", "inhibitor", "syndrome", "hereditary", "phosphoribosyltransferase", "acute"),
    *("alpha", "II", "2-deoxy-D-glucose", "mitochondrial", "encephalomyopathy", "cell/tissue"),
    "regulation_of_transcription",
)
RELATIONS = ("treats", "directly_physically_interacts_with", "negatively correlated with")
DRAWN_OVER = """() => [...document.querySelectorAll('svg')].map(svg => {
    const around = svg.getBoundingClientRect();
    const names = [...svg.querySelectorAll('text')].map(
        name => [name.textContent, name.getBoundingClientRect()]
    );
    const cut = names.filter(([_, a]) => a.left < around.left || a.right > around.right);
    return [...cut.map(([name]) => `${name} is cut`), ...names.flatMap(
        ([one, a], place) => names.slice(place + 1).filter(([_, b]) =>
            Math.min(a.right, b.right) > Math.max(a.left, b.left) &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3  // less is empty line height
        ).map(([other]) => `${one} over ${other}`)
    )];
})"""


def explanation(seed: int) -> tuple[pd.Series, pd.DataFrame, dict[str, str]]:
    """Return a test triple, facts on random paths and beside them, and kinds of entities."""
    draw = random.Random(seed)
    labels = {
        f"X:{number}": " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))
        for number in range(draw.randint(4, 24))
    }
    keys = list(labels)
    pairs = [tuple(draw.sample(keys, 2)) for _ in range(draw.randint(0, 6))]
    for _ in range(draw.randint(1, 8)):
        path = [keys[0], *draw.sample(keys[2:], min(draw.randint(0, 3), len(keys) - 2)), keys[1]]
        pairs += [step if draw.random() < 0.7 else step[::-1] for step in pairwise(path)]
    facts = [(head, draw.choice(RELATIONS), tail, draw.gauss(0, 1)) for head, tail in pairs]
    frame = pd.DataFrame(facts, columns=["head_id", "relation", "tail_id", "influence"])
    frame = frame.assign(place=range(1, len(frame) + 1), head=frame["head_id"].map(labels))
    frame = frame.assign(train_index=frame["place"])
    frame = frame.assign(tail=frame["tail_id"].map(labels))
    test = frame.iloc[0].copy()
    test["head_id"], test["tail_id"] = keys[:2]
    test["head"], test["tail"] = labels[keys[0]], labels[keys[1]]
    return test, frame, {key: draw.choice(["drug", "gene", "disease"]) for key in keys}


def test_no_name_is_over_another_in_a_hundred_reports(
    browser: Browser, filled: Recorded, use: Callable[[str], None]
) -> None:
    use(filled.uri)
    shared = open_explanation(filled.runs["trace"], 0)
    report, drawn = html_report(shared), picture_of(shared)
    assert drawn in report
    checked = check_of({(1, 2, 3, 4, 5): "strongest"})
    pictures = ""
    for seed in range(100):
        test, facts, kinds = explanation(seed)
        marked, said = marked_in(checked, facts["train_index"]) if seed % 2 else ((), "")
        pictures += picture.draw(test, facts, kinds, marked=marked, caption=said)
    page = browser.new_page()
    page.set_content(report.replace(drawn, pictures))
    for width in (1440, 1024, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(DRAWN_OVER)
        assert len(found) == 100
        assert {seed: over for seed, over in enumerate(found) if over} == {}, width
    page.close()


def test_no_name_is_over_another_in_a_hundred_explanations(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    """Put pictures of other explanations in the place of the page's own."""
    given: list[dict[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_component", lambda data, **_: given.append(data))
        for seed in range(100):
            test, facts, kinds = explanation(seed)
            strongest = facts["influence"].abs().sort_values(ascending=False).index
            options = {"column": "influence", "selected": (seed % 3,), "key": "", "alt": ""}
            given_too = {"take": lambda _: None, "panel": st.container()}
            shown = SharedExplanation(
                test,
                facts,
                Paths(facts, (), ""),
                head(),
                kinds=kinds,
                verified=check_of({(1, 2, 3, 4, 5): "strongest"}),
            )
            graph.show(shown, facts.loc[strongest], **options, **given_too)
    page = look(filled_address, f"/influence?run={filled.runs['trace']}").page
    whole = "[aria-label='Whole picture']"
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(
            f"""pictures => pictures.map(drawn => {{
                document.querySelector('.clew-graph').innerHTML = drawn;
                document.querySelector("{whole}").click();
                return ({OVERLAPS})();
            }})""",
            [str(data["drawn"]) for data in given],
        )
        assert {seed: over for seed, over in enumerate(found) if over} == {}, width


def test_a_row_and_a_line_select_the_same_fact(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&{FACTS}&edges=4")
    dashboard.tick(0, 0)
    assert fact(dashboard) == "1"
    dashboard.shows("made the prediction more likely")
    lines = dashboard.page.locator(".clew-graph svg:visible [data-fact]:not([data-fact='1'])")
    clicked = lines.first.get_attribute("data-fact")
    lines.first.focus()
    dashboard.page.keyboard.press("Enter")
    dashboard.page.wait_for_url(f"**fact={clicked}**")
    dashboard.settle()
    chosen = f".clew-graph svg:visible [data-fact='{clicked}'][opacity='1']"
    dashboard.page.locator(chosen).wait_for(state="attached")
    focused = dashboard.page.evaluate("document.activeElement.dataset.fact")
    assert focused == clicked, "the keyboard goes on from there"
    path = dashboard.page.url.removeprefix(filled_address)
    look(filled_address, path).page.locator(chosen).wait_for(state="attached")


def test_an_entity_shows_its_facts_and_the_picture_is_zoomed(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&{FACTS}")
    entity = dashboard.page.locator(".clew-graph svg:visible [data-entity] text").last
    entity.click()
    dashboard.settle().shows("of the drawn facts")
    assert "entity=" in dashboard.page.url
    box = dashboard.page.locator(".clew-graph")
    narrow = box.evaluate("box => box.scrollWidth")
    dashboard.press("Zoom in").press("Zoom in")
    assert box.evaluate("box => box.scrollWidth") > 1.3 * narrow
    place = box.bounding_box()
    assert place is not None
    before = box.evaluate("box => box.scrollLeft")
    dashboard.page.mouse.move(place["x"] + 200, place["y"] + 100)
    dashboard.page.mouse.down()
    dashboard.page.mouse.move(place["x"] + 100, place["y"] + 100, steps=4)
    dashboard.page.mouse.up()
    assert box.evaluate("box => box.scrollLeft") == pytest.approx(before + 100, abs=2)
    dashboard.settle().shows("of the drawn facts")
    dashboard.press("Whole picture")
    assert box.evaluate("box => box.scrollWidth") == narrow


def test_a_double_click_shows_the_neighbours_and_a_key_hides_them(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&view=Paths")
    every = dashboard.page.locator(".clew-graph svg:visible [data-entity]")
    entity = every.first
    entity.wait_for(state="attached")
    before = every.count()
    name = entity.get_attribute("data-entity")
    entity.locator("text").first.dblclick()
    dashboard.page.wait_for_url(f"**near={name}**")
    dashboard.settle().shows("in the whole training graph")
    assert before < every.count() <= before + graph.NUM_NEIGHBOURS
    for width in WIDTHS:
        dashboard.page.set_viewport_size({"width": width, "height": 900})
        assert dashboard.settle().page.evaluate(OVERLAPS) == [], f"{width} wide"
    dashboard.page.locator(f".clew-graph svg:visible [data-entity='{name}']").focus()
    dashboard.page.keyboard.press("e")
    expect(every).to_have_count(before)
    assert "near=" not in dashboard.settle().page.url
    dashboard.press("Show its neighbours")
    assert every.count() > before


def test_filters_of_facts(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&{FACTS}")
    dashboard.press("Filter facts").press("▼ opposing")
    assert "side=" in dashboard.page.url
    dashboard.page.get_by_text("Hide siblings").click()
    dashboard.settle()
    dashboard.page.get_by_text("Cosine").click()
    dashboard.settle().page.keyboard.press("Escape")
    dashboard.settle().press("Groups").press("shared entity")
    dashboard.page.get_by_test_id("stVegaLiteChart").first.wait_for()


def test_a_file_from_the_disk(look: Look, filled: Recorded, filled_address: str) -> None:
    folder = filled.files("trace", "influence")
    files = sorted(path for path in folder.iterdir() if path.suffix in {".json", ".parquet"})
    assert len(files) == 2
    dashboard = look(filled_address, "/influence")
    dashboard.press("Open files")
    dashboard.page.locator('input[type="file"]').set_input_files(files)
    dashboard.settle(800)
    dashboard.shows("steroid")
    assert not dashboard.button("Review").count(), "an uploaded file has no run to write to"


def tick_fact(dashboard: Dashboard) -> None:
    """Tick the first box of the table of facts to judge."""
    editor = dashboard.page.get_by_test_id("stDataFrame").filter(visible=True).last
    editor.scroll_into_view_if_needed()
    cell = editor.locator('[role="gridcell"]').first
    for _ in range(5):
        place = editor.bounding_box()
        assert place is not None
        dashboard.page.mouse.click(place["x"] + 12, place["y"] + 35 * 1.5)
        with suppress(AssertionError):  # a table that is just being drawn takes no click
            expect(cell).to_have_attribute("aria-selected", "true", timeout=2000)
            break
    dashboard.page.keyboard.press("Enter")
    dashboard.settle()


def test_explanations_are_judged_and_exported(
    own: Recorded, own_address: str, look: Look, tmp_path: Path
) -> None:
    # `look` comes last so that its page closes first, before the server.
    dashboard = look(own_address, f"/influence?run={own.runs['trace']}&view=Review")
    tick_fact(dashboard)
    comment = dashboard.page.get_by_role("textbox", name="Comment")
    comment.press_sequentially("chance <b>only</b>, 1 of 2")
    dashboard.page.get_by_role("textbox", name="Your name").fill("Grace")
    assert not read_reviews(own.runs["trace"]).records, "a digit in a text is no verdict"
    dashboard.page.set_viewport_size({"width": 1440, "height": 900})
    dashboard.settle().page.evaluate(
        "document.querySelector('[data-testid=stMain]').scrollTo(0, 0)"
    )
    for name in ("✓ plausible", "✗ implausible", "? unsure", "Next"):
        place = dashboard.page.get_by_role("button", name=name).bounding_box()
        assert place is not None
        assert place["y"] + place["height"] < 900, f"{name} is below the window"
    dashboard.press("Groups").press("Review")
    assert comment.input_value() == "chance <b>only</b>, 1 of 2", "what is not saved is kept"
    dashboard.page.get_by_role("textbox", name="Your name").blur()
    dashboard.page.keyboard.press("2")
    dashboard.shows("Saved with the run")
    (review,) = read_reviews(own.runs["trace"]).records
    assert (review.verdict, review.reviewer) == ("implausible", "Grace")
    assert len(review.wrong) + len(review.convincing) == 1
    for test, key, verdict in ((1, "1", "plausible"), (2, "3", "unsure")):
        dashboard.page.keyboard.press("n")
        dashboard.page.wait_for_url(f"**test={test}*")
        dashboard.settle().page.keyboard.press(key)
        dashboard.shows("Saved with the run")
        assert read_reviews(own.runs["trace"]).records[-1].verdict == verdict
    dashboard.open("/reviews")
    assert "Grace" not in dashboard.problems
    assert dashboard.shows("1 · 33%").count("1 · 33%") == 3
    with dashboard.page.expect_download() as download:
        dashboard.button("⤓ CSV").click()
    download.value.save_as(tmp_path / "reviews.csv")
    assert "chance <b>only</b>, 1 of 2" in (tmp_path / "reviews.csv").read_text()
