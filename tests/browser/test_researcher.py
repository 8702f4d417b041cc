"""The researcher's path: which precision and memory options should I train with?"""

from pathlib import Path

from tests.browser.conftest import Look
from tests.recorded import Recorded


def test_from_the_overview_to_a_comparison(
    look: Look, filled: Recorded, filled_address: str
) -> None:
    dashboard = look(filled_address)
    dashboard.shows(f"of {len(filled.client.search_runs(['1']))} runs")
    box = dashboard.page.get_by_role("searchbox", name="Search")
    box.fill("state:finished kind:train")
    box.press("Enter")
    dashboard.settle()
    assert "search=" in dashboard.page.url
    dashboard.tick(0, 1).tick(0, 2)
    dashboard.page.get_by_role("link", name="Compare 2 runs").click()
    dashboard.page.get_by_role("heading", name="Compare").wait_for()
    dashboard.settle()
    assert "runs=" in dashboard.page.url
    dashboard.shows("reference")


def test_the_preset_and_what_can_be_taken_away(
    look: Look, filled_address: str, tmp_path: Path
) -> None:
    dashboard = look(filled_address, "/compare").press("FP32 / FP16 / checkpointing")
    text = dashboard.text()
    for variant in ("fp32", "bf16", "fp32+ckpt", "bf16+ckpt"):
        assert variant in text
    assert "reference · 2 runs" in text
    assert "×" in text
    for label, name, beginning in (
        ("⤓ CSV", "comparison.csv", "group,runs"),
        ("⤓ Markdown", "comparison.md", "| variant"),
        ("⤓ LaTeX", "comparison.tex", r"\begin{tabular}"),
    ):
        with dashboard.page.expect_download() as download:
            dashboard.button(label).click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_text().startswith(beginning)


def test_an_address_shows_a_colleague_the_same(look: Look, filled_address: str) -> None:
    dashboard = look(filled_address, "/compare").press("FP32 / FP16 / checkpointing")
    dashboard.choose("Reference", "bf16 · seed 1").press("both")
    dashboard.page.get_by_text("Seeds together").click()
    dashboard.settle()
    path = dashboard.page.url.removeprefix(filled_address)
    table = "table.clew-table"
    shown = dashboard.page.locator(table).inner_text()
    assert "reference · 1 run" in shown
    assert look(filled_address, path).page.locator(table).inner_text() == shown


def test_charts_can_be_saved(look: Look, filled_address: str) -> None:
    dashboard = look(filled_address, "/compare").press("FP32 / FP16 / checkpointing")
    chart = dashboard.page.get_by_test_id("stVegaLiteChart").first
    chart.scroll_into_view_if_needed()
    frames = dashboard.page.get_by_test_id("stFullScreenFrame")
    frame = frames.filter(has=dashboard.page.get_by_test_id("stVegaLiteChart")).first
    with dashboard.page.expect_download() as download:
        # The tool bar appears and disappears with the pointer; with the keyboard it stays.
        frame.get_by_role("button", name="Download as PNG").focus()
        dashboard.page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".png")


def test_the_keyboard_is_enough(look: Look, filled_address: str) -> None:
    dashboard = look(filled_address)
    page = dashboard.page
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == "Compare":
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Compare").wait_for()
    dashboard.settle()
    preset = dashboard.button("FP32 / FP16 / checkpointing")
    preset.focus()
    page.keyboard.press("Enter")
    dashboard.settle()
    dashboard.shows("reference")
