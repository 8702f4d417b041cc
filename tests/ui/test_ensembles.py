"""The page Influence shows facts in grey on whose sign the runs of an ensemble disagree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from clew.runs.reading.facts import ONE_RUN
from clew.runs.reading.picture import PLAIN
from clew.ui.components import graph
from tests.recorded import Recorded
from tests.runs.reading.test_disputed_facts import grey_lines, make_ensemble
from tests.ui.conftest import Open, shown


@pytest.fixture
def ensemble(recorded: Recorded, use: Callable[[str], None], tmp_path: Path) -> Recorded:
    """Return a store in which the explanation is one of three runs."""
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    folder = store.files("trace", "influence")
    make_ensemble(store, folder)
    (folder / "influence.parquet").unlink()
    return store


def test_disputed_facts_are_grey_in_table_and_graph(
    page: Open, ensemble: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(graph, "_component", lambda data, **_: given.update(data))
    app = page("influence", ensemble.uri, run=ensemble.runs["trace"], view="Training facts")
    (table,) = (table for table in app.dataframe if "Runs agree" in table.value)
    agree = table.value["Runs agree"].tolist()
    assert set(agree) == {"3 of 3", "2 of 3"}
    grey = [row for row, said in enumerate(agree) if said == "2 of 3"]
    styles = table.proto.arrow_data.styler.styles
    coloured = {row for row in range(len(agree)) if f"_row{row}_col0" in styles}
    assert PLAIN.colour.lower() in styles.lower()
    assert coloured == set(grey)
    assert "on the sign of" in shown(app)
    assert ONE_RUN not in shown(app)
    assert "runs disagree" in given["legend"]
    for svg in ElementTree.fromstring(f"<div>{given['drawn']}</div>"):
        assert grey_lines(ElementTree.tostring(svg, encoding="unicode"))


def test_one_run_has_nothing_grey(page: Open, recorded: Recorded) -> None:
    app = page("influence", recorded.uri, run=recorded.runs["trace"], view="Training facts")
    (table,) = (table for table in app.dataframe if "±" in table.value)
    assert "Runs agree" not in table.value
    assert not table.proto.arrow_data.styler.styles
    assert "on the sign of" not in shown(app)
    assert ONE_RUN in shown(app)
