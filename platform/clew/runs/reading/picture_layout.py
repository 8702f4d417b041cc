"""Where the entities of a picture and their names are, and how names are broken into lines.

Entities are placed in columns from the test triple's head to its tail. Entities on short paths are
between the two; entities that are nearer to one end are outside. The same explanation always gives
the same picture. In a narrow picture the head is on top and the tail at the bottom.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise, product
from typing import NamedTuple

import pandas as pd

LINE_CHARACTERS, SLACK = 20, 4
MAX_BETWEEN = 3
"""An entity on a path of at most this many facts from head to tail is placed between them."""
CROWDED = 6
"""If more entities than this are as far from the head as from the tail, they get own columns."""
ROOMY = 0.4
"""Vertical distance of entities in a short column next to a long one; the height is 2."""
NARROW = 500
"""In a picture less wide than this, columns are rows of at most `ABREAST` entities."""
ABREAST = 3
MARGIN_X, MARGIN_Y = 100, 50
RADIUS, LINE_HEIGHT = 7, 1.27
WRAPS = ((4, LINE_CHARACTERS), (2, LINE_CHARACTERS), (4, 12), (5, 7))
"""Lines and characters of a name; the later ones if the earlier would cover something, and those
of short lines in a narrow picture."""
NEAR, CLEAR = 13, 24
"""Distances of a name from its entity, next to it and behind the arrowheads there."""
Position = tuple[float, float]


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
    halfway = [key for key in beside if from_head.get(key) == from_tail.get(key, far)]
    columns: dict[float, list[str]] = {}
    for key in beside:
        before, behind = from_head.get(key, far), from_tail.get(key, far)
        between = before + behind <= MAX_BETWEEN
        column: float
        if key in (head, tail):
            column = 0 if key == head else MAX_BETWEEN
        elif between:
            column = before
        elif before == behind < far and len(halfway) > CROWDED:  # beside an entity in the middle
            column = min(before, MAX_BETWEEN) - 0.5
        elif before == behind:  # as far from both ends; its facts also go left to right
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


def name_lines(text: str, num_lines: int, characters: int = LINE_CHARACTERS) -> list[str]:
    """Return a name in at most `num_lines` short lines, with spaces for `_`.

    Lines end after a space or one of `/ , -`. A word can be `SLACK` characters longer than a line;
    a longer one is broken.
    """
    most, lines = characters + SLACK, [""]
    words = rf"[^\s/,-]{{1,{most}}}[\s/,-]?|[\s/,-]"
    for piece in re.findall(words, " ".join(text.replace("_", " ").split())):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > characters:
            lines.append("")
        lines[-1] += piece
    if len(lines) > num_lines:
        lines = [*lines[: num_lines - 1], "".join(lines[num_lines - 1 :])]
    return [short_text(line.strip(), most) for line in lines]


def short_text(text: str, most: int = LINE_CHARACTERS + SLACK) -> str:
    """Return a text, shortened with `…` if it is too long for a picture."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def turned(places: Mapping[str, Position]) -> dict[str, Position]:
    """Return positions from top to bottom, in rows of at most `ABREAST` entities."""
    rows: list[list[str]] = []
    ordered = sorted(places, key=lambda key: places[key])
    for _, column in groupby(ordered, lambda key: places[key][0]):
        left = [*column]
        while left:  # fewer in every second row, so that lines pass between the names above
            number = ABREAST - (len(rows) % 2 if len(left) > ABREAST else 0)
            rows.append(left[:number])
            left = left[number:]
    down = 2 / max(len(rows) - 1, 1)
    return {
        key: ((2 * place + 1) / len(keys) - 1, down * row - 1)
        for row, keys in enumerate(rows)
        for place, key in enumerate(keys)
    }


def num_rows(places: Mapping[str, Position]) -> float:
    neighbours = pairwise(sorted(places.values()))
    apart = [below - above for (x, above), (other_x, below) in neighbours if x == other_x]
    return 2 / min(apart, default=2)


def point(place: Position, width: float, height: float) -> Position:
    across, down = (1 + place[0]) / 2, (1 + place[1]) / 2
    margin = MARGIN_X if width >= NARROW else 0
    return margin + across * (width - 2 * margin), MARGIN_Y + down * (height - 2 * MARGIN_Y)


class Box(NamedTuple):
    """Where a line of text or a symbol is."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, others: Sequence["Box"]) -> int:
        left, top, right, bottom = self
        meet = (left < c and a < right and top < d and b < bottom for a, b, c, d in others)
        return sum(meet)


class Text(NamedTuple):
    """A line of text, and about where it is."""

    x: float
    y: float
    text: str
    size: float
    letters: float
    anchor: str
    bold: bool

    @property
    def box(self) -> Box:
        length = len(self.text) * self.size * self.letters * (1.16 if self.bold else 1)
        left = self.x - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return Box(left, self.y - self.size, left + length, self.y + 0.25 * self.size)


def obstacles(places: Mapping[str, Position], size: tuple[float, float]) -> list[Box]:
    """Return where no name can be: on an entity, and outside of the picture."""
    far, (width, height) = math.inf, size
    return [
        *(Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in places.values()),
        *(Box(-far, -far, 0, far), Box(width, -far, far, far)),
        *(Box(-far, -far, far, 0), Box(-far, height, far, far)),
    ]


def entity_names(
    labels: Mapping[str, str],
    places: Mapping[str, Position],
    ends: tuple[str, str],
    arrows: Sequence[Box],
    size: tuple[float, float],
    *,
    letters: float,
) -> tuple[dict[str, list[Text]], bool]:
    """Return the names of entities where they cover least, and whether one covers another."""
    taken = obstacles(places, size)
    names, covered, is_narrow = dict[str, list[Text]](), False, size[0] < NARROW

    def cost(texts: Sequence[Text]) -> int:
        boxes = [text.box for text in texts]
        over = sum(box.meets(taken) for box in boxes)
        return 1000 * over + sum(box.meets(arrows) for box in boxes)

    for key, name in labels.items():
        sides: tuple[str, ...] = ("above", "below")
        sides = sides if places[key][1] < size[1] / 2 else sides[::-1]
        sides += () if is_narrow else ("left", "right")
        # Near the entity if possible, otherwise behind the arrowheads there.
        tried = [
            _beside(places[key], name_lines(name, *wrap), room, side, letters, is_end=key in ends)
            for wrap, room in product(WRAPS[2 * is_narrow :], (NEAR, CLEAR))
            for side in sides
        ]
        names[key] = min(tried, key=cost)
        covered |= cost(names[key]) >= 1000
        taken += [text.box for text in names[key]]
    return names, covered


def _beside(
    place: Position, lines: Sequence[str], room: float, side: str, letters: float, *, is_end: bool
) -> list[Text]:
    """Return the lines of a name next to its entity."""
    (x, y), size = place, 13 if is_end else 12
    down = LINE_HEIGHT * size
    more = down * (len(lines) - 1)
    first = {"above": y - room - more, "below": y + room + size - 2}
    top = first.get(side, y + 0.36 * size - more / 2)
    across = {"left": x - room, "right": x + room}.get(side, x)
    anchor = {"left": "end", "right": "start"}.get(side, "middle")
    look = (size, letters, anchor, is_end)
    return [Text(across, top + down * row, line, *look) for row, line in enumerate(lines)]
