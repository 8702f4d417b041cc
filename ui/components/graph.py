"""The graph of an explanation: the test triple and its strongest training facts.

Entities are in columns from the test triple's head to its tail. Entities on short paths between the
ends are in the middle; others are outside, at the nearer end. The same explanation always looks the
same.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn

from clew.runs.influence_forms import Form
from clew.runs.reading.facts import FactPath, Paths
from clew.runs.reading.picture import (
    PLAIN,
    Position,
    looks,
    name_lines,
    node_labels,
    positions,
    short_text,
)
from clew.ui.components import basics, tables
from clew.ui.components.explanations import NO_KINDS

HEIGHT = 420
MAX_EDGES = 60
NUM_LABELLED = 3
NUM_NAMED = 40
"""How many entities have names, those of the strongest facts first; others show theirs on hover."""
NUM_STACKED, NUM_BESIDE = 5, 8
"""In a column of more entities than these, names have one line, or are beside their entities."""
BESIDE_PIXELS, BESIDE_NARROW, AROUND_PIXELS, BETWEEN_NARROW = 150, 110, 70, 180
"""Room for names beside a column, in a narrow window too, for those above and below it, and in a
narrow window from the first column to the last."""
HEIGHTS, HEIGHT_NARROW = (0.66, 1.15, 1.7), 1.8
"""Height of the drawing in units of its width, by how many sides have names beside them, and in a
narrow window."""
NARROW_PIXELS = 460
_MARK = '<span><b style="color:{colour}" aria-hidden="true">{mark}</b> {kind}</span>'


def show(
    test: pd.Series,
    facts: pd.DataFrame,
    *,
    column: str,
    selected: Collection[int],
    kinds: Mapping[str, str],
    key: str,
    take: Callable[[int | None], None],
    alt: str,
) -> None:
    """Show the graph of `spec`, and a legend for the kinds of entities.

    `take` is called with the place of the fact whose edge is clicked, or None for anything else.
    """
    places = [int(place) for place in facts["place"]]

    def choose() -> None:
        groups = st.session_state[key].selection.get("selected", [])
        edges = [group for group in groups if group.get("data_type") == "edge"]
        clicked = [int(index) for group in edges for index in group.get("data_indices", [])]
        row = next(filter(None, clicked), 0)  # 0 is the test triple
        take(places[row - 1] if 0 < row <= len(places) else None)

    option = spec(test, facts, column=column, selected=selected, kinds=kinds)
    st.echarts_chart(option, key=key, on_select=choose, height=HEIGHT, renderer="svg", alt=alt)
    entities = {str(test["head_id"]), str(test["tail_id"])}
    entities |= {str(key) for end in ("head_id", "tail_id") for key in facts[end]}
    lines = [
        (basics.HIGHLIGHT, "┅", f"{test['relation']}?"),
        (basics.FOR, "━", "made it more likely"),
        (basics.AGAINST, "━", "less likely"),
    ]
    lines += [(look.colour, look.mark, kind) for kind, look in looks(kinds, entities).items()]
    marks = [
        basics.fill(_MARK, colour=colour, mark=mark, kind=kind) for colour, mark, kind in lines
    ]
    basics.show('<p class="clew-legend clew-small">{marks}</p>', marks=basics.join(marks, " "))


def spec(
    test: pd.Series,
    facts: pd.DataFrame,
    *,
    column: str,
    selected: Collection[int] = (),
    kinds: Mapping[str, str] = NO_KINDS,
) -> dict[str, Any]:
    """Return the ECharts option.

    Edge 0 is the test triple, edge i + 1 is row i of `facts`, at most `MAX_EDGES` of them.
    The strongest facts come first. `column` sets the width of the edges; `selected` has the places
    of the highlighted facts, and `kinds` the kinds of entities by their ids.
    """
    facts = facts.head(MAX_EDGES).fillna({column: 0.0})
    labels = node_labels(test, facts)
    places = positions(test, facts)
    ends = [str(test["head_id"]), str(test["tail_id"])]
    # Where columns of many entities are: -1 is the left end of the picture, 1 the right.
    sizes = Counter(x for x, _ in places.values())
    long = {x for x, size in sizes.items() if size > NUM_STACKED}
    beside = {x for x, size in sizes.items() if size > NUM_BESIDE}
    crowded = beside & {-1.0, 1.0}
    nodes = partial(_nodes, labels, places, ends, kinds=kinds, long=long, beside=beside)
    # Curved: the straight line is for facts and for entities between the ends.
    line = {"color": basics.HIGHLIGHT, "width": 3, "type": "dashed", "opacity": 1}
    asked = {
        "source": ends[0],
        "target": ends[1],
        "value": f"{test['relation']}?",
        "lineStyle": line | {"curveness": 0.25},  # the legend names it; names are in its way
    }
    links = [
        asked,
        *_fact_edges(facts, places, ends=ends, column=column, selected=selected, long=long),
    ]
    # No `labelLayout`: with it, names of edges are drawn at another size and place.
    series = {
        "type": "graph",
        "layout": "none",
        "roam": True,
        "left": BESIDE_PIXELS if -1.0 in crowded else AROUND_PIXELS,
        "right": BESIDE_PIXELS if 1.0 in crowded else AROUND_PIXELS,
        "top": 34,
        "bottom": 34,
        "preserveAspect": "contain",
        "selectedMode": "single",
        "edgeSymbol": ["none", "arrow"],
        "edgeSymbolSize": 8,
        "emphasis": {"focus": "none", "label": {"show": True}, "lineStyle": {"opacity": 1}},
        "select": {"lineStyle": {"opacity": 1}},
        "data": nodes(height=HEIGHTS[len(crowded)], narrow=False),
        "links": links,
    }
    # Too narrow for names on lines; the page shows the triple and the selected fact as text.
    narrow = {
        "data": nodes(height=HEIGHT_NARROW, narrow=True),
        "links": [link | {"label": {"show": False}} for link in links],
        "left": BESIDE_NARROW if -1.0 in crowded else AROUND_PIXELS,
        "right": BESIDE_NARROW if 1.0 in crowded else AROUND_PIXELS,
    }
    return {
        "animation": False,
        "tooltip": {"renderMode": "richText", "confine": True},
        "series": [series],
        "media": [{"query": {"maxWidth": NARROW_PIXELS}, "option": {"series": [narrow]}}],
    }


def _nodes(
    labels: dict[str, str],
    places: dict[str, Position],
    ends: list[str],
    *,
    height: float,
    kinds: Mapping[str, str],
    long: set[float],
    beside: set[float],
    narrow: bool,
) -> list[dict[str, Any]]:
    """Return the entities; `labels` starts with the ends, followed by those of strong facts.

    In a `long` column a name has one line; in a column of `beside` it is next to its entity.
    """
    crowded, columns = beside & {-1.0, 1.0}, len({x for x, _ in places.values()})
    styles = {key: _style(key in ends, PLAIN.symbol, "") for key in labels}
    for kind, look in looks(kinds, labels).items():
        for key in labels:
            if kinds.get(key) == kind:
                styles[key] = _style(key in ends, look.symbol, look.colour)
    nodes = []
    for number, (key, text) in enumerate(labels.items()):
        (x, y), is_end = places[key], key in ends
        # Next to crowded columns the ends are close together, so their names are below. In a narrow
        # window, the name of the tail is above; names of the head and of entities behind the tail
        # are below.
        below = is_end and bool(crowded)
        if narrow:
            below = key == ends[0] or x > places[ends[1]][0]
        # The label is on the side away from the middle; at half height, `below` decides.
        position = "bottom" if y > 0 or (y == 0 and below) else "top"
        label = {
            "show": number < NUM_NAMED,
            # In a formatter a brace starts a placeholder; a zero-width space prevents that.
            "formatter": "\n".join(name_lines(text, 1 if x in long else 2)).replace("{", "{\u200b"),
            "fontSize": 13 if is_end else 11,
            "lineHeight": 15 if is_end else 12,
            "fontWeight": "bold" if is_end else "normal",
        }
        if x in beside:
            position = "left" if x == -1 else "right"
        if narrow and (x in beside or crowded or columns > 3):
            room = BESIDE_NARROW - 14 if x in beside or is_end else BETWEEN_NARROW // (columns - 1)
            label |= {"width": room, "overflow": "truncate"}
        place = {"x": x * 300, "y": y * 300 * height}
        label["position"] = position
        nodes.append({"id": key, "name": text, **place, **styles[key], "label": label})
    return nodes


def _style(is_end: bool, symbol: str, colour: str) -> dict[str, Any]:
    """Return the style of an entity by its kind; `colour` is empty if the kind is not known."""
    size = 18 if is_end else 10
    if not colour:
        plain = basics.HIGHLIGHT if is_end else basics.NEUTRAL
        shape = "roundRect" if is_end else "circle"
        return {"symbol": shape, "symbolSize": size, "itemStyle": {"color": plain}}
    rim = {"borderColor": basics.HIGHLIGHT, "borderWidth": 3} if is_end else {}
    return {"symbol": symbol, "symbolSize": size + 2, "itemStyle": {"color": colour} | rim}


def _fact_edges(
    facts: pd.DataFrame,
    places: dict[str, Position],
    *,
    ends: list[str],
    column: str,
    selected: Collection[int],
    long: set[float],
) -> list[dict[str, Any]]:
    largest = float(facts[column].abs().max() or 1.0) if len(facts) else 1.0
    seen: dict[frozenset[str], int] = {}
    edges = []
    for number, (_, fact) in enumerate(facts.iterrows()):
        source, target = str(fact["head_id"]), str(fact["tail_id"])
        pair = frozenset((source, target))
        seen[pair] = seen.get(pair, 0) + 1
        value = float(fact[column])
        colour = basics.FOR if value > 0 else basics.AGAINST if value < 0 else basics.NEUTRAL
        chosen = fact["place"] in selected
        (x, y), (end_x, end_y) = places[source], places[target]
        # Names of lines that meet, that run side by side, or between the ends, would overlap.
        is_apart = seen[pair] == 1 and not long & {x, end_x} and pair != {*ends}
        # A line within a column would cross its entities, so it is curved towards the middle.
        bent = math.copysign(0.3, (end_y - y) * -x) if x == end_x and y != end_y else 0.0
        edges.append(
            {
                "source": source,
                "target": target,
                "value": f"{basics.sign_symbol(value)} {short_text(str(fact['relation']))}",
                "lineStyle": {
                    "color": colour,
                    "width": 1.0 + 4.0 * abs(value) / largest + (2.0 if chosen else 0.0),
                    "opacity": 1.0 if chosen else 0.55 if selected else 0.85,
                    "curveness": bent or 0.12 * (seen[pair] - 1),
                },
                "label": {
                    "show": bool(chosen or (not selected and is_apart and number < NUM_LABELLED)),
                    "formatter": "{c}",
                    "fontSize": 11,
                    "fontWeight": "bold" if chosen else "normal",
                },
            }
        )
    return edges


NUM_DRAWN = 8
"""How many paths are drawn; a selected path further down is drawn too."""


def show_paths(
    test: pd.Series,
    found: Paths,
    *,
    key: str,
    kinds: Mapping[str, str],
    form: Form,
) -> None:
    """Show paths as a picture next to their sentences; a click on either selects one."""
    paths = found.found
    if not paths:
        basics.note(found.searched)
        return
    place = basics.address_number("path") or 0
    place = place if place < len(paths) else 0
    drawn = [*paths[:NUM_DRAWN], *([paths[place]] if place >= NUM_DRAWN else [])]

    def take(fact: int | None) -> None:
        if fact is not None:
            through = (number for number, path in enumerate(paths) if fact in path.ranks)
            basics.write_address("path", next(through))

    left, right = basics.columns([1.3, 1], key="paths")
    with left:
        show(
            test,
            found.facts_of(drawn),
            column="influence",
            selected=paths[place].ranks,
            kinds=kinds,
            key=f"{key}-paths-{place}",
            take=take,
            alt="Graph of the paths of training facts between the two ends of the test triple",
        )
    with right:
        _path_table(paths, place, form, key=f"{key}-sentences-{place}")
        basics.note(found.searched.removesuffix(":") + ".")


def _path_table(paths: Sequence[FactPath], place: int, form: Form, *, key: str) -> None:
    total = f"{form.heading} of its facts together."
    tables.tick_one(
        {
            "Path": (
                [path.sentence for path in paths],
                TextColumn(
                    width="large", help="Its facts, starting at the head, each as in the data."
                ),
            ),
            "Influence": (
                [path.influence for path in paths],
                NumberColumn(format="%+.4g", width=80, help=total),
            ),
        },
        range(len(paths)),
        key=key,
        chosen=place,
        take=lambda ticked: basics.write_address("path", ticked or 0),
        alt="Paths between the two ends, the most specific first",
        most=HEIGHT - 90,
    )
    steps = (basics.markdown(step) for step in paths[place].steps)
    st.markdown("\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)))
