"""Tables exported as CSV: their headings name the content and the unit."""

import csv
import io
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from clew.ui.components import tables
from tests.recorded import Recorded
from tests.ui.conftest import Open

Given = dict[str, list[list[str]]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Return the downloads of the page's buttons, by file name."""
    files: Given = {}

    def button(label: str, content: str | Callable[[], str], name: str) -> None:
        if label == "CSV":
            text = content if isinstance(content, str) else content()
            files[name] = list(csv.reader(io.StringIO(text)))

    monkeypatch.setattr(tables, "download", button)
    return files


def test_ranks_by_relation_have_the_headings_of_the_page(
    page: Open, many: Recorded, given: Given
) -> None:
    app = page("run", many.uri, id=many.runs["fp32 1"])
    header, *rows = given["ranks_by_relation.csv"]
    assert header[:5] == ["Relation", "Asked for", "Questions", "MRR", "Mean rank"]
    tables = [table.value for table in app.dataframe if "Asked for" in table.value]
    assert list(tables[0].columns) == header
    assert len(rows) == len(tables[0])


def test_windows_of_frames_say_the_unit_of_their_target(
    page: Open, many: Recorded, given: Given
) -> None:
    app = page("influence", many.uri, run=many.runs["trace frames"])
    header, *rows = given["windows.csv"]
    score = "Influence (raw) [units of the loss]"
    assert header == ["Rank", score, "Cosine", "Last frame", "Group", "Target [km]"]
    assert float(rows[0][1]) == app.dataframe[0].value[score][0]


def test_windows_of_text_have_plain_headings(page: Open, many: Recorded, given: Given) -> None:
    page("influence", many.uri, run=many.runs["trace text"])
    header, *_ = given["windows.csv"]
    assert {"Influence (raw) [nats]", "Window", "First token", "Text"} <= set(header)


def test_a_table_as_csv(given: Given) -> None:
    frame = pd.DataFrame({"Text": ["=1+1", "a,b"], "Number": [1.5, np.nan]})
    tables.export(frame, "table.csv")
    assert given["table.csv"] == [["Text", "Number"], ["'=1+1", "1.5"], ["a,b", ""]]
