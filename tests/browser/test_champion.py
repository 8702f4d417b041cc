"""Asking and explaining with the champion of the recorded models; test_stories.py has the rest."""

from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard

SECONDS = 120


def ask(look: Look, address: str) -> Dashboard:
    dashboard = look(address, "/ask")
    dashboard.choose("Head", "acquired_abnormality")
    dashboard.choose("Relation", "location_of")
    dashboard.shows("Why ", seconds=SECONDS)
    return dashboard


def test_a_question_is_answered(look: Look, champion_address: str) -> None:
    dashboard = ask(look, champion_address)
    dashboard.shows("acquired_abnormality")
    assert "h=acquired_abnormality" in dashboard.page.url
    assert "r=location_of" in dashboard.page.url


def test_an_example_is_asked_and_a_triple_explained(look: Look, champion_address: str) -> None:
    dashboard = look(champion_address, "/ask")
    dashboard.shows("For example")
    dashboard.page.get_by_role("button", name="how likely is it, and why?").click()
    dashboard.settle().shows("candidates", seconds=SECONDS)
    dashboard.press("Why this rank as tail?")
    dashboard.shows("Read the explanation", seconds=SECONDS)


def test_an_answer_is_explained(look: Look, champion_address: str) -> None:
    dashboard = ask(look, champion_address)
    dashboard.page.get_by_role("button", name="Why ").click()
    dashboard.shows("Read the explanation", seconds=SECONDS)
    dashboard.page.get_by_role("link", name="Read the explanation").click()
    dashboard.page.get_by_role("heading", name="Influence", level=1).wait_for()
    dashboard.settle()
    text = dashboard.shows("Asked for acquired abnormality")
    assert "location of" in text
