"""Tables with selectable rows: a selection is identified by the row's key."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import streamlit as st

from clew.runs.reading.comparison import Group
from clew.runs.reading.runs import RunRecord
from clew.ui.components import answers, basics, run_table, tables

FRAME = pd.DataFrame({"Run": ["first", "second", "third"]})
IDS = ("a", "b", "c")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments that Streamlit gets for the last table."""
    options: dict[str, Any] = {}

    def dataframe(**given: Any) -> SimpleNamespace:
        options.update(given)
        return SimpleNamespace(selection=SimpleNamespace(rows=[2, 0, 3]))

    monkeypatch.setattr(st, "dataframe", dataframe)
    return options


def test_ticked_rows_of_a_table_that_has_become_shorter_are_left_out(
    shown: dict[str, Any],
) -> None:
    assert tables.ticked(FRAME, IDS, key="t", several=True, alt="Runs") == ["c", "a"]
    assert (shown["selection_mode"], shown["height"], shown["alt"]) == ("multi-row", "auto", "Runs")


@pytest.mark.parametrize(("rows", "taken"), [([1], "b"), ([], None), ([3], None)])
def test_what_a_person_ticks_is_taken(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rows: list[int], taken: str | None
) -> None:
    found: list[str | None] = []
    tables.tick_one(FRAME, IDS, key="t", chosen="b", take=found.append)
    assert shown["selection_default"]["selection"]["rows"] == [1]
    monkeypatch.setattr(
        st, "session_state", {"t": SimpleNamespace(selection=SimpleNamespace(rows=rows))}
    )
    shown["on_select"]()
    assert found == [taken]


def test_a_table_is_as_high_as_its_rows_up_to_a_limit(shown: dict[str, Any]) -> None:
    tables.tick_one(FRAME, IDS, key="t", chosen=None, take=print, row_height=30, most=200)
    assert shown["selection_default"]["selection"]["rows"] == []
    assert shown["height"] == 38 + 3 * 30
    tables.show(FRAME, most=100)
    assert shown["height"] == 100


def test_the_name_of_an_explanation_fits_into_the_list_of_runs() -> None:
    name = "tracin rickettsia_or_chlamydia · causes · disease"
    pixels_a_character = 6.3
    assert len(name) * pixels_a_character <= run_table.NAME_PIXELS


def test_the_help_of_a_column_is_not_markdown() -> None:
    key = "[x](//x.org)"
    run = RunRecord("a", "a", "1", "FINISHED", 0, None, {}, {}, {key: 1.0})
    for columns in (
        run_table.run_table([run], chosen=[key]),
        run_table.group_table([Group("a", ("a",))], {"a": run}, [key]),
    ):
        about = next(dict(look)["help"] for name, (_, look) in columns.items() if "org" in name)
        assert f"The metric {basics.markdown(key)}" in about


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.0, "0.00%"),
        (1e-6, "below 0.01%"),
        (0.05, "5.00%"),
        (0.5, "50%"),
        (0.996, "99.60%"),
        (1 - 1e-6, "above 99.99%"),
        (1.0, "100.00%"),
    ],
)
def test_no_probability_is_rounded_to_none_or_all(probability: float, text: str) -> None:
    assert answers.percent(probability) == text
