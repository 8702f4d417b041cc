"""Every action of every page as people with each role; a forged click counts too."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from clew.runs.reading.disagreements import find_disagreements
from clew.runs.reading.reviews import Review, append_review, read_reviews
from clew.ui import access
from clew.ui.access import ACTIONS, ROLES, Action, Role
from clew.ui.components import answers
from clew.ui.components.explanations import facts_of, report_head, report_of_run
from clew.ui.components.jobs import Job
from clew.ui.components.reviews import fact_of, reviews_of
from clew.ui.components.runs import runs_by_id
from tests.recorded import Recorded
from tests.ui.commands_here import CommandsHere
from tests.ui.conftest import TIMEOUT_SECONDS

ADDRESS = "ada@example.org"
LISTS = dict(zip(ROLES, access.Settings.model_fields, strict=True))
ELSEWHERE = ("Sign out", "◀ Back", "Next ▶")


class Visit:
    """A person's visits to the pages, and what they tried and did there."""

    def __init__(self, role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
        self.role = role
        self.allowed: set[Action] = set()
        self.refused: set[Action] = set()
        authorize = access.authorize

        def watched(action: Action) -> str:
            try:
                person = authorize(action)
            except access.AccessError:
                self.refused.add(action)
                raise
            self.allowed.add(action)
            return person

        monkeypatch.setattr(access, "authorize", watched)
        monkeypatch.setattr(access, "may", lambda action: True)  # a forged page offers everything

    def open(self, page: str, **parameters: str) -> AppTest:
        app = AppTest.from_string(
            f"from clew.ui.components import basics\nbasics.require()\n"
            f"from clew.ui.views import {page}\n{page}.render()",
            default_timeout=TIMEOUT_SECONDS,
        )
        app.user = {"is_logged_in": True, "email": ADDRESS, "email_verified": True}
        app.secrets |= {"auth": {"client_id": "x"}, "clew": {LISTS[self.role]: [ADDRESS]}}
        for key, value in parameters.items():
            app.query_params[key] = value
        return app.run()

    def press_all(self, page: str, *, uploads: bool = False, **parameters: str) -> None:
        """Open a page and press each of its buttons, each on a page opened again."""
        start: Any = self.open(page, **parameters)
        if uploads:
            for box in start.file_uploader:
                box.set_value([("influence.json", b"{}", "application/json")]).run()
        labels = [button.label for button in start.button]
        for number, label in enumerate(labels):
            if label not in ELSEWHERE:
                app = self.open(page, **parameters)
                if number < len(app.button) and not app.button[number].disabled:
                    app.button[number].click().run()


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    """Return a store with a champion, and two reviewers who disagree about an explanation."""
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    run_id = store.runs["trace"]
    files = report_of_run(run_id)
    test = fact_of(report_head(files).tests.loc[0])
    first, second = (fact_of(facts_of(files, 0).iloc[place]) for place in (0, 1))
    append_review(Review(run_id, test, "plausible", "Ada", wrong=(second,)))
    append_review(Review(run_id, test, "implausible", "Grace", wrong=(first, second)))
    return store


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandsHere:
    answers.prepare_reasons.clear()
    monkeypatch.setattr(Job, "end", lambda job, number: None)
    return CommandsHere(tmp_path / "jobs", monkeypatch)


def walk(visit: Visit, store: Recorded, running: Sequence[Job]) -> None:
    """Press everything on all pages, among it Cancel of running jobs."""
    trace, trained = store.runs["trace"], store.runs["fp32 1"]
    question = {"h": "eicosanoid", "r": "affects"}
    visit.press_all("overview")
    visit.press_all("run", id=trained)
    visit.press_all("compare", runs=trained)
    visit.press_all("influence", uploads=True, run=trace)
    visit.press_all("influence", run=trace, view="Review")
    visit.press_all("influence", run=trace, view="Check it")
    visit.press_all("reviews", run=trace)
    for key in disagreements(trace):
        visit.press_all("reviews", run=trace, decide=key)
    visit.press_all("models", candidate=trained, job=running[0].job_id)
    visit.press_all("studies", machine="x")
    visit.press_all("ask", answer=running[1].job_id, **question)
    visit.press_all("ask", answer="gone", **question)


def disagreements(run_id: str) -> list[str]:
    found = find_disagreements(reviews_of(run_id).records, runs_by_id([run_id]))
    assert len(found) == 2, "an explanation, and a fact that one person marked as wrong"
    return [each.key for each in found]


def contents(store: Recorded) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in store.folder.rglob("*")
        if path.is_file() and "project" not in path.parts
    }


@pytest.fixture
def running(commands: CommandsHere) -> list[Job]:
    """Return jobs that somebody else has started."""
    return [commands.start(None, title="", action=action) for action in ("promote", "ask")]


def test_a_reader_changes_and_starts_nothing(
    store: Recorded, commands: CommandsHere, running: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, before = Visit("reader", monkeypatch), contents(store)
    walk(visit, store, running)
    assert visit.allowed == set()
    assert visit.refused == set(ACTIONS)
    assert commands.asked == running
    assert not any(job.cancelled for job in running)
    assert contents(store) == before


def test_a_promoter_does_it_all_and_is_recorded(
    store: Recorded, commands: CommandsHere, running: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = Visit("promoter", monkeypatch)
    walk(visit, store, running)
    assert visit.allowed == set(ACTIONS)
    assert visit.refused == set()
    started = commands.asked[len(running) :]
    assert {job.action for job in started} == {
        *("ask", "explain", "check", "promote", "roll back", "train")
    }
    assert {job.person for job in started} == {ADDRESS}
    assert [job.cancelled_by for job in running] == [ADDRESS, ADDRESS]
    run_id = store.runs["trace"]
    reviews = read_reviews(run_id).records
    assert {review.reviewer for review in reviews} == {"Ada", "Grace", ADDRESS}
    assert {review.reviewer for review in reviews if review.final} == {ADDRESS}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_role_may_do_what_the_lower_ones_may(
    action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    class User(dict[str, Any]):
        to_dict = dict.copy

    claims = {"is_logged_in": True, "email": ADDRESS, "email_verified": True}
    monkeypatch.setattr(access.st, "user", User(claims))
    for role in ROLES:
        listed = access.Settings.model_validate({LISTS[role]: [ADDRESS]})
        monkeypatch.setattr(access, "settings", lambda listed=listed: listed)
        assert access.may(action) is (ROLES.index(role) >= ROLES.index(ACTIONS[action]))
