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
    dashboard.choose("Head", "acquired_abnormality")
    dashboard.choose("Relation", "location_of").press("Ask")
    dashboard.shows("Tick an answer to ask why", seconds=SECONDS)
    return dashboard


def test_a_question_is_answered(look: Look, champion_address: str) -> None:
    dashboard = ask(look, champion_address)
    dashboard.shows("acquired_abnormality")
    assert "h=acquired_abnormality" in dashboard.page.url
    assert "r=location_of" in dashboard.page.url


def test_what_has_this_tail_is_answered_and_explained(look: Look, champion_address: str) -> None:
    dashboard = look(champion_address, "/ask")
    dashboard.choose("Relation", "location_of")
    dashboard.choose("Tail", "virus").press("Ask")
    dashboard.shows("Tick an answer to ask why", seconds=SECONDS)
    dashboard.tick(0, 1)
    dashboard.press("Why?")
    dashboard.shows("Read the explanation", seconds=SECONDS)
    assert "for=head" in dashboard.page.url
    dashboard.page.get_by_role("link", name="Read the explanation").click()
    dashboard.page.get_by_role("heading", name="Influence", level=1).wait_for()
    dashboard.settle().shows("location_of")


def test_an_example_is_asked_and_a_triple_explained(look: Look, champion_address: str) -> None:
    dashboard = look(champion_address, "/ask")
    dashboard.shows("For example")
    dashboard.page.get_by_role("button", name="how likely is it, and why?").click()
    dashboard.settle().shows("candidates", seconds=SECONDS)
    dashboard.press("Why this rank?")
    dashboard.shows("Read the explanation", seconds=SECONDS)


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
