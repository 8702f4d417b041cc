"""The picture of an explanation: looks of entities and facts, and an SVG without scripts.

Each kind of entity has a colour and a symbol. A picture is made higher until no name is over
another. `picture_layout` says where entities and their names are.
"""

import itertools
import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from markupsafe import Markup

from clew.errors import spaced
from clew.runs.influence_forms import DISPUTED_COLUMN, TRAIN_INDEX_COLUMN
from clew.runs.reading import picture_layout as layout
from clew.runs.reading.picture_layout import RADIUS, Box, Position, Text

Symbol = Literal["circle", "rect", "diamond", "triangle"]
MARKS: dict[Symbol, str] = {"circle": "●", "rect": "■", "diamond": "◆", "triangle": "▲"}
SYMBOLS: tuple[Symbol, ...] = tuple(MARKS)
COLOURS = ("#009E73", "#A8568A", "#4F7CAC", "#8C6D31", "#5B5EA6")
"""Colours of kinds. They differ from the colours of influence, and each has a contrast of at least
3 : 1 on the light and on the dark page."""


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
    found = zip(every, itertools.cycle(COLOURS), itertools.cycle(SYMBOLS), strict=False)
    return {kind: Look(colour, symbol) for kind, colour, symbol in found if kind in shown}


WIDTH, HEIGHT, WIDE_LETTERS = 960, 560, 0.64
LEAST_ROW, ROW_HEIGHT, MIN_ROWS = 24.0, 58.0, 4
GROWTH, MOST_GROWTH = 1.2, 15
"""A picture in which names overlap is made higher by this factor, at most so many times."""
FOR, AGAINST, ANSWER = "#1F6FB0", "#C24E00", "#B97900"
MARK = "≡"
"""Looks like the line of a marked fact, which has a thin line on either side."""
END_RADIUS = 10
EDGE_SIZE = 11.5
CAPTION_ROW, CAPTION_X = 18, 20
MAX_LABELS = 12
ALONG = (0.5, 0.38, 0.62, 0.26, 0.74)
"""Where on a line its name can be, as shares of the line."""
BENDS = (0.0, 0.16, -0.16, 0.3, -0.3)
_FRAME = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
    'aria-label="{title}">{body}</svg>'
)
_LINE = Markup(
    '<g{fact} opacity="{opacity}"><title>{said}</title>'
    '<path d="{curve}" fill="none" stroke="transparent" stroke-width="14"/>{beside}'
    '<path d="{curve}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"{dash}/></g>'
)
_BESIDE = Markup(
    '<path d="{curve}" fill="none" stroke="{colour}" stroke-width="{outer:.1f}"/>'
    '<path d="{curve}" class="gap" fill="none" stroke="#fff" stroke-width="{inner:.1f}"/>'
)
_DASH, DASHES, DOTS = Markup(' stroke-dasharray="{}"'), "7 5", "2 4"
_ARROW = Markup('<path d="{arrow}" fill="{colour}" opacity="{opacity}" pointer-events="none"/>')
_ENTITY = Markup('<g data-entity="{key}"><title>{said}</title>{shape}{texts}</g>')
_TEXT = Markup(
    '<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {weight}'
    'class="{kind}">{text}</text>'
)
_SHAPES: dict[str, Markup] = {
    "circle": Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}"/>'),
    "rect": Markup('<rect x="{left:.1f}" y="{top:.1f}" width="{d}" height="{d}" fill="{colour}"/>'),
    "diamond": Markup(
        '<path d="M{x:.1f} {top:.1f} L{right:.1f} {y:.1f} L{x:.1f} {bottom:.1f} L{left:.1f} '
        '{y:.1f} Z" fill="{colour}"/>'
    ),
    "triangle": Markup(
        '<path d="M{x:.1f} {top:.1f} L{right:.1f} {bottom:.1f} L{left:.1f} {bottom:.1f} Z" '
        'fill="{colour}"/>'
    ),
}


def draw(
    test: pd.Series,
    facts: pd.DataFrame,
    kinds: Mapping[str, str],
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    letters: float = WIDE_LETTERS,
    selected: Collection[int] = (),
    marked: Collection[int] = (),
    caption: str = "",
) -> Markup:
    """Return an SVG picture of a test triple and facts, with the head left and the tail right.

    `test` is a row of a report's tests, and `facts` are drawn strongest first. `selected` has the
    places of the facts that stand out. A fact at place 0 has no influence and cannot be selected.
    `marked` has the training indices of the facts that a check took away, and `caption` is below.
    The picture is higher than `height` if it has to be.
    `letters` is about how wide a letter is, in font sizes.
    """
    labels = layout.node_labels(test, facts)
    found = layout.positions(test, facts)
    is_narrow = width < layout.NARROW
    found = layout.turned(found) if is_narrow else found
    down = len({y for _, y in found.values()}) - 1 if is_narrow else layout.num_rows(found)
    rows = max(MIN_ROWS, down)
    row = min(ROW_HEIGHT, max(LEAST_ROW, (height - 2 * layout.MARGIN_Y) / rows))
    facts = facts.fillna({"influence": 0.0})
    ends = (str(test["head_id"]), str(test["tail_id"]))
    for _ in range(MOST_GROWTH):
        size = (width, 2 * layout.MARGIN_Y + row * rows)
        places = {key: layout.point(place, *size) for key, place in found.items()}
        lines = list(_lines(test, facts, places, selected, marked))
        arrows = [line.arrow_box for line in lines]
        names, covered = layout.entity_names(labels, places, ends, arrows, size, letters=letters)
        if not covered:
            break
        row *= GROWTH
    taken = [*layout.obstacles(places, size), *arrows]
    taken += [text.box for texts in names.values() for text in texts]
    first = sorted(lines, key=lambda line: not line.stands_out)
    said = [line.name(taken, letters) for line in first]
    below, bottom = textwrap.wrap(caption, int(width / EDGE_SIZE / letters) - 6), size[1]
    for text in below:
        bottom += CAPTION_ROW
        caption_line = Text(CAPTION_X, bottom, text, EDGE_SIZE, letters, "start", False)
        said.append(_drawn(caption_line, "edge"))
    shown = looks(kinds, labels)
    nodes = []
    for key, text in labels.items():
        kind = kinds.get(key, "")
        x, y = places[key]
        r = END_RADIUS if key in ends else RADIUS
        look = shown.get(kind, PLAIN)
        corners = {"left": x - r, "right": x + r, "top": y - r, "bottom": y + r}
        shape = _SHAPES[look.symbol].format(x=x, y=y, r=r, d=2 * r, colour=look.colour, **corners)
        texts = Markup("").join(_drawn(line, "name") for line in names[key])
        about = f"{text} ({kind})" if kind else text
        nodes.append(_ENTITY.format(key=key, said=about, shape=shape, texts=texts))
    drawn, heads = [line.draw() for line in lines], [line.draw_arrow() for line in lines]
    body = Markup("").join([*drawn, *nodes, *heads, *said])
    title = f"Training facts about {test['head']} {test['relation']} {test['tail']}"
    title, bottom = f"{title} {caption}".strip(), bottom + CAPTION_X * bool(below)
    return _FRAME.format(width=size[0], height=bottom, title=title, body=body)


def _drawn(text: Text, kind: str) -> Markup:
    weight = Markup('font-weight="600" ' if text.bold else "")
    return _TEXT.format(**text._asdict(), weight=weight, kind=kind)


@dataclass(frozen=True)
class _Line:
    """A triple as a line between two places."""

    start: Position
    end: Position
    bend: float
    colour: str
    width: float
    relation: str
    said: str
    labelled: bool
    fact: int | None = None
    opacity: float = 0.9
    stands_out: bool = False
    marked: bool = False
    disputed: bool = False

    @property
    def points(self) -> tuple[Position, Position, Position]:
        """Start, control and end of the curve."""
        (x1, y1), (x2, y2), bend = self.start, self.end, self.bend
        if self.start == self.end:  # a fact about an entity and itself
            x1, x2, y1, y2, bend = x1 - 9, x2 + 9, y1 - 4, y2 - 4, 2.5
        control = ((x1 + x2) / 2 + (y2 - y1) * bend, (y1 + y2) / 2 - (x2 - x1) * bend)
        return (x1, y1), control, (x2, y2)

    def at(self, share: float) -> Position:
        one, two, three = (1 - share) ** 2, 2 * share * (1 - share), share**2
        x, y = (one * a + two * b + three * c for a, b, c in zip(*self.points, strict=True))
        return x, y

    @property
    def arrow(self) -> tuple[Position, Position, Position]:
        """The tip of the arrowhead and its other corners."""
        _, (cx, cy), (x2, y2) = self.points
        length = math.hypot(x2 - cx, y2 - cy) or 1.0
        ux, uy, size = (x2 - cx) / length, (y2 - cy) / length, 5 + self.width
        x, y = x2 - ux * 11, y2 - uy * 11
        left, right = (
            (x - ux * size - side * uy * size, y - uy * size + side * ux * size)
            for side in (0.55, -0.55)
        )
        return (x, y), left, right

    @property
    def arrow_box(self) -> Box:
        across, down = zip(*self.arrow, strict=True)
        return Box(min(across), min(down), max(across), max(down))

    def passes(self, places: Iterable[Position]) -> bool:
        """Whether the line goes through the symbol of another entity."""
        others = [place for place in places if place not in (self.start, self.end)]
        points = [self.at(number / 24) for number in range(1, 24)]
        return any(math.dist(point, other) < RADIUS + 3 for point in points for other in others)

    def draw(self) -> Markup:
        (x1, y1), (cx, cy), _ = self.points
        _, left, right = self.arrow
        x2, y2 = (left[0] + right[0]) / 2, (left[1] + right[1]) / 2
        curve = f"M{x1:.1f} {y1:.1f} Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"
        outer, inner = self.width + 8, self.width + 5
        beside = _BESIDE.format(curve=curve, colour=self.colour, outer=outer, inner=inner)
        dash = DOTS if self.disputed else DASHES if self.fact is None else ""
        return _LINE.format(
            fact=Markup(' data-fact="{}"').format(self.fact) if self.fact else "",
            said=self.said,
            opacity=self.opacity,
            curve=curve,
            beside=beside if self.marked else "",
            colour=self.colour,
            width=self.width,
            dash=_DASH.format(dash) if dash else "",
        )

    def draw_arrow(self) -> Markup:
        corners = " L".join(f"{x:.1f} {y:.1f}" for x, y in self.arrow)
        return _ARROW.format(arrow=f"M{corners} Z", colour=self.colour, opacity=self.opacity)

    def name(self, taken: list[Box], letters: float) -> Markup:
        """Draw the line's name where it covers nothing `taken`; tables name all facts."""
        bold = self.fact is None or self.stands_out
        for share in ALONG if self.labelled else ():
            x, y = self.at(share)
            short = layout.short_text(self.relation)
            text = Text(x, y - 5, short, EDGE_SIZE, letters, "middle", bold)
            if not text.box.meets(taken):
                taken.append(text.box)
                return _drawn(text, "edge")
        return Markup("")


def _lines(
    test: pd.Series,
    facts: pd.DataFrame,
    places: Mapping[str, Position],
    selected: Collection[int],
    marked: Collection[int] = (),
) -> Iterator[_Line]:
    """Yield the test triple's line, then those of facts, around other entities if possible."""
    head, tail = places[str(test["head_id"])], places[str(test["tail_id"])]
    asked = spaced(test["relation"]) + "?"
    whole = f"{test['head']} {test['relation']}? {test['tail']}"
    yield _Line(head, tail, 0.22, ANSWER, 3, asked, whole, labelled=True)
    largest = float(facts["influence"].abs().max() or 1.0) if len(facts) else 1.0
    seen: dict[frozenset[str], int] = {}
    for number, (_, fact) in enumerate(facts.iterrows()):
        pair = (str(fact["head_id"]), str(fact["tail_id"]))
        before = seen.get(frozenset(pair), 0)
        seen[frozenset(pair)] = before + 1
        value, place = float(fact["influence"]), int(fact["place"])
        start, end = (places[key] for key in pair)
        sign = "▲ " if value > 0 else "▼ " if value < 0 else ""
        chosen, is_marked = place in selected, fact.get(TRAIN_INDEX_COLUMN) in marked
        disputed = fact.get(DISPUTED_COLUMN) in {True}  # NaN for a fact of a neighbour
        least = 0.14 * before or (0.25 if start[0] == end[0] else 0.0)
        tried = [
            _Line(
                start,
                end,
                least + more,
                PLAIN.colour if disputed or not value else FOR if value > 0 else AGAINST,
                1.2 + 4 * abs(value) / largest + 1.5 * chosen,
                sign + spaced(fact["relation"]),
                f"{sign}{fact['head']} {fact['relation']} {fact['tail']}"
                + ", taken away in the check" * is_marked
                + ", the runs disagree on its sign" * disputed,
                labelled=chosen or not place or (not selected and number < MAX_LABELS),
                fact=place,
                opacity=1 if chosen else 0.5 if selected and place else 0.9,
                stands_out=chosen,
                marked=is_marked,
                disputed=disputed,
            )
            for more in BENDS
        ]
        yield next((line for line in tried if not line.passes(places.values())), tried[0])
