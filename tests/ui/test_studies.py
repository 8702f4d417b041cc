"""The page Studies: variants, and their ratios to the reference, by machine."""

import json
import shutil
from collections import Counter
from pathlib import Path

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


RATIO = {"value": 1.5, "low": 1.25, "high": 1.75, "rounds": 3}
CLAIM = {"claim": "faster", "source": "", "verdict": "holds", "measured": RATIO}


@pytest.fixture
def measured(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store with a study of one round, and one of another machine with enough rounds."""
    store = recorded.copy(tmp_path / "studies")
    first, second = json.loads(store.files("study", STUDY).read_text())["results"]
    rows = [first, second | {"variant": "<b>large</b> batch", "median": 2.0, "ratio": RATIO}]
    on_another_machine(store, 1, machine="old box", results=rows, claims=[CLAIM])
    on_another_machine(store, 2, machine="old box", results=[first])
    return store


def test_variants_stand_beside_the_reference_by_machine(page: Open, measured: Recorded) -> None:
    table = page("studies", measured.uri).dataframe[0].value
    assert list(table["Machine"])[2:] == ["old box"] * 2, "the latest of each"
    assert list(table["Variant"])[1::2] == ["large batch", "<b>large</b> batch"]
    assert set(table["Reference"]) == {"small batch"}
    assert (table["Median"] > 0).all()
    assert list(table["Ratio"].isna()) == [True, False, True, False], "none of the reference"
    assert list(table["95 % from"].isna()) == [True, True, True, False], "none of one round"
    assert tuple(table.loc[3, ["Median", "Ratio", "95 % from", "95 % to"]]) == (2, 1.5, 1.25, 1.75)
    only = page("studies", measured.uri, machine="old box")
    assert set(only.dataframe[0].value["Machine"]) == {"old box"}


def test_a_store_without_studies_shows_those_that_ship_and_says_what_to_do(
    page: Open, single: Recorded
) -> None:
    app = page("studies", single.uri)
    assert "clew compare --study" in shown(app)
    files = (Path(__file__).parents[2] / "experiments/studies/results").glob("*.json")
    shipped = [json.loads(file.read_text()) for file in files]
    table = app.dataframe[0].value
    rows = Counter((s["study"], r["variant"], r["label"]) for s in shipped for r in s["results"])
    shown_rows = table[["Study", "Variant", "Measure"]].itertuples(index=False, name=None)
    assert Counter(shown_rows) == rows
    assert set(table["Machine"]) == {study["machine"] for study in shipped}


def test_a_damaged_report_hides_no_other(page: Open, measured: Recorded) -> None:
    on_another_machine(measured, 3, machine="third box").write_text("{not json")
    found = set(page("studies", measured.uri).dataframe[0].value["Machine"])
    assert len(found) == 2
    assert "old box" in found
