"""The graph of an explanation: the test triple and its strongest training facts.

Positions are computed here, not by a simulation, so the same explanation always looks the same:
the test triple lies in the middle, facts at its head fan out to the left, at its tail to the
right, entities between both stand in the middle column, everything else above and below. In a
narrow window the same places are drawn out in height, so that names do not cover each other.
"""

import math
import re
from collections import defaultdict
from typing import Any

import pandas as pd

from ui.components import palette

MAX_EDGES = 60
NUM_LABELLED = 3
NUM_NAMED = 40
"""How many entities have names, those of the strongest facts first; others show theirs on hover."""
NUM_WRAPPED = 28
"""With more entities than this, a name has one line."""
MAX_TEXT = 24
LINE_CHARACTERS = 20
END = 0.72
HEIGHT_WIDE, HEIGHT_NARROW = 1.3, 2.4
"""Height of the drawing in units of its width, by the window."""
NARROW_PIXELS = 460
Position = tuple[float, float]


def spec(
    test: pd.Series, facts: pd.DataFrame, *, column: str, selected: int | None
) -> dict[str, Any]:
    """Return the ECharts option.

    Edge 0 is the test triple, edge i + 1 is row i of `facts`, at most `MAX_EDGES` of them.

    Args:
        test: A row of the report's tests.
        facts: Training facts, strongest first.
        column: `influence` or `cosine`: the width of the edges.
        selected: Rank of the fact that is selected.
    """
    facts = facts.head(MAX_EDGES)
    labels = node_labels(test, facts)
    places = positions(test, facts)
    ends = [str(test["head_id"]), str(test["tail_id"])]
    # No `labelLayout`: with it, names of edges are drawn at another size and place.
    series = {
        "type": "graph",
        "layout": "none",
        "roam": True,
        "left": 62,
        "right": 62,
        "top": 40,
        "bottom": 40,
        "preserveAspect": "contain",
        "selectedMode": "single",
        "edgeSymbol": ["none", "arrow"],
        "edgeSymbolSize": 8,
        "emphasis": {"focus": "none", "label": {"show": True}, "lineStyle": {"opacity": 1}},
        "select": {"lineStyle": {"opacity": 1}},
        "data": _nodes(labels, places, ends, HEIGHT_WIDE),
        "links": [_test_edge(test), *_fact_edges(test, facts, column, selected)],
    }
    narrow = {"data": _nodes(labels, places, ends, HEIGHT_NARROW)}
    return {
        "animation": False,
        "tooltip": {"renderMode": "richText", "confine": True},
        "series": [series],
        "media": [{"query": {"maxWidth": NARROW_PIXELS}, "option": {"series": [narrow]}}],
    }


def node_labels(test: pd.Series, facts: pd.DataFrame) -> dict[str, str]:
    """Return the text of each entity, the test triple's first."""
    labels = {str(test["head_id"]): str(test["head"]), str(test["tail_id"]): str(test["tail"])}
    for side in ("head", "tail"):
        for key, text in zip(facts[f"{side}_id"], facts[side], strict=True):
            labels.setdefault(str(key), str(text))
    return labels


def positions(test: pd.Series, facts: pd.DataFrame) -> dict[str, Position]:
    """Return a place for each entity."""
    head, tail = str(test["head_id"]), str(test["tail_id"])
    neighbours: dict[str, set[str]] = defaultdict(set)
    for a, b in zip(facts["head_id"].astype(str), facts["tail_id"].astype(str), strict=True):
        neighbours[a].add(b)
        neighbours[b].add(a)
    others = [key for key in node_labels(test, facts) if key not in (head, tail)]
    between = [key for key in others if {head, tail} <= neighbours[key]]
    at_head = [key for key in others if head in neighbours[key] and key not in between]
    at_tail = [key for key in others if tail in neighbours[key] and key not in between]
    far = [key for key in others if key not in {*between, *at_head, *at_tail}]
    places: dict[str, Position] = {head: (-END, 0.0), tail: (END, 0.0)}
    places |= _fan(at_head, centre=-END, direction=-1.0)
    places |= _fan(at_tail, centre=END, direction=1.0)
    places |= _column(between)
    places |= _rows(far)
    return places


def _fan(keys: list[str], *, centre: float, direction: float) -> dict[str, Position]:
    """Spread entities on an arc beside an end, from the top; many alternate between two arcs."""
    places: dict[str, Position] = {}
    for number, key in enumerate(keys):
        y = 2 * (number + 0.5) / len(keys) - 1
        # The middle one stands far out: its edge runs where the end's name is.
        near = (number - len(keys) // 2) % 2 and len(keys) > 5
        radius = 0.62 if near else 1.0
        places[key] = (centre + direction * radius * math.sqrt(1 - 0.8 * y * y), y)
    return places


def _column(keys: list[str]) -> dict[str, Position]:
    """Stack entities in the middle, in turn above and below the test triple.

    Many stand in zigzag, so that an edge between two of them does not cross a third.
    """
    step = min(0.3, 0.8 / max(1, math.ceil(len(keys) / 2)))
    places: dict[str, Position] = {}
    for number, key in enumerate(keys):
        side = -1.0 if number % 2 == 0 else 1.0
        aside = 0.2 * (-1) ** (number // 2) if len(keys) > 2 else 0.0
        places[key] = (side * aside, side * (0.32 + step * (number // 2)))
    return places


def _rows(keys: list[str]) -> dict[str, Position]:
    """Line entities up above and below everything else."""
    places: dict[str, Position] = {}
    for number, key in enumerate(keys):
        side = -1.0 if number % 2 == 0 else 1.0
        in_row = math.ceil(len(keys) / 2)
        share = (number // 2 + 0.5) / in_row
        places[key] = (-1.2 + 2.4 * share, side * (1.2 + 0.14 * (number // 2 % 2)))
    return places


def _nodes(
    labels: dict[str, str], places: dict[str, Position], ends: list[str], height: float
) -> list[dict[str, Any]]:
    """Return the entities; `labels` begins with the ends, then come those of strong facts."""
    wrapped = len(labels) <= NUM_WRAPPED
    return [
        _node(key, text, (places[key][0], places[key][1] * height), is_end=key in ends)
        | {"label": _name(text, places[key][1], number < NUM_NAMED, wrapped, key in ends)}
        for number, (key, text) in enumerate(labels.items())
    ]


def _node(key: str, text: str, place: Position, *, is_end: bool) -> dict[str, Any]:
    x, y = place
    return {
        "id": key,
        "name": text,
        "x": x * 300,
        "y": y * 300,
        "symbol": "roundRect" if is_end else "circle",
        "symbolSize": [18, 18] if is_end else 10,
        "itemStyle": {"color": palette.HIGHLIGHT if is_end else palette.NEUTRAL},
    }


def _name(text: str, y: float, shown: bool, wrapped: bool, is_end: bool) -> dict[str, Any]:
    """Return how an entity's name is written: away from the middle, in at most two lines."""
    # In a formatter a brace begins a placeholder; a space of no width behind it ends that.
    written = "\n".join(name_lines(text, 2 if wrapped else 1)).replace("{", "{\u200b")
    return {
        "show": shown,
        "formatter": written,
        "position": "bottom" if y > 0 else "top",
        "fontSize": 13 if is_end else 11,
        "lineHeight": 15 if is_end else 12,
        "fontWeight": "bold" if is_end else "normal",
    }


def name_lines(text: str, num_lines: int) -> list[str]:
    """Return a name in at most `num_lines` short lines, broken after spaces and the like."""
    lines = [""]
    for piece in re.findall(r"[^\s_/,-]+[\s_/,-]?|[\s_/,-]", " ".join(text.split())):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > LINE_CHARACTERS:
            lines.append("")
        lines[-1] += piece
    if len(lines) > num_lines:
        lines = [*lines[: num_lines - 1], "".join(lines[num_lines - 1 :])]
    return [_short(line.strip()) for line in lines]


def _test_edge(test: pd.Series) -> dict[str, Any]:
    return {
        "source": str(test["head_id"]),
        "target": str(test["tail_id"]),
        "value": f"{test['relation']}?",
        "lineStyle": {"color": palette.HIGHLIGHT, "width": 3, "type": "dashed", "opacity": 1},
        "label": {"show": True, "formatter": "{c}", "fontSize": 12, "fontWeight": "bold"},
    }


def _fact_edges(
    test: pd.Series, facts: pd.DataFrame, column: str, selected: int | None
) -> list[dict[str, Any]]:
    largest = float(facts[column].abs().max() or 1.0) if len(facts) else 1.0
    seen: dict[frozenset[str], int] = {}
    ends = frozenset((str(test["head_id"]), str(test["tail_id"])))
    edges = []
    for number, (_, fact) in enumerate(facts.iterrows()):
        source, target = str(fact["head_id"]), str(fact["tail_id"])
        pair = frozenset((source, target))
        seen[pair] = seen.get(pair, 0) + 1
        value = float(fact[column])
        chosen = fact["rank"] == selected
        edges.append(
            {
                "source": source,
                "target": target,
                "value": f"{palette.sign_symbol(value)} {_short(str(fact['relation']))}",
                "lineStyle": {
                    "color": palette.sign_colour(value),
                    "width": 1.0 + 4.0 * abs(value) / largest + (2.0 if chosen else 0.0),
                    "opacity": 1.0 if chosen else 0.55 if selected else 0.85,
                    # The straight line between the ends belongs to the test triple.
                    "curveness": 0.12 * (seen[pair] - (pair != ends)),
                },
                "label": {
                    "show": bool(chosen or (selected is None and number < NUM_LABELLED)),
                    "formatter": "{c}",
                    "fontSize": 11,
                    "fontWeight": "bold" if chosen else "normal",
                },
            }
        )
    return edges


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def clicked_row(selection: Any) -> int | None:
    """Return the row of `facts` whose edge was clicked, None for anything else."""
    for group in selection.get("selected", []):
        for index in group.get("data_indices", []):
            if group.get("data_type") == "edge" and index >= 1:
                return int(index) - 1
    return None
