"""Draws the facts of an explanation as SVG, without scripts and external fonts or files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
from markupsafe import Markup

from clew.runs.reading.layout import (
    PLAIN,
    Look,
    Position,
    looks,
    name_lines,
    node_labels,
    positions,
    short_text,
)

WIDTH = 960
ROW_HEIGHT, MIN_ROWS = 58, 4
MARGIN_X, MARGIN_Y = 110, 60
FOR, AGAINST, ANSWER = "#1F6FB0", "#C24E00", "#B97900"
RADIUS, END_RADIUS = 7, 10
MAX_LABELS = 12
_FRAME = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    'aria-label="{title}">{body}</svg>'
)
_LINE = Markup(
    '<path d="M{x1:.1f} {y1:.1f} Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}" fill="none" '
    'stroke="{colour}" stroke-width="{width:.1f}" {dash}opacity="0.85"><title>{said}</title></path>'
    '<path d="{arrow}" fill="{colour}"/>'
)
_TEXT = Markup(
    '<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size}" {weight}class="{kind}">'
    "{text}</text>"
)
_SHAPES: dict[str, Markup] = {
    "circle": Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}">{title}</circle>'),
    "rect": Markup(
        '<rect x="{left:.1f}" y="{top:.1f}" width="{d}" height="{d}" fill="{colour}">{title}</rect>'
    ),
    "diamond": Markup(
        '<path d="M{x:.1f} {top:.1f} L{right:.1f} {y:.1f} L{x:.1f} {bottom:.1f} L{left:.1f} '
        '{y:.1f} Z" fill="{colour}">{title}</path>'
    ),
    "triangle": Markup(
        '<path d="M{x:.1f} {top:.1f} L{right:.1f} {bottom:.1f} L{left:.1f} {bottom:.1f} Z" '
        'fill="{colour}">{title}</path>'
    ),
}


def draw(test: pd.Series, facts: pd.DataFrame, kinds: Mapping[str, str]) -> Markup:
    """Return an SVG picture of a test triple and facts, with the head left and the tail right.

    Args:
        test: A row of a report's tests.
        facts: The facts to draw, strongest first.
        kinds: Kinds of entities by their ids.
    """
    labels = node_labels(test, facts)
    found = positions(test, facts)
    height = 2 * MARGIN_Y + ROW_HEIGHT * max(MIN_ROWS, _num_rows(found))
    places = {key: _point(place, height) for key, place in found.items()}
    shown = looks(kinds, labels)
    largest = float(facts["influence"].abs().max() or 1.0) if len(facts) else 1.0
    ends = (str(test["head_id"]), str(test["tail_id"]))
    answer = _Line(
        start=places[ends[0]],
        end=places[ends[1]],
        colour=ANSWER,
        width=3,
        said=f"{test['relation']}?",
        bend=0.22,
        labelled=True,
        dashed=True,
    )
    body = [_edge(answer)]
    seen: dict[frozenset[str], int] = {}
    for number, (_, fact) in enumerate(facts.iterrows()):
        pair = (str(fact["head_id"]), str(fact["tail_id"]))
        before = seen.get(frozenset(pair), 0)
        seen[frozenset(pair)] = before + 1
        value = float(fact["influence"])
        width = 1.2 + 4 * abs(value) / largest
        colour = FOR if value > 0 else AGAINST
        start, end = (places[key] for key in pair)
        bend = 0.14 * before or (0.25 if start[0] == end[0] else 0.0)
        said = f"{'▲' if value > 0 else '▼'} {fact['relation']}"
        body.append(_edge(_Line(start, end, colour, width, said, bend, number < MAX_LABELS)))
    for key, text in labels.items():
        look = shown.get(kinds.get(key, ""), PLAIN)
        body.append(_node(places[key], text, look, key in ends, above=places[key][1] < height / 2))
    title = f"Training facts about {test['head']} {test['relation']} {test['tail']}"
    return _FRAME.format(width=WIDTH, height=height, title=title, body=Markup("").join(body))


def _num_rows(places: Mapping[str, Position]) -> float:
    apart = [
        below - above
        for (x, above), (other_x, below) in pairwise(sorted(places.values()))
        if x == other_x
    ]
    return 2 / min(apart, default=2)


def _point(place: Position, height: float) -> Position:
    x, y = place
    return (
        MARGIN_X + (x + 1) / 2 * (WIDTH - 2 * MARGIN_X),
        MARGIN_Y + (y + 1) / 2 * (height - 2 * MARGIN_Y),
    )


@dataclass(frozen=True)
class _Line:
    """A triple as a line between two places."""

    start: Position
    end: Position
    colour: str
    width: float
    said: str
    bend: float
    labelled: bool
    dashed: bool = False


def _edge(edge: _Line) -> Markup:
    (x1, y1), (x2, y2) = edge.start, edge.end
    width, bend = edge.width, edge.bend
    if edge.start == edge.end:  # a fact about an entity and itself
        x1, x2, y1, y2, bend = x1 - 9, x2 + 9, y1 - 4, y2 - 4, 2.5
    across, down = x2 - x1, y2 - y1
    control = ((x1 + x2) / 2 + down * bend, (y1 + y2) / 2 - across * bend)
    length = math.hypot(x2 - control[0], y2 - control[1]) or 1.0
    ux, uy = (x2 - control[0]) / length, (y2 - control[1]) / length
    tip = (x2 - ux * 11, y2 - uy * 11)
    size = 5 + width
    wing = (tip[0] - ux * size, tip[1] - uy * size)
    side = (-uy * size * 0.55, ux * size * 0.55)
    arrow = (
        f"M{tip[0]:.1f} {tip[1]:.1f} L{wing[0] + side[0]:.1f} {wing[1] + side[1]:.1f} "
        f"L{wing[0] - side[0]:.1f} {wing[1] - side[1]:.1f} Z"
    )
    line = _LINE.format(
        x1=x1,
        y1=y1,
        cx=control[0],
        cy=control[1],
        x2=wing[0],
        y2=wing[1],
        colour=edge.colour,
        width=width,
        dash=Markup('stroke-dasharray="7 5" ' if edge.dashed else ""),
        said=edge.said,
        arrow=arrow,
    )
    if not edge.labelled:
        return line
    middle = ((x1 + 2 * control[0] + x2) / 4, (y1 + 2 * control[1] + y2) / 4 - 5)
    return line + _text(middle, short_text(edge.said), 11.5, "edge", bold=edge.dashed)


def _node(place: Position, name: str, look: Look, is_end: bool, *, above: bool) -> Markup:
    x, y = place
    r = END_RADIUS if is_end else RADIUS
    shape = _SHAPES[look.symbol].format(
        x=x,
        y=y,
        r=r,
        d=2 * r,
        left=x - r,
        right=x + r,
        top=y - r,
        bottom=y + r,
        colour=look.colour,
        title=Markup("<title>{}</title>").format(name),
    )
    lines = name_lines(name, 2)
    first = y - r - 5 - 13 * (len(lines) - 1) if above else y + r + 14
    texts = [
        _text((x, first + 13 * number), line, 13 if is_end else 12, "name", bold=is_end)
        for number, line in enumerate(lines)
    ]
    return shape + Markup("").join(texts)


def _text(place: Position, text: str, size: float, kind: str, *, bold: bool) -> Markup:
    return _TEXT.format(
        x=place[0],
        y=place[1],
        text=text,
        size=size,
        kind=kind,
        weight=Markup('font-weight="600" ' if bold else ""),
    )
