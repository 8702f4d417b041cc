"""How kinds of entities look in pictures: a colour and a symbol each, told apart by either."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Symbol = Literal["circle", "rect", "diamond", "triangle"]
MARKS: dict[Symbol, str] = {"circle": "●", "rect": "■", "diamond": "◆", "triangle": "▲"}
SYMBOLS: tuple[Symbol, ...] = ("circle", "rect", "diamond", "triangle")
COLOURS = ("#009E73", "#A8568A", "#4F7CAC", "#8C6D31", "#5B5EA6")
"""Not those of influence; each at least 3 : 1 on the light page and on the dark one."""
NUM_LOOKS = len(COLOURS) * len(SYMBOLS)


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
