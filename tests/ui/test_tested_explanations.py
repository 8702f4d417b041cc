"""An explanation of a tested model shows the result of the test."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from clew.runs.reading.reports import read_head, report_files
from clew.runs.verification import Verification, read_kept
from tests.recorded import Recorded
from tests.runs.reading.test_validations import add_validation, record
from tests.ui.commands_here import CommandsHere
from tests.ui.conftest import Open, no_surprise, shown


def page() -> None:
    import pandas as pd

    from clew.runs.reading.reports import ReportHead
    from clew.runs.validation_record import ValidationSummary
    from clew.ui.components import facts

    found = ValidationSummary(
        run_id="r", form="raw", lds_other_seeds=0.35, lds_siblings=0.33, lds_ceiling=0.58
    )
    ids = {"head_id": "h", "relation_id": "r", "tail_id": "t"}
    triple = {"head": "h", "relation": "r", "tail": "t", "candidates": 1, **ids}
    test = pd.Series({**triple, "rank": 1.0, "score": 2.0, "self_influence": 3.0})
    found_facts = pd.DataFrame([{**triple, "place": 1, "rank": 1, "influence": 0.5}])
    facts.card(test, found_facts, [], ReportHead(pd.DataFrame(), validation=found))
    facts.card(test, found_facts, [], ReportHead(pd.DataFrame()))


def test_the_measures_are_said_once_for_the_report_that_has_them() -> None:
    app = AppTest.from_function(page).run()
    assert not app.exception
    elements = (*app.markdown, *app.caption, *app.info)
    # Markdown's special characters are escaped, and no colon starts an emoji's name.
    texts = [re.sub(r"\\|\u2060", "", str(element.value)) for element in elements]
    tested = [text for text in texts if "Tested: on this data" in text]
    assert len(tested) == 1
    assert "rank correlation of .35 (counting siblings .33, ceiling .58)" in tested[0]


def test_the_page_influence_says_of_a_test_that_came_later(
    page: Open, recorded: Recorded, use: Callable[[str], None], tmp_path: Path
) -> None:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    trace = store.runs["trace"]
    head = read_head(report_files(trace, tmp_path / "files"))
    found = record(head.run_id, head.settings["score"], head.settings["direction"])
    add_validation(store, head.run_id, found.model_dump_json())
    assert "predicts retraining with" in shown(page("influence", store.uri, run=trace))


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
