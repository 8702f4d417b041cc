"""The page Studies: claims by machine."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.recorded import Recorded
from tests.ui.conftest import Open, shown
from tests.ui.seed_many import copy_run

STUDY = "study/study.json"


def on_another_machine(store: Recorded, minutes_earlier: int, **changed: object) -> Path:
    """Copy the study as if another machine had recorded it earlier, and return its report.

    Tests run on one machine.
    """
    run_id, report = f"{minutes_earlier:032x}", store.files("study", STUDY)
    with store.database() as base:
        copy_run(base, store.runs["study"], run_id, age_ms=60_000 * minutes_earlier)
    copy = report.parents[3] / run_id / "artifacts" / STUDY
    shutil.copytree(report.parent, copy.parent)
    copy.write_text(json.dumps(json.loads(report.read_text()) | changed))
    return copy


def claims_of(store: Recorded) -> list[dict[str, Any]]:
    """Return the recorded study's result for each claim."""
    found: list[dict[str, Any]] = json.loads(store.files("study", STUDY).read_text())["claims"]
    return found


@pytest.fixture
def measured(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store with a study of one round, and one of another machine with enough rounds."""
    store = recorded.copy(tmp_path / "studies")
    first, second, third = claims_of(store)
    told = {"measured": {"value": 1.5, "low": 1.25, "high": None, "rounds": 3}}
    claims = [first | told | {"verdict": "holds"}, second | told | {"verdict": "does not hold"}]
    on_another_machine(store, 1, machine="old box", claims=[*claims, third])
    on_another_machine(store, 2, machine="old box", claims=[first | {"verdict": "holds"}])
    return store


def test_claims_stand_beside_measurements_by_machine(page: Open, measured: Recorded) -> None:
    app = page("studies", measured.uri)
    one_round = [claim["verdict"].split()[0] for claim in claims_of(measured)]
    assert one_round[:2] == ["cannot", "cannot"]
    both = Counter([*one_round, "holds", "does", one_round[2]])
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers == {
        "✓ Hold": str(both["holds"]),
        "✗ Do not hold": str(both["does"]),
        "? Cannot be told yet": str(both["cannot"]),
        "○ Open: not measurable here": str(both["open:"]),
    }
    table = app.dataframe[0].value
    order = list(app.dataframe[0].proto.column_order)
    assert order[:3] == ["study", "claim", "verdict"], "a tablet shows no more without scrolling"
    assert list(table["machine"])[3:] == ["old box"] * 3, "the latest of each"
    assert list(table["low"])[3:5] == [1.25, 1.25]
    assert all(re.fullmatch(r"at (least|most) [\de.+-]+", bounds) for bounds in table["bounds"])
    assert "<b>a million</b> times as fast" in set(table["claim"])
    assert set(table["about"]) == {"ratio"}
    assert "about" in order
    only = page("studies", measured.uri, machine="old box")
    assert set(only.dataframe[0].value["machine"]) == {"old box"}


def test_a_store_without_studies_shows_those_that_ship_and_says_what_to_do(
    page: Open, single: Recorded
) -> None:
    app = page("studies", single.uri)
    assert "clew compare --study" in shown(app)
    files = (Path(__file__).parents[2] / "experiments/studies/results").glob("*.json")
    shipped = [json.loads(file.read_text()) for file in files]
    table = app.dataframe[0].value
    assert Counter(table["claim"]) == Counter(c["claim"] for s in shipped for c in s["claims"])
    assert set(table["machine"]) == {study["machine"] for study in shipped}


def test_a_damaged_report_hides_no_other(page: Open, measured: Recorded) -> None:
    on_another_machine(measured, 3, machine="third box").write_text("{not json")
    found = set(page("studies", measured.uri).dataframe[0].value["machine"])
    assert len(found) == 2
    assert "old box" in found
