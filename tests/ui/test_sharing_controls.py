"""The exports of the page Influence, and its display of entity kinds."""

import pandas as pd
import pytest

from clew.runs.influence_forms import form_of
from clew.runs.reading.picture import COLOURS, PLAIN, draw, looks
from clew.ui.components import facts
from tests.recorded import Recorded
from tests.ui.conftest import Open, shown


def test_an_explanation_can_be_shared(page: Open, many: Recorded) -> None:
    app = page("influence", many.uri, run=many.runs["trace"])
    labels = [button.label for button in app.get("download_button")]
    assert labels, shown(app)
    assert "⤓ Report to mail (HTML)" in labels
    assert "⤓ TRAPI message (JSON)" in labels


def rows() -> tuple[pd.Series, pd.DataFrame]:
    test = pd.Series(
        {"head_id": "MESH:D1", "head": "aspirin", "relation_id": "treats", "relation": "treats"}
        | {"tail_id": "X:2", "tail": "pain"}
    )
    facts = pd.DataFrame([dict(test) | {"influence": 1.0, "place": 1}])
    return test, facts


def test_kinds_are_symbols_and_colours() -> None:
    test, facts = rows()
    kinds = {"MESH:D1": "Drug", "X:2": "Disease"}
    plain, drawn = (draw(test, facts, told) for told in ({}, kinds))
    assert plain.count(PLAIN.colour) == 2
    look = looks(kinds, kinds)
    assert len({(found.colour, found.symbol) for found in look.values()}) == 2
    assert all(found.colour in drawn for found in look.values())
    assert PLAIN.colour not in drawn


def test_identifiers_are_links_only_to_known_databases() -> None:
    test, _ = rows()
    line = str(facts.identifiers(test, {"X:2": "<b>Disease</b>"}))
    assert 'href="https://meshb.nlm.nih.gov/record/ui?ui=D1"' in line
    assert line.count("<a ") == 1
    assert "&lt;b&gt;Disease&lt;/b&gt;" in line
    same = test.copy()
    same["head"], same["head_id"], same["tail"], same["tail_id"] = "virus", "virus", "a", "a"
    assert str(facts.identifiers(same, {})) == ""


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_of_kinds_stand_out_in_both_themes() -> None:
    for background in ("#ffffff", "#10181c"):
        for colour in COLOURS:
            darker, lighter = sorted((luminance(colour), luminance(background)))
            assert (lighter + 0.05) / (darker + 0.05) >= 3


@pytest.mark.parametrize(
    ("value", "side"), [(0.5, "clew-for"), (-0.5, "clew-against"), (0.0, None)]
)
def test_a_fact_without_influence_is_on_neither_side(value: float, side: str | None) -> None:
    row = pd.Series({"influence": value, "rank": 1})
    said = facts.effect(row, "influence", form_of({}), of="prediction")
    found = [kind for kind in ("clew-for", "clew-against") if kind in said]
    assert found == ([side] if side else [])
    assert ("likely" in said) is bool(side)
