"""Cells that a spreadsheet would run are disarmed, and every text is read back as it was."""

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import names
from clew.spreadsheets import FactList, changed, csv_text, disarmed, restored

NASTY = [
    "=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''=1", "'",
    "'quoted'", "3'-end", "a;=1", "a;'=1", "a\n@b", ";-2", "\uff1d1", "-", "--", "-5-", "- 5", "+5",
]  # fmt: skip
HARMLESS = ["", "aspirin", "a=b", "x-y", "'a", "-5", "-.5", "-1e-9", "-2.5E+3", "1", "a;b", "' =1"]


@pytest.mark.parametrize("text", [*NASTY, *HARMLESS])
def test_a_cell_does_not_run_and_is_read_back(text: str) -> None:
    cell = disarmed(text)
    assert restored(cell) == text
    assert (cell == text) == (text in HARMLESS or text in ("'", "'quoted'", "3'-end"))
    for part in cell.replace("\t", ";").replace("\r", ";").replace("\n", ";").split(";"):
        assert part == text or part[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20")


@given(st.text(st.sampled_from("'=+-@\t\r\n;a1.e\uff1d"), max_size=12))
def test_every_text_is_read_back(text: str) -> None:
    assert restored(disarmed(text)) == text


@given(st.lists(st.none() | st.text(st.sampled_from("'=+-@\t\r\n;a1"), max_size=6), max_size=6))
def test_arrays_change_as_their_texts_do(texts: list[str | None]) -> None:
    array = changed(pa.array(texts, pa.string()), disarmed)
    assert array.to_pylist() == [text if text is None else disarmed(text) for text in texts]
    assert changed(array, restored).to_pylist() == texts


def test_headers_are_disarmed_and_numbers_are_not() -> None:
    text = csv_text(["=h", "n"], [["=c", -1.5], ["-1.5", None]])
    assert list(csv.reader(io.StringIO(text))) == [["'=h", "n"], ["'=c", "-1.5"], ["-1.5", ""]]


def test_a_list_of_facts_is_read_back() -> None:
    facts = ["=a\t+r\t'=a", "b\tr\tc", "'=a\tr\t-5"]
    told = {names.LIST_DATA_SET_PREFIX: "my data"}
    text = FactList(facts, told).text()
    assert not [cell for line in text.splitlines() for cell in line.split("\t") if cell[0] in "=+"]
    again = FactList.parse(text)
    assert again.facts == facts
    assert again.first_line == 3
    assert again.origin[names.LIST_DATA_SET_PREFIX] == "my data"
    both = FactList(again.facts + facts, again.origin).text()
    assert FactList.parse(both).facts == facts * 2


def test_a_list_that_needs_no_apostrophes_has_none_and_keeps_its_own() -> None:
    text = "a\tr\t-5\n"
    assert FactList(["a\tr\t-5"]).text() == text
    assert FactList.parse("'=a\tr\tb\n").facts == ["'=a\tr\tb"], "as a person wrote it"
    assert FactList.parse("").facts == []
