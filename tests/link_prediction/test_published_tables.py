"""Tables as they are published: stray quotes, ids of several kinds, other files beside them."""

import pytest

from clew.errors import DataError
from tests.link_prediction.test_imports import facts, lines, read

ROWS = [(f"e{i % 7}", f"r{i % 2}", f"e{(i * 3 + 1) % 11}") for i in range(40)]
DISTINCT = sorted(set(ROWS))


def with_notes(separator, notes, names=("head", "relation", "tail", "note")):
    rows = [(*row, notes.get(i, f"note {i}")) for i, row in enumerate(DISTINCT)]
    return lines([names, *rows], separator)


def test_a_stray_quote_in_any_column_swallows_no_row(tmp_path):
    strays = {5: '"abc', 20: '"abc'}
    assert facts(read(tmp_path / "bars", {"kg.txt": with_notes("|", strays)})) == DISTINCT
    cases = (
        *(("," if i % 2 else ";", {5: '"abc', 20: end}) for i, end in enumerate(('"a', 'b"'))),
        (",", {5: '"abc'}),
        (",", {0: '"abc', 1: 'd"'}),
        (",", {5: '"5 ""inch"" x', 20: '"a, b"'}),
    )
    for i, (separator, notes) in enumerate(cases):
        with pytest.raises(DataError, match=rf"line {min(notes) + 2}\b"):
            read(tmp_path / str(i), {"kg.csv": with_notes(separator, notes)})


def test_a_value_may_have_several_lines_and_a_mark_of_inches(tmp_path):
    notes = {3: '"two\nlines, ""here"""', 5: '5"', 9: '7" or "8', 11: '"a, b"'}
    assert facts(read(tmp_path, {"kg.csv": with_notes(",", notes)})) == DISTINCT
