"""Promoting, asking and explaining with the champion among the recorded models."""

from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard

SECONDS = 120


def test_a_run_is_checked_and_promoted(look: Look, champion_address: str) -> None:
    dashboard = look(champion_address, "/models")
    dashboard.shows("models:/clew-umls@champion")
    dashboard.page.get_by_role("textbox", name="Model name").fill("clew-second")
    dashboard.page.keyboard.press("Enter")
    dashboard.settle().press("Check only")
    text = dashboard.shows("dry run", "cannot be shown", seconds=SECONDS)
    assert "nothing written" in text
    for check in ("weights", "validation"):
        assert check in text
    assert "job=" in dashboard.page.url


def ask(look: Look, address: str) -> Dashboard:
    dashboard = look(address, "/ask")
    dashboard.page.get_by_role("searchbox", name="Find a head").fill("acquired")
    dashboard.page.wait_for_timeout(1500)
    dashboard.settle()
    dashboard.choose("Relation", "location_of").press("Ask")
    dashboard.shows("Tick an answer to ask why", seconds=SECONDS)
    return dashboard


def test_a_question_is_answered(look: Look, champion_address: str) -> None:
    dashboard = ask(look, champion_address)
    dashboard.shows("acquired_abnormality")
    assert "h=acquired_abnormality" in dashboard.page.url
    assert "r=location_of" in dashboard.page.url


def test_an_answer_is_explained(look: Look, champion_address: str) -> None:
    dashboard = ask(look, champion_address)
    dashboard.tick(0, 0)
    dashboard.press("Why?")
    dashboard.shows("Read the explanation", seconds=SECONDS)
    dashboard.page.get_by_role("link", name="Read the explanation").click()
    dashboard.page.get_by_role("heading", name="Influence", level=1).wait_for()
    dashboard.settle()
    text = dashboard.shows("Asked for acquired_abnormality")
    assert "location_of" in text
