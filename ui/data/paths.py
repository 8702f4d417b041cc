"""Paths of training facts, places of entities and words for both, from `clew.runs.reading`."""

from clew.runs.reading.layout import Position, name_lines, node_labels, positions, short_text
from clew.runs.reading.paths import MAX_STEPS, FactPath, evidence, facts_of_paths
from clew.runs.reading.wording import answer, place_text, scored, summary

__all__ = [
    "MAX_STEPS",
    "FactPath",
    "Position",
    "answer",
    "evidence",
    "facts_of_paths",
    "name_lines",
    "node_labels",
    "place_text",
    "positions",
    "scored",
    "short_text",
    "summary",
]
