"""The picture of an explanation: positions and looks of entities, and an SVG without scripts.

Entities are placed in columns from the test triple's head to its tail. Entities on short paths are
between the two; entities that are nearer to one end are outside. The same explanation always gives
the same picture. Each kind of entity has a colour and a symbol.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import pandas as pd
from markupsafe import Markup

MAX_TEXT = 24
LINE_CHARACTERS = 20
MAX_BETWEEN = 3
"""An entity on a path of at most this many facts from head to tail is placed between them."""
ROOMY = 0.4
"""Vertical distance of entities in a short column next to a long one; the height is 2."""
Position = tuple[float, float]
Symbol = Literal["circle", "rect", "diamond", "triangle"]
MARKS: dict[Symbol, str] = {"circle": "●", "rect": "■", "diamond": "◆", "triangle": "▲"}
SYMBOLS: tuple[Symbol, ...] = tuple(MARKS)
COLOURS = ("#009E73", "#A8568A", "#4F7CAC", "#8C6D31", "#5B5EA6")
"""Colours of kinds. They differ from the colours of influence, and each has a contrast of at least
3 : 1 on the light and on the dark page."""


def node_labels(test: pd.Series, facts: pd.DataFrame) -> dict[str, str]:
    """Return the label of each entity, with the entities of the test triple first."""
    labels = {str(test["head_id"]): str(test["head"]), str(test["tail_id"]): str(test["tail"])}
    for side in ("head", "tail"):
        for key, text in zip(facts[f"{side}_id"], facts[side], strict=True):
            labels.setdefault(str(key), str(text))
    return labels


def positions(test: pd.Series, facts: pd.DataFrame) -> dict[str, Position]:
    """Return a position for each entity, from -1 to 1 in both directions; y points down."""
    head, tail = str(test["head_id"]), str(test["tail_id"])
    heads, tails = (facts[key].astype(str).tolist() for key in ("head_id", "tail_id"))
    beside: dict[str, set[str]] = {key: set() for key in node_labels(test, facts)}
    for one, other in zip(heads, tails, strict=True):
        beside[one].add(other)
        beside[other].add(one)
    # Paths do not pass the other end: an entity next to the head only is not between the two.
    from_head, from_tail = _steps_from(head, beside, tail), _steps_from(tail, beside, head)
    far, are_heads = len(beside), set(heads)
    columns: dict[int, list[str]] = {}
    for key in beside:
        before, behind = from_head.get(key, far), from_tail.get(key, far)
        between = before + behind <= MAX_BETWEEN
        if key in (head, tail):
            column = 0 if key == head else MAX_BETWEEN
        elif between:
            column = before
        elif before == behind:  # not connected to either end; its facts also go left to right
            column = 1 if key in are_heads else MAX_BETWEEN - 1
        else:
            column = -1 if before < behind else MAX_BETWEEN + 1
        columns.setdefault(column, []).append(key)
    across = 2 / max(len(columns) - 1, 1)
    rows = {
        column: _rows_between(len(keys)) if 0 < column < MAX_BETWEEN else _rows(len(keys))
        for column, keys in columns.items()
    }
    # The distance of rows in the longest column; a shorter column gets a larger one if it fits.
    common = min(_room(found) for found in rows.values())
    down = {column: min(_room(found), max(common, ROOMY)) for column, found in rows.items()}
    return {
        key: (across * place - 1, down[column] * row)
        for place, column in enumerate(sorted(columns))
        for row, key in zip(rows[column], columns[column], strict=True)
    }


def _rows(number: int) -> list[float]:
    return [row - (number - 1) / 2 for row in range(number)]


def _rows_between(number: int) -> list[float]:
    above = [-1.5 - row for row in range(number // 2)]
    return sorted([*above, *(0.5 + row for row in range(number - len(above)))])


def _room(rows: Sequence[float]) -> float:
    """Return the largest distance between rows that keeps them within -1 to 1."""
    return 1 / max(0.5, *map(abs, rows))


def _steps_from(start: str, beside: Mapping[str, set[str]], closed: str) -> dict[str, int]:
    """Return the number of steps to each entity that can be reached without the closed one."""
    steps, reached = {start: 0}, [start]
    for key in reached:
        for other in beside[key] - steps.keys() - ({closed} - {start}):
            steps[other] = steps[key] + 1
            reached.append(other)
    return steps


def name_lines(text: str, num_lines: int) -> list[str]:
    """Return a name in at most `num_lines` short lines, broken after spaces and `_ / , -`."""
    lines = [""]
    for piece in re.findall(r"[^\s_/,-]+[\s_/,-]?|[\s_/,-]", " ".join(text.split())):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > LINE_CHARACTERS:
            lines.append("")
        lines[-1] += piece
    if len(lines) > num_lines:
        lines = [*lines[: num_lines - 1], "".join(lines[num_lines - 1 :])]
    return [short_text(line.strip()) for line in lines]


def short_text(text: str) -> str:
    """Return a text, shortened with `…` if it is too long for a picture."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


@dataclass(frozen=True)
class Look:
    """Colour and symbol of a kind of entity."""

    colour: str
    symbol: Symbol

    @property
    def mark(self) -> str:
        return MARKS[self.symbol]


PLAIN = Look("#8A959B", "circle")
"""Look of an entity without a kind."""


def looks(kinds: Mapping[str, str], entities: Iterable[str]) -> dict[str, Look]:
    """Return the look of each kind that the entities have, in the order of the kinds' names.

    A kind has the same look in every explanation of a data set, because the look depends on the
    kind's position among all kinds of the data set, not only among the shown ones.
    """
    every = sorted(set(kinds.values()))
    shown = {kinds[entity] for entity in entities if entity in kinds}
    return {
        kind: Look(COLOURS[place % len(COLOURS)], SYMBOLS[place % len(SYMBOLS)])
        for place, kind in enumerate(every)
        if kind in shown
    }


WIDTH, COLUMN_WIDTH = 960, 190
ROW_HEIGHT, MIN_ROWS = 58, 4
MARGIN_X, MARGIN_Y = 120, 60
FOR, AGAINST, ANSWER = "#1F6FB0", "#C24E00", "#B97900"
RADIUS, END_RADIUS = 7, 10
EDGE_SIZE, LINE_HEIGHT = 11.5, 15
MAX_LABELS = 12
ALONG = (0.5, 0.38, 0.62, 0.26, 0.74)
"""Where on a line its name can be, as shares of the line."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""
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

    `test` is a row of a report's tests, and `facts` are drawn strongest first.
    """
    labels = node_labels(test, facts)
    found = positions(test, facts)
    width = max(WIDTH, 2 * MARGIN_X + COLUMN_WIDTH * (len({x for x, _ in found.values()}) - 1))
    height = 2 * MARGIN_Y + ROW_HEIGHT * max(MIN_ROWS, _num_rows(found))
    places = {key: _point(place, width, height) for key, place in found.items()}
    shown = looks(kinds, labels)
    facts = facts.fillna({"influence": 0.0})
    largest = float(facts["influence"].abs().max() or 1.0) if len(facts) else 1.0
    ends = (str(test["head_id"]), str(test["tail_id"]))
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places.values()]
    nodes = []
    for key, text in labels.items():
        look, above = shown.get(kinds.get(key, ""), PLAIN), places[key][1] < height / 2
        nodes.append(_node(places[key], text, look, taken, is_end=key in ends, above=above))
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
    edges = [_edge(answer, taken)]
    seen: dict[frozenset[str], int] = {}
    for number, (_, fact) in enumerate(facts.iterrows()):
        pair = (str(fact["head_id"]), str(fact["tail_id"]))
        before = seen.get(frozenset(pair), 0)
        seen[frozenset(pair)] = before + 1
        value = float(fact["influence"])
        thick = 1.2 + 4 * abs(value) / largest
        colour = FOR if value > 0 else AGAINST if value < 0 else PLAIN.colour
        start, end = (places[key] for key in pair)
        bend = 0.14 * before or (0.25 if start[0] == end[0] else 0.0)
        said = f"{'▲ ' if value > 0 else '▼ ' if value < 0 else ''}{fact['relation']}"
        line = _Line(start, end, colour, thick, said, bend, number < MAX_LABELS)
        edges.append(_edge(line, taken))
    title = f"Training facts about {test['head']} {test['relation']} {test['tail']}"
    body = Markup("").join([*edges, *nodes])
    return _FRAME.format(width=width, height=height, title=title, body=body)


def _num_rows(places: Mapping[str, Position]) -> float:
    apart = [
        below - above
        for (x, above), (other_x, below) in pairwise(sorted(places.values()))
        if x == other_x
    ]
    return 2 / min(apart, default=2)


def _point(place: Position, width: float, height: float) -> Position:
    x, y = place
    return (
        MARGIN_X + (x + 1) / 2 * (width - 2 * MARGIN_X),
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


def _edge(edge: _Line, taken: list[Box]) -> Markup:
    """Draw a line and its name where that covers nothing `taken`; tables name all facts."""
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
    said = short_text(edge.said)
    for t in ALONG:
        spot = (
            (1 - t) ** 2 * x1 + 2 * t * (1 - t) * control[0] + t**2 * x2,
            (1 - t) ** 2 * y1 + 2 * t * (1 - t) * control[1] + t**2 * y2 - 5,
        )
        box = _box(spot, said, EDGE_SIZE, bold=edge.dashed)
        if not _crossings([box], taken):
            taken.append(box)
            return line + _text(spot, said, EDGE_SIZE, "edge", bold=edge.dashed)
    return line


def _node(
    place: Position, name: str, look: Look, taken: list[Box], *, is_end: bool, above: bool
) -> Markup:
    """Draw an entity and its name; the name is on the other side if it covers less there."""
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
    lines, size = name_lines(name, 2), 13 if is_end else 12

    def boxes(*, above: bool) -> list[Box]:
        first = y - r - 5 - LINE_HEIGHT * (len(lines) - 1) if above else y + r + 14
        return [
            _box((x, first + LINE_HEIGHT * number), line, size, bold=is_end)
            for number, line in enumerate(lines)
        ]

    chosen = min(
        boxes(above=above), boxes(above=not above), key=lambda found: _crossings(found, taken)
    )
    taken += chosen
    texts = [
        _text((x, box[1] + size), line, size, "name", bold=is_end)
        for box, line in zip(chosen, lines, strict=True)
    ]
    return shape + Markup("").join(texts)


def _box(place: Position, text: str, size: float, *, bold: bool) -> Box:
    """Return about where a text in a wide font is."""
    (x, y), half = place, len(text) * size * (0.37 if bold else 0.32)
    return x - half, y - size, x + half, y + 0.25 * size


def _crossings(boxes: Sequence[Box], taken: Sequence[Box]) -> int:
    return sum(
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
        for one in boxes
        for other in taken
    )


def _text(place: Position, text: str, size: float, kind: str, *, bold: bool) -> Markup:
    return _TEXT.format(
        x=place[0],
        y=place[1],
        text=text,
        size=size,
        kind=kind,
        weight=Markup('font-weight="600" ' if bold else ""),
    )
