"""How the entities of an explanation look in a picture: their places, names, colours and symbols.

Entities stand in columns from the test triple's head to its tail: between both what joins them by
short paths, outside of them what is nearer to one end. The same explanation always looks the same.
Kinds of entities are told apart by a colour and by a symbol.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

MAX_TEXT = 24
LINE_CHARACTERS = 20
MAX_BETWEEN = 3
"""An entity on a path of at most so many facts from head to tail stands between them."""
ROOMY = 0.4
"""So far apart, of a height of 2, are entities of a short column beside a long one."""
Position = tuple[float, float]
Symbol = Literal["circle", "rect", "diamond", "triangle"]
MARKS: dict[Symbol, str] = {"circle": "●", "rect": "■", "diamond": "◆", "triangle": "▲"}
SYMBOLS: tuple[Symbol, ...] = tuple(MARKS)
COLOURS = ("#009E73", "#A8568A", "#4F7CAC", "#8C6D31", "#5B5EA6")
"""Not those of influence; each at least 3 : 1 on the light page and on the dark one."""


def node_labels(test: pd.Series, facts: pd.DataFrame) -> dict[str, str]:
    """Return the text of each entity, the test triple's first."""
    labels = {str(test["head_id"]): str(test["head"]), str(test["tail_id"]): str(test["tail"])}
    for side in ("head", "tail"):
        for key, text in zip(facts[f"{side}_id"], facts[side], strict=True):
            labels.setdefault(str(key), str(text))
    return labels


def positions(test: pd.Series, facts: pd.DataFrame) -> dict[str, Position]:
    """Return a place for each entity, from -1 to 1 in both directions; y points down."""
    head, tail = str(test["head_id"]), str(test["tail_id"])
    heads, tails = (facts[key].astype(str).tolist() for key in ("head_id", "tail_id"))
    beside: dict[str, set[str]] = {key: set() for key in node_labels(test, facts)}
    for one, other in zip(heads, tails, strict=True):
        beside[one].add(other)
        beside[other].add(one)
    # Not through the other end: what hangs on the head alone is not between the two.
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
        elif before == behind:  # joined to neither end: its facts run from left to right too
            column = 1 if key in are_heads else MAX_BETWEEN - 1
        else:
            column = -1 if before < behind else MAX_BETWEEN + 1
        columns.setdefault(column, []).append(key)
    across = 2 / max(len(columns) - 1, 1)
    rows = {
        column: _rows_between(len(keys)) if 0 < column < MAX_BETWEEN else _rows(len(keys))
        for column, keys in columns.items()
    }
    # What the longest column leaves between its rows; a shorter one has more, where it has room.
    common = min(_room(found) for found in rows.values())
    down = {column: min(_room(found), max(common, ROOMY)) for column, found in rows.items()}
    return {
        key: (across * place - 1, down[column] * row)
        for place, column in enumerate(sorted(columns))
        for row, key in zip(rows[column], columns[column], strict=True)
    }


def _rows(number: int) -> list[float]:
    """Return rows about the middle."""
    return [row - (number - 1) / 2 for row in range(number)]


def _rows_between(number: int) -> list[float]:
    """Return rows that leave the middle to what joins both ends: facts, and above the triple."""
    above = [-1.5 - row for row in range(number // 2)]
    return sorted([*above, *(0.5 + row for row in range(number - len(above)))])


def _room(rows: Sequence[float]) -> float:
    """Return how far apart rows can be, within -1 to 1."""
    return 1 / max(0.5, *map(abs, rows))


def _steps_from(start: str, beside: Mapping[str, set[str]], closed: str) -> dict[str, int]:
    """Return how many steps lead from an entity to each that it reaches, past a closed one."""
    steps, reached = {start: 0}, [start]
    for key in reached:
        for other in beside[key] - steps.keys() - ({closed} - {start}):
            steps[other] = steps[key] + 1
            reached.append(other)
    return steps


def name_lines(text: str, num_lines: int) -> list[str]:
    """Return a name in at most `num_lines` short lines, broken after spaces and the like."""
    lines = [""]
    for piece in re.findall(r"[^\s_/,-]+[\s_/,-]?|[\s_/,-]", " ".join(text.split())):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > LINE_CHARACTERS:
            lines.append("")
        lines[-1] += piece
    if len(lines) > num_lines:
        lines = [*lines[: num_lines - 1], "".join(lines[num_lines - 1 :])]
    return [short_text(line.strip()) for line in lines]


def short_text(text: str) -> str:
    """Return a text that is cut, with a sign of it, where it is too long for a picture."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


@dataclass(frozen=True)
class Look:
    """How a kind is drawn."""

    colour: str
    symbol: Symbol

    @property
    def mark(self) -> str:
        """The symbol in a text."""
        return MARKS[self.symbol]


PLAIN = Look("#8A959B", "circle")
"""Of what has no kind."""


def looks(kinds: Mapping[str, str], entities: Iterable[str]) -> dict[str, Look]:
    """Return the look of each kind that some entities have, in the order of the kinds' names.

    A kind looks the same in every explanation of the data: its place among all kinds of the data
    counts, not among those that are shown.
    """
    every = sorted(set(kinds.values()))
    shown = {kinds[entity] for entity in entities if entity in kinds}
    return {
        kind: Look(COLOURS[place % len(COLOURS)], SYMBOLS[place % len(SYMBOLS)])
        for place, kind in enumerate(every)
        if kind in shown
    }
