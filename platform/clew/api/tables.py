"""Converts explanations into tables with a row for each training example."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from clew.runs.influence_forms import CHECKPOINT_PREFIX, PART_PREFIX
from clew.runs.influence_report import (
    InfluenceEntry,
    InfluenceReport,
    SequenceInfluenceReport,
    TripleRecord,
    WindowReport,
    WindowScore,
)

TEST = "test"
"""Column with the number of the explained prediction, from 0."""
FACT = "example"
"""Column with the training example as one line."""

Row = dict[str, object]


def triple_table(report: InfluenceReport) -> pd.DataFrame:
    """Return the training facts of all explained triples, with labels, names and influence."""
    steps = [checkpoint.step for checkpoint in report.model.checkpoints]
    rows = [
        {TEST: number, "side": side, **_words(entry.train), **_numbers(entry, steps)}
        for number, test in enumerate(report.tests)
        for side, entries in (("proponent", test.proponents), ("opponent", test.opponents))
        for entry in entries
    ]
    return _table(rows, ["head", "relation", "tail"])


def window_table(report: WindowReport[Any]) -> pd.DataFrame:
    """Return the training windows of an explained text or an explained window of frames."""
    own = ["window", "first_token", "text"]
    if isinstance(report, SequenceInfluenceReport):
        own = ["window", "last_frame", "group", "target"]
    rows: list[Row] = [
        {
            **{TEST: 0, "side": side, FACT: report.shown(window)},
            **{name: getattr(window, name) for name in own},
            **_numbers(window, report.steps),
        }
        for side, windows in (("proponent", report.proponents), ("opponent", report.opponents))
        for window in windows
    ]
    return _table(rows, own)


def _words(triple: TripleRecord) -> Row:
    """Return a fact's labels, the labels as one line, and the names in the data files."""
    terms = {"head": triple.head, "relation": triple.relation, "tail": triple.tail}
    return {
        **{role: term.label for role, term in terms.items()},
        FACT: " · ".join(term.label for term in terms.values()),
        **{f"{role}_id": term.id for role, term in terms.items()},
    }


def _numbers(entry: InfluenceEntry | WindowScore, steps: Sequence[int]) -> Row:
    """Return an example's rank and influence, and its shares by checkpoint and part."""
    index = entry.train_index if isinstance(entry, InfluenceEntry) else None
    shares = zip(steps, entry.by_checkpoint, strict=False)
    return {
        "rank": entry.rank,
        "influence": entry.influence,
        **({} if entry.cosine is None else {"cosine": entry.cosine}),
        **({} if index is None else {"train_index": index}),
        **{f"{CHECKPOINT_PREFIX}{step}": value for step, value in shares},
        **{f"{PART_PREFIX}{part}": value for part, value in entry.by_part.items()},
    }


def _table(rows: list[Row], own: list[str]) -> pd.DataFrame:
    """Return rows as a table; a table without rows has the columns that are always present."""
    columns = [TEST, "side", "rank", *own, "influence", *(key for row in rows for key in row), FACT]
    return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))
