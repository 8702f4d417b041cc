"""Paths of training facts and places of entities, as `clew.runs.reading` finds them."""

from clew.runs.reading.layout import (
    MAX_BETWEEN,
    Position,
    name_lines,
    node_labels,
    positions,
    short_text,
)
from clew.runs.reading.paths import (
    MAX_FACTS,
    MAX_PATHS,
    MAX_STEPS,
    TOP,
    FactPath,
    evidence,
    fact_words,
    facts_of_paths,
    find_paths,
)
from clew.runs.reading.wording import answer, place_text, scored, summary

__all__ = [
    "MAX_BETWEEN",
    "MAX_FACTS",
    "MAX_PATHS",
    "MAX_STEPS",
    "TOP",
    "FactPath",
    "Position",
    "answer",
    "evidence",
    "fact_words",
    "facts_of_paths",
    "find_paths",
    "name_lines",
    "node_labels",
    "place_text",
    "positions",
    "scored",
    "short_text",
    "summary",
]
