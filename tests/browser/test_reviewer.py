"""The reviewer's path: why does the model believe this, and is that a good reason?"""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from clew.runs.reading import picture
from clew.runs.reading.explanation import html_report, open_explanation, picture_of
from clew.runs.reading.reviews import read_reviews
from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard, serving
from tests.recorded import NUM_TESTS, Recorded

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
    dashboard.shows("Asked for clinical_attribute")
    dashboard.page.get_by_role("searchbox", name="Search test triples").fill("neopl")
    dashboard.page.keyboard.press("Enter")
    dashboard.settle()
    dashboard.shows("Asked for neoplastic_process")


def test_paths_come_first_on_one_screen(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace hostile']}")
    dashboard.shows("The most specific path from")
    chart = dashboard.page.get_by_test_id("stEChartsChart").bounding_box()
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


OVERLAPS = """() => {
    const names = [...document.querySelectorAll('[data-testid="stEChartsChart"] svg text')].filter(
        name => !(name.getAttribute('transform') || '').startsWith('matrix')
    ).map(name => [name.textContent, name.getBoundingClientRect()]);
    if (names.length < 3) return ['too few names: ' + names.length];
    return names.flatMap(([one, a], place) => names.slice(place + 1).filter(([_, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3  // less is empty line height
    ).map(([other]) => `${one} over ${other}`));
}"""


@pytest.mark.parametrize("view", ["Paths", "Training+facts"])
def test_no_name_is_over_another(
    look: Look, filled: Recorded, filled_address: str, view: str
) -> None:
    for run, test in (("trace", 0), ("trace", 4), ("trace hostile", 1)):
        path = f"/influence?run={filled.runs[run]}&test={test}&view={view}"
        dashboard = look(filled_address, path)
        for width in (1440, 1024, 768, 390):
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
    frame = frame.assign(head=frame["head_id"].map(labels), tail=frame["tail_id"].map(labels))
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
    pictures = "".join(picture.draw(*explanation(seed)) for seed in range(100))
    page = browser.new_page()
    page.set_content(report.replace(drawn, pictures))
    for width in (1440, 1024, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(DRAWN_OVER)
        assert len(found) == 100
        assert {seed: over for seed, over in enumerate(found) if over} == {}, width
    page.close()


def test_a_row_and_an_edge_select_the_same_fact(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&{FACTS}&edges=4")
    dashboard.tick(0, 0)
    assert fact(dashboard) == "1"
    dashboard.shows("made the prediction more likely")
    clicked = click_edges(dashboard)
    assert clicked, "no edge of the graph could be clicked"
    dashboard.shows(f"rank {clicked}")
    path = dashboard.page.url.removeprefix(filled_address)
    look(filled_address, path).shows(f"rank {clicked}")


def click_edges(dashboard: Dashboard) -> str | None:
    """Click edges of the graph until a fact other than the first is selected; return its rank."""
    chart = dashboard.page.get_by_test_id("stEChartsChart")
    chart.scroll_into_view_if_needed()
    place = chart.bounding_box()
    assert place is not None
    for x, y in edge_points(chart.screenshot()):
        dashboard.page.mouse.click(place["x"] + x, place["y"] + y)
        for _ in range(50):  # a second click on the same edge would undo the selection
            dashboard.page.wait_for_timeout(100)
            if fact(dashboard) not in (None, "1"):
                dashboard.settle()
                return fact(dashboard)
    return None


def edge_points(picture: bytes) -> list[tuple[int, int]]:
    """Return some points on faded edges of proponents; the selected edge is not faded."""
    pixels = np.asarray(Image.open(BytesIO(picture)).convert("RGB")).astype(int)
    blueness = pixels[..., 2] - pixels[..., 0]
    faded = (blueness > 60) & (blueness < 115)
    # The edges of other lines and of letters are as pale, but not for seven pixels in a row.
    runs = np.lib.stride_tricks.sliding_window_view(faded, 7, axis=1).all(axis=2)
    rows, columns = np.nonzero(runs)
    chosen = np.random.default_rng(0).permutation(len(rows))[:8]
    return [(int(columns[i]) + 3, int(rows[i])) for i in chosen]


def test_filters_of_facts(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&{FACTS}")
    dashboard.press("Filter facts").press("▼ opposing")
    assert "side=" in dashboard.page.url
    dashboard.page.get_by_text("Hide siblings").click()
    dashboard.settle()
    dashboard.page.get_by_text("Cosine").click()
    dashboard.settle().press("bars")
    dashboard.page.get_by_test_id("stVegaLiteChart").first.wait_for()
    dashboard.page.keyboard.press("Escape")
    dashboard.settle().press("Groups").press("shared entity").press("Another run")
    dashboard.choose("Compare with", _traced_in_half_precision(dashboard))
    dashboard.shows("Spearman")
    assert "other=" in dashboard.page.url


def _traced_in_half_precision(dashboard: Dashboard) -> str:
    """Return the label of the bf16 trace run of the fp32 model; it ends with the run's time."""
    dashboard.page.get_by_role("combobox", name="Compare with").click()
    options = dashboard.page.get_by_role("option").all_inner_texts()
    dashboard.page.keyboard.press("Escape")
    begin = "tracin umls, 6 triples · fp32, traced in bf16 · umls · "
    return next(text for text in options if text.startswith(begin))


def test_a_file_from_the_disk(look: Look, filled: Recorded, filled_address: str) -> None:
    folder = filled.files("trace", "influence")
    files = sorted(path for path in folder.iterdir() if path.suffix != ".svg")
    assert len(files) == 3
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
