"""Layout of the picture of an explanation: positions, names, colours and symbols of entities.

Entities are placed in columns from the test triple's head to its tail. Entities on short paths are
between the two; entities that are nearer to one end are outside. The same explanation always gives
the same picture. Each kind of entity has a colour and a symbol.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

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
