"""The engineer's path to a run, and the reviewer's path to a report that can be sent by mail."""

from pathlib import Path

from tests.browser.conftest import Look
from tests.recorded import Recorded


def test_from_the_overview_to_a_run(look: Look, filled: Recorded, filled_address: str) -> None:
    dashboard = look(filled_address, "/?search=kind:train+state:finished")
    dashboard.tick(0, 0)
    dashboard.page.get_by_role("link", name="Open this run").click()
    dashboard.page.get_by_role("heading", name="Metrics").wait_for()
    dashboard.settle()
    assert "id=" in dashboard.page.url
    dashboard.shows("clew train --config run-")
    dashboard.shows("mlflow ui --backend-store-uri")
    dashboard.tick(0, 3)
    assert "metric=" in dashboard.page.url
    path = dashboard.page.url.removeprefix(filled_address)
    headings = dashboard.page.get_by_role("heading", level=2).all_inner_texts()
    shared = look(filled_address, path, width="narrow", scheme="dark")
    assert shared.page.get_by_role("heading", level=2).all_inner_texts() == headings
    assert not shared.overflows()


def test_only_disarmed_tables_are_downloaded(
    look: Look, filled: Recorded, filled_address: str, tmp_path: Path
) -> None:
    """The button of Streamlit's own, for names as they are, is not there."""
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}&view=Training+facts")
    dashboard.page.get_by_test_id("stDataFrame").last.hover()
    dashboard.page.get_by_role("button", name="Search").first.wait_for()
    assert not dashboard.page.get_by_role("button", name="Download as CSV").count()
    with dashboard.page.expect_download() as download:
        dashboard.button("⤓ CSV").last.click()
    download.value.save_as(tmp_path / "facts.csv")
    assert (tmp_path / "facts.csv").read_text().startswith("place,rank,head_id,head,")


def test_a_report_is_downloaded(
    look: Look, filled: Recorded, filled_address: str, tmp_path: Path
) -> None:
    dashboard = look(filled_address, f"/influence?run={filled.runs['trace']}").press("Share")
    for label, ending, beginning in (
        ("⤓ Report to mail (HTML)", ".html", "<!doctype html>"),
        ("⤓ TRAPI message (JSON)", ".json", "{"),
    ):
        with dashboard.page.expect_download() as download:
            dashboard.button(label).click()
        assert download.value.suggested_filename.endswith(ending)
        download.value.save_as(tmp_path / "shared")
        assert (tmp_path / "shared").read_text().startswith(beginning)
