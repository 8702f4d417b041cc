"""Training, promoting, asking and explaining with the champion of the recorded models."""

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import Look
from tests.browser.dashboard import Dashboard
from tests.browser.held_training import held_trainings
from tests.recorded import MODEL, Recorded, flags

SECONDS = 120


def test_two_runs_are_watched_and_compared_and_one_is_promoted_and_rolled_back(
    look: Look, champion: Recorded, champion_address: str, tmp_path: Path
) -> None:
    """The engineer's path: train, watch, compare, check, promote, and undo the promotion."""
    before = champion_of(champion)
    with held_trainings(champion.uri, tmp_path, flags(2)) as let_go:
        dashboard = look(champion_address)
        page = dashboard.page
        expect(page.get_by_text("epoch 1 of 2")).to_have_count(2, timeout=SECONDS * 1000)
        let_go()
        running = page.get_by_test_id("stMetric").filter(has_text="▶ Running")
        expect(running).to_have_text(re.compile(r"\D0$"), timeout=SECONDS * 1000)
    finished = "/?search=kind:train+state:finished"
    dashboard.open(finished).tick(0, 0).tick(0, 1)
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("heading", name="Compare", level=1).wait_for()
    dashboard.settle().shows("reference · 2 runs")
    dashboard.open(finished).tick(0, 0)
    page.get_by_role("link", name="Promote this run").click()
    page.get_by_role("heading", name="Models", level=1).wait_for()
    dashboard.settle().press("Check only")
    text = dashboard.shows("dry run", "cannot be shown", seconds=SECONDS)
    assert "nothing written" in text
    for check in ("weights", "validation"):
        assert check in text
    assert "job=" in page.url
    page.get_by_role("textbox", name="Overrule, with a reason").fill("a trial")
    page.get_by_role("textbox", name="Overrule, with a reason").blur()
    dashboard.settle().press("Promote")
    roll_back = page.get_by_role("button", name=f"Roll back to version {before}")
    roll_back.wait_for(timeout=SECONDS * 1000)
    assert champion_of(champion) == "3"
    dashboard.settle().press(f"Roll back to version {before}").press("Roll back now")
    page.get_by_role("button", name="Roll back to version 3").wait_for(timeout=SECONDS * 1000)
    assert champion_of(champion) == before


def champion_of(store: Recorded) -> str:
    """Return the version of the model that answers questions."""
    return str(store.client.get_model_version_by_alias(MODEL, "champion").version)


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


def test_a_drug_for_a_disease_is_found_and_explained(look: Look, champion_address: str) -> None:
    """The biologist's path: what treats this, and why? test_reviewer.py has its end."""
    dashboard = look(champion_address, "/ask")
    dashboard.choose("Relation", "treats")
    dashboard.choose("Tail", "disease_or_syndrome")
    dashboard.shows("Why ", seconds=SECONDS)
    dashboard.tick(0, 1)
    dashboard.page.get_by_role("button", name="Why ").click()
    dashboard.shows("Read the explanation", seconds=SECONDS)
    assert "strongest fact" in dashboard.text(), "what it found, in words"
    assert "for=head" in dashboard.page.url
    dashboard.page.get_by_role("link", name="Read the explanation").click()
    dashboard.page.get_by_role("heading", name="Influence", level=1).wait_for()
    dashboard.settle().shows("The most specific path from")
    chart = dashboard.page.locator(".clew-graph").bounding_box()
    assert chart is not None
    assert chart["height"] > 200
    steps = dashboard.page.get_by_role("listitem").all_inner_texts()
    assert any("disease or syndrome" in step for step in steps), steps


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
    text = dashboard.shows("Asked for acquired_abnormality")
    assert "location_of" in text
