"""An explanation says whether its scores were tested, and with what result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from clew.runs.reading.explanation import triple_of
from clew.runs.reading.reviews import Fact, Review, append_review
from clew.runs.validation_record import label_of
from clew.runs.verification import Verification, read_kept
from clew.ui.components import graph, tables
from tests.recorded import Recorded
from tests.runs.reading.test_checked_pictures import marked_lines
from tests.runs.reading.test_validations import add_validation, record, settings_of, with_unit
from tests.ui.commands_here import CommandsHere
from tests.ui.conftest import Open, no_surprise, shown


@pytest.mark.parametrize("later", [False, True])
def test_the_page_influence_says_whether_the_scores_were_tested(
    page: Open, recorded: Recorded, use: Callable[[str], None], tmp_path: Path, later: bool
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    head, settings = settings_of(store, tmp_path / "files")
    label = head.label
    if later:
        found = with_unit(record(head.model.run_id, head.settings["score"], settings), fall=2.0)
        add_validation(store, head.model.run_id, found.model_dump_json())
        label = replace(head, validation=found.summary(head.settings["score"], "r")).label
    assert label.verdict == ("better" if later else "not tested")
    app = page("influence", store.uri, run=store.runs["trace"], view="Training facts")
    assert label.sentence in shown(app)
    (facts,) = (table.value for table in app.dataframe if "±" in table.value)
    assert ("Fall" in facts) == later
    if later:
        assert facts["Fall"].tolist() == (2 * facts[head.form.heading]).tolist()


def test_the_page_reviews_says_it_of_an_opened_review(
    page: Open,
    recorded: Recorded,
    use: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    head, _ = settings_of(store, tmp_path / "files")
    test = Fact(*triple_of(head.tests.iloc[0]))
    append_review(Review(store.runs["trace"], test, "plausible", "Ada"))
    assert head.label.sentence not in shown(page("reviews", store.uri))
    monkeypatch.setattr(tables, "ticked", lambda table, values, **look: values[:1])
    assert head.label.sentence in shown(page("reviews", store.uri))


@pytest.mark.parametrize("kind", ["trace text", "trace frames"])
def test_text_and_frames_are_not_tested(page: Open, recorded: Recorded, kind: str) -> None:
    content = shown(page("influence", recorded.uri, run=recorded.runs[kind]))
    assert label_of(None, {"score": "raw"}, None).sentence in content


def test_a_person_starts_the_check_and_reads_what_happened(
    page: Open,
    recorded: Recorded,
    use: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    commands = CommandsHere(tmp_path / "jobs", monkeypatch)
    trace = store.runs["trace"]
    app = page("influence", store.uri, run=trace, view="Check it")
    (button,) = (button for button in app.button if button.label == "Check it")
    no_surprise(button.click().run())
    job = commands.run_last()
    assert job.state == "done", job.log()
    found = read_kept(Verification, trace)
    assert found is not None
    (test,) = found.tests
    seen = shown(no_surprise(app.run()))
    assert all(line in seen for line in found.lines(test))
    assert not [button for button in app.button if button.label == "Check it"]
    assert found.verdict(test) in shown(page("influence", store.uri, run=trace, view="Groups"))
    given: dict[str, Any] = {}
    monkeypatch.setattr(graph, "_component", lambda data, **_: given.update(data))
    page("influence", store.uri, run=trace, view="Training facts", edges="60")
    strongest = max((r for r in test.removals if r.kind == "strongest"), key=lambda r: len(r.facts))
    whole = set(strongest.facts)
    for svg in ElementTree.fromstring(f"<div>{given['drawn']}</div>"):
        marked = marked_lines(ElementTree.tostring(svg, encoding="unicode"))
        assert 0 < len(marked) <= len(whole)
    assert f"the {len(whole)} marked facts" in given["legend"]


def test_a_check_that_found_nothing_about_this_triple_is_shown_once(
    page: Open, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address can name the check of another triple."""
    commands = CommandsHere(tmp_path / "jobs", monkeypatch)
    job = commands.start(None, title="Check another", action="explain")
    job.exit_code = 0
    job.ended.set()
    app = page(
        "influence", recorded.uri, run=recorded.runs["trace"], check=job.job_id, view="Check it"
    )
    assert [button for button in app.button if button.label == "Check it"]
    assert "check" not in app.query_params
