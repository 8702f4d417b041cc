"""The functions that build chart specifications: their marks, order and signs."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pandas as pd
import pytest
import streamlit as st

from clew import names
from clew.runs.influence_report import ReportModel
from clew.runs.reading import comparison, picture, picture_layout
from clew.runs.reading.explanation import SharedExplanation
from clew.runs.reading.facts import Paths
from clew.runs.reading.metrics import smooth
from clew.runs.reading.reports import ReportHead
from clew.ui.components import basics, charts, comparison_table, graph
from clew.ui.components.comparison_table import points as points_of

HOSTILE = "<script>alert(1)</script>"
SVG = "{http://www.w3.org/2000/svg}"


def marks(spec: dict[str, Any]) -> list[str]:
    layers = spec.get("layer", [spec])
    return [layer["mark"]["type"] for layer in layers]


def checked(chart: charts.Spec) -> dict[str, Any]:
    """Return a specification with its data as rows, and check it by Vega-Lite's schema."""
    values = json.loads(chart["data"].to_json(orient="records"))
    spec = chart | {"data": {"values": values}}
    kind = alt.LayerChart if "layer" in chart else alt.Chart
    return kind.from_dict(spec).to_dict() and spec


@pytest.fixture
def points() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "group": ["fp32", "fp16", "bf16"],
            "cost": [40.0, 24.0, 25.0],
            "quality": [0.341, 0.339, 0.336],
            "cost_deviation": [0.5, np.nan, 0.1],
            "quality_deviation": [0.001, np.nan, 0.001],
            "front": [True, True, False],
        }
    )


def test_cost_and_quality(points: pd.DataFrame) -> None:
    spec = checked(
        charts.quality_against_cost(
            points, cost_key=names.TIME_EPOCH_SECONDS, quality_key="valid/mrr"
        )
    )
    assert marks(spec) == ["line", "rule", "rule", "point", *["text"] * 4]
    assert spec["layer"][0]["transform"] == [{"filter": "datum.front"}]
    x, y = (spec["layer"][3]["encoding"][axis]["title"] for axis in "xy")
    assert (x, y) == ("Time per epoch [s]", "MRR, validation")
    low, high = spec["layer"][3]["encoding"]["y"]["scale"]["domain"]
    assert low < 0.335
    assert high > 0.342
    drawn = {row["group"]: row for row in spec["data"]["values"]}
    assert drawn["fp32"]["low"] == pytest.approx(0.340)
    assert drawn["fp16"]["low"] == drawn["fp16"]["high"], "one run has no deviation"
    assert drawn["fp16"]["above"] != drawn["bf16"]["above"], "neighbours' names are apart"


def test_costs_begin_at_zero_at_least_and_names_stay_in_the_picture(points: pd.DataFrame) -> None:
    wide = points.assign(cost=[0.3, 14.0, 7.0], cost_deviation=np.nan)
    spec = checked(
        charts.quality_against_cost(
            wide, cost_key=names.TIME_EPOCH_SECONDS, quality_key="valid/mrr"
        )
    )
    first, last = spec["layer"][3]["encoding"]["x"]["scale"]["domain"]
    assert first == 0, "there are no seconds below zero"
    assert last > 14
    drawn = {row["group"]: row["early"] for row in spec["data"]["values"]}
    assert drawn == {"fp32": True, "bf16": True, "fp16": False}
    sides = {layer["mark"]["align"] for layer in spec["layer"] if layer["mark"]["type"] == "text"}
    assert sides == {"left", "right"}


@pytest.mark.parametrize(
    ("key", "front", "mark"),
    [
        ("valid/mrr", ["b"], "✗ "),
        ("valid/mean_rank_tail", ["a", "b"], "✓ "),
        ("valid/bias", [], ""),
    ],
)
def test_front_and_marks_go_by_what_is_better(key: str, front: list[str], mark: str) -> None:
    groups = [comparison.Group(name, (name, f"{name}2"), ("0", "1")) for name in "ab"]
    values = {
        names.TIME_EPOCH_SECONDS: {"a": 2.0, "a2": 2.0, "b": 1.0, "b2": 1.0},
        key: {"a": 3.0, "a2": 3.0, "b": 5.0, "b2": 5.0},
    }
    found = comparison.compare(groups, values, reference="b")
    shown = points_of(found, names.TIME_EPOCH_SECONDS, key)
    assert sorted(shown[shown["front"]]["group"]) == front
    cells = comparison_table.html(replace(found, metrics=(key,)), "ratio", {})
    assert f'">{mark}×0.600' in cells


def test_a_doubtful_difference_is_grey_and_says_why() -> None:
    groups = [comparison.Group("a", ("a",), ("0",)), comparison.Group("b", ("b", "b2"), ("0", "1"))]
    values = {"test/mrr": {"a": 3.0, "b": 5.0, "b2": 5.0}}
    found = comparison.compare(groups, values, reference="b")
    cells = comparison_table.html(found, "ratio", {})
    assert 'clew-muted">×0.600 · one seed' in cells
    assert "✗" not in cells


def test_equal_qualities_still_have_an_axis(points: pd.DataFrame) -> None:
    flat = points.assign(quality=0.0, quality_deviation=0.0)
    spec = checked(charts.quality_against_cost(flat, cost_key="a", quality_key="b"))
    low, high = spec["layer"][3]["encoding"]["y"]["scale"]["domain"]
    assert low < high


@pytest.mark.parametrize(("by_time", "field"), [(True, "minutes"), (False, "step")])
def test_curves(by_time: bool, field: str) -> None:
    frame = pd.DataFrame(
        {
            "run": ["a", "a", "b"],
            "group": ["x", "x", "y"],
            "step": [1, 2, 1],
            "seconds": [60.0, 120.0, 60.0],
            "value": [1.0, 0.0, 2.0],
        }
    )
    spec = checked(charts.curves(frame, key="train/loss", order=["y", "x"], by_time=by_time))
    assert spec["encoding"]["x"]["field"] == field
    assert spec["encoding"]["color"]["scale"]["domain"] == ["y", "x"]
    assert {row["minutes"] for row in spec["data"]["values"]} == {1.0, 2.0}
    assert spec["encoding"]["x"]["title"] == ("Minutes" if by_time else "Optimizer step")
    overflowed = frame.assign(value=[math.inf, math.nan, 2.0])
    spec = checked(charts.curves(overflowed, key="train/loss", order=["y"], by_time=by_time))
    assert [row["value"] for row in spec["data"]["values"]] == [2.0]
    smoothed = smooth(overflowed.assign(value=[1.0, math.inf, 2.0], run_id="a"), 0.5)
    assert np.isfinite(smoothed["value"]).all()
    logarithmic = charts.curves(
        frame, key="train/loss", order=["x"], by_time=by_time, logarithmic=True
    )
    assert len(checked(logarithmic)["data"]["values"]) == 2, "a logarithm of zero is left out"


def test_samples_of_the_machine_are_no_optimizer_steps() -> None:
    frame = pd.DataFrame(
        {"run": "a", "group": "a", "step": [0, 1], "seconds": [60.0, 70.0], "value": [99.0, 98.0]}
    )
    key = "system/cpu_utilization_percentage"
    spec = checked(charts.curves(frame, key=key, order=["a"], by_time=False))
    assert spec["encoding"]["x"]["title"] == "Sample"
    assert spec["encoding"]["y"]["title"] == "CPU utilization [%]"
    search = {"order": ["a"], "by_time": False, "kind": names.KIND_TUNE}
    of_trials = charts.curves(frame, key="valid/mrr", **search)
    assert checked(of_trials)["encoding"]["x"]["title"] == "Trials done"
    of_machine = charts.curves(frame, key=key, **search)
    assert checked(of_machine)["encoding"]["x"]["title"] == "Sample"


def test_many_groups_reuse_colours() -> None:
    order = [f"group {number}" for number in range(11)]
    frame = pd.DataFrame({"run": order, "group": order, "step": 1, "seconds": 1.0, "value": 1.0})
    spec = checked(charts.curves(frame, key="train/loss", order=order, by_time=False))
    scale = spec["encoding"]["color"]["scale"]
    assert scale["domain"] == order
    assert scale["range"] == [*basics.COLOURS, *basics.COLOURS[:3]]


@pytest.fixture
def explained() -> pd.Series:
    return pd.Series(
        {"head_id": "H", "head": "head", "relation": "treats", "tail_id": "T", "tail": "tail"}
    )


@pytest.fixture
def facts() -> pd.DataFrame:
    triples = [("H", "a"), ("b", "T"), ("H", "c"), ("c", "T"), ("d", "e"), ("T", "H"), ("a", "a")]
    return pd.DataFrame(
        {
            "place": range(1, 8),
            "rank": [1, 2, 3, 1, 2, 3, 4],
            "head_id": [head for head, _ in triples],
            "head": [HOSTILE if head == "b" else head for head, _ in triples],
            "relation": "inhibits",
            "tail_id": [tail for _, tail in triples],
            "tail": [tail for _, tail in triples],
            "influence": [5.0, 3.0, 1.0, -4.0, -2.0, -1.0, -0.5],
        }
    )


def test_verdicts_have_symbols() -> None:
    frame = pd.DataFrame(
        {"group": ["treats"] * 2, "verdict": ["plausible", "unsure"], "reviews": [2, 1]}
    )
    drawn = checked(charts.verdict_bars(frame))["data"]["values"]
    assert [row["verdict"] for row in drawn] == ["✓ plausible", "? unsure"]


def test_shares_and_groups_have_signs() -> None:
    row = pd.Series({"part_relation": 2.0, "checkpoint_10": -1.0})
    drawn = checked(charts.share_bars(row, list(row.index), "Influence"))["data"]["values"]
    assert [row["part"] for row in drawn] == ["relation's embedding", "step 10"]
    assert [row["sign"] for row in drawn] == ["helps", "opposes"]
    groups = pd.DataFrame({"group": ["a"], "facts": [3], "helping": [2.0], "opposing": [-1.0]})
    drawn = checked(charts.group_bars(groups, "influence"))["data"]["values"]
    assert {(row["sign"], row["value"]) for row in drawn} == {("helps", 2.0), ("opposes", -1.0)}


@pytest.mark.parametrize("intervals", [True, False])
def test_predictions_have_a_band_where_there_are_intervals(intervals: bool) -> None:
    width = 1.0 if intervals else np.nan
    values = np.arange(4.0)
    frame = pd.DataFrame({"last_frame": range(4), "group": list("aabb"), "prediction": values})
    spec = charts.predictions(frame.assign(lower=values - width, upper=values + width), "x [km]")
    assert marks(checked(spec)) == (["area", "line"] if intervals else ["line"])


def parts(drawn: str, kind: str) -> list[ElementTree.Element]:
    """Return the parts of a picture that stand for facts or for entities."""
    return ElementTree.fromstring(drawn).findall(f".//{SVG}g[@data-{kind}]")


def said(drawn: str) -> list[str]:
    return [name.text or "" for name in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_the_picture_has_a_line_for_each_fact(explained: pd.Series, facts: pd.DataFrame) -> None:
    drawn = picture.draw(explained, facts, {}, selected={2})
    lines = parts(drawn, "fact")
    assert [line.get("data-fact") for line in lines] == [str(place) for place in facts["place"]]
    strokes = [line.findall(f"{SVG}path")[1] for line in lines]
    assert [stroke.get("stroke") for stroke in strokes] == [picture.FOR] * 3 + [picture.AGAINST] * 4
    widths = [float(stroke.get("stroke-width", 0)) for stroke in strokes]
    assert widths[0] > widths[2]
    assert [line.get("opacity") for line in lines] == ["0.5", "1", *["0.5"] * 5]
    assert [text for text in said(drawn) if "inhibits" in text] == ["▲ inhibits"], "the selected"
    assert drawn.count("stroke-dasharray") == 1, "the test triple"


def test_the_picture_is_drawn_not_written(explained: pd.Series, facts: pd.DataFrame) -> None:
    drawn = picture.draw(explained, facts, {})
    assert HOSTILE not in drawn
    titles = {part.get("data-entity"): part[0].text for part in parts(drawn, "entity")}
    assert titles["b"] == HOSTILE


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Metformin", ["Metformin"]),
        ("AMP-activated protein kinase α2", ["AMP-activated", "protein kinase α2"]),
        ("biomedical_or_dental_material", ["biomedical or dental", "material"]),
        ("organophosphorus_compound", ["organophosphorus", "compound"]),
        ("a b", ["a b"]),
        ("x" * 40, ["x" * 24, "x" * 16]),
        ("x" * 60, ["x" * 24, "x" * 23 + "…"]),
        (
            "one two three four five six seven eight nine",
            ["one two three four", "five six seven eight ni…"],
        ),
        ("", [""]),
    ],
)
def test_names_are_broken_between_words(text: str, lines: list[str]) -> None:
    assert picture_layout.name_lines(text, 2) == lines
    assert len(picture_layout.name_lines(text, 1)) == 1


def test_in_a_narrow_picture_the_head_is_on_top(explained: pd.Series) -> None:
    drawn = picture.draw(explained, star(7, between=1), {}, width=340)
    places = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ]
    entities = [part.get("data-entity") for part in parts(drawn, "entity")]
    (head, tail, between) = (places[entities.index(key)] for key in ("H", "T", "b0"))
    assert head[1] < between[1] < tail[1]
    assert max(Counter(y for _, y in places).values()) == picture_layout.ABREAST
    assert all(0 < x < 340 for x, _ in places)


def test_facts_of_neither_end_run_from_left_to_right(explained: pd.Series) -> None:
    keys = list("abcdef")
    ends = {"head_id": keys[::2], "tail_id": keys[1::2]}
    other = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    places = picture_layout.positions(explained, other)
    for head, tail in zip(keys[::2], keys[1::2], strict=True):
        assert places["H"][0] < places[head][0] < places[tail][0] < places["T"][0]
        assert places[head][1] == places[tail][1]


def test_places_in_the_graph(explained: pd.Series, facts: pd.DataFrame) -> None:
    places = picture_layout.positions(explained, facts)
    assert places["a"][0] < places["H"][0], "what hangs on the head stands on its side"
    assert places["b"][0] > places["T"][0], "what hangs on the tail stands on the other"
    assert places["H"][0] < places["c"][0] < places["T"][0], "what both share stands between"
    assert places["H"][0] < places["d"][0] < places["T"][0], "so does the rest"
    assert len(set(places.values())) == len(places), "no two lie on each other"
    assert max(abs(number) for place in places.values() for number in place) == 1
    assert picture_layout.positions(explained, facts) == places


def test_a_path_runs_from_left_to_right(explained: pd.Series) -> None:
    triples = [("H", "a"), ("b", "a"), ("b", "T"), ("T", "H")]
    ends = {"head_id": [h for h, _ in triples], "tail_id": [t for _, t in triples]}
    path = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    places = picture_layout.positions(explained, path)
    assert [key for key, _ in sorted(places.items(), key=lambda item: item[1])] == list("HabT")


def test_what_hangs_on_an_entity_in_the_middle_stands_beside_it(explained: pd.Series) -> None:
    crowd = [("m", f"z{place}") for place in range(picture_layout.CROWDED)]
    triples = [("H", "m"), ("m", "T"), ("m", "x"), ("y", "m"), *crowd]
    ends = {"head_id": [h for h, _ in triples], "tail_id": [t for _, t in triples]}
    facts = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    places = picture_layout.positions(explained, facts)
    assert places["m"][0] < places["x"][0] == places["y"][0] < places["T"][0]
    assert places["x"][1] != places["y"][1]


def test_a_fact_without_influence_is_grey_and_cannot_be_selected(explained: pd.Series) -> None:
    drawn = picture.draw(explained, star(1, between=0).assign(place=0, influence=0.0), {})
    assert parts(drawn, "fact") == []
    assert drawn.count(f'stroke="{picture.PLAIN.colour}"') == 1
    assert "treats" in said(drawn)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_nothing_stands_on_the_line_of_a_fact_that_joins_both_ends(
    explained: pd.Series, number: int
) -> None:
    between = [f"e{i}" for i in range(number)]
    triples = [("T", "H"), *((key, end) for key in between for end in "HT")]
    ends = {"head_id": [h for h, _ in triples], "tail_id": [t for _, t in triples]}
    facts = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    places = picture_layout.positions(explained, facts)
    assert places["H"][1] == places["T"][1] == 0
    rows = [places[key][1] for key in between]
    assert 0 not in rows
    assert len(set(rows)) == number
    assert max(map(abs, rows)) == 1
    assert all(row > 0 or row <= -2 * min(map(abs, rows)) for row in rows), (
        "one row is the triple's"
    )


def star(number: int, *, between: int) -> pd.DataFrame:
    """Return facts, most with only the head, and some on a path of two facts to the tail."""
    triples = [("H", f"name of a fact {i}") for i in range(number)]
    triples += [ends for i in range(between) for ends in (("H", f"b{i}"), (f"b{i}", "T"))]
    ends = {"head_id": [h for h, _ in triples], "tail_id": [t for _, t in triples]}
    facts = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    return facts.assign(relation="treats", influence=1.0, place=range(1, len(facts) + 1))


@pytest.mark.parametrize("between", [1, 2, 5, 12])
def test_beside_a_long_column_a_short_one_has_room_for_its_names(
    explained: pd.Series, between: int
) -> None:
    places = picture_layout.positions(explained, star(25, between=between))
    rows = sorted(places[f"b{i}"][1] for i in range(between))
    apart = min((b - a for a, b in pairwise(rows)), default=1)
    assert apart * (picture.HEIGHT - 2 * picture_layout.MARGIN_Y) / 2 > picture.LEAST_ROW
    assert max(map(abs, rows)) <= 1


def test_the_picture_to_mail_is_as_high_as_its_rows_need(explained: pd.Series) -> None:
    drawn = picture.draw(explained, star(0, between=6), {})
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ((column, _),) = Counter(x for x, _ in places).most_common(1)
    rows = sorted(float(y) for x, y in places if x == column)
    assert len(rows) == 6
    assert min(b - a for a, b in pairwise(rows)) == pytest.approx(picture.ROW_HEIGHT, abs=0.2)


def test_a_line_goes_around_other_entities(explained: pd.Series) -> None:
    triples = [("H", "a"), ("a", "b"), ("b", "T"), ("H", "c"), ("c", "T"), ("H", "T")]
    ends = {"head_id": [h for h, _ in triples], "tail_id": [t for _, t in triples]}
    path = pd.DataFrame(ends).assign(head=lambda f: f["head_id"], tail=lambda f: f["tail_id"])
    path = path.assign(relation="r", influence=1.0, place=range(1, 7))
    for width in (960, 640, 340):
        places = {
            key: picture_layout.point(place, width, 500)
            for key, place in picture_layout.positions(explained, path).items()
        }
        for line in picture._lines(explained, path, places, ()):
            assert line.fact is None or not line.passes(places.values())


def head() -> ReportHead:
    model, frame = ReportModel("", "", ()), pd.DataFrame()
    return ReportHead(
        tests=frame, model=model, settings={}, train_size=0, seconds=0.0, device="cpu"
    )


def explanation(test: pd.Series, facts: pd.DataFrame) -> SharedExplanation:
    return SharedExplanation(test, facts, Paths(facts, (), ""), head())


def test_a_large_graph_is_cut(explained: pd.Series, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(graph, "_component", lambda **more: given.update(more))
    look = {"column": "influence", "selected": (), "alt": "Graph", "panel": st.container()}
    facts = star(200, between=0)
    graph.show(explanation(explained, facts), facts, key="g", take=lambda _: None, **look)
    drawn = ElementTree.fromstring(f"<div>{given['data']['drawn']}</div>")
    assert len(drawn) == len(graph.WIDTHS)
    for svg in drawn:
        assert len(svg.findall(f"{SVG}g[@data-fact]")) == graph.MAX_EDGES
        assert len(svg.findall(f"{SVG}g[@data-entity]")) == graph.MAX_EDGES + 2


def test_an_empty_picture_is_the_test_triple(explained: pd.Series, facts: pd.DataFrame) -> None:
    drawn = picture.draw(explained, facts.head(0), {})
    assert parts(drawn, "fact") == []
    assert [part.get("data-entity") for part in parts(drawn, "entity")] == ["H", "T"]


@pytest.mark.parametrize(
    ("taken", "rank", "entity"),
    [
        ({"fact": "2"}, [2], ""),
        ({"entity": "a"}, [], "a"),
        ({}, [None], ""),
        (None, [None], ""),
    ],
)
def test_a_click_takes_a_fact_or_an_entity(
    explained: pd.Series,
    facts: pd.DataFrame,
    taken: dict[str, str] | None,
    rank: list[int | None],
    entity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(graph, "_component", lambda **more: given.update(more))
    monkeypatch.setattr(st, "session_state", {"g": SimpleNamespace(taken=taken)})
    monkeypatch.setattr(st, "query_params", {})
    took: list[int | None] = []
    look = {"column": "influence", "selected": (), "alt": "Graph", "panel": st.container()}
    graph.show(explanation(explained, facts), facts, key="g", take=took.append, **look)
    given["on_taken_change"]()
    assert took == rank
    assert basics.address("entity") == entity


def test_facts_of_one_text_are_told_apart_by_their_names() -> None:
    """A person ticks facts as wrong by these texts."""
    rows = [("c1", "cold", "causes"), ("c2", "cold", "causes"), ("c3", "cough", "causes")]
    facts = pd.DataFrame(rows, columns=["head_id", "head", "relation"])
    facts = facts.assign(relation_id="r", tail_id="x", tail="pain")
    texts = charts.fact_texts(facts)
    assert len(set(texts)) == 3
    assert ["c1" in texts[0], "c2" in texts[1], "c3" in texts[2]] == [True, True, False]
    assert charts.fact_texts(facts[:0]) == []
