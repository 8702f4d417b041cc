"""Explanations of texts and image sequences for the pages: their training windows as tables."""

import pandas as pd
import streamlit as st

from clew.runs.influence_columns import CHECKPOINT_PREFIX, PART_PREFIX
from clew.runs.reading.facts import ranked
from clew.runs.reading.reports import ReportFiles
from clew.runs.window_report import SequenceInfluenceReport, TextInfluenceReport, TextWindow
from clew.ui.data.influence import Identity

__all__ = ["SequenceInfluenceReport", "TextInfluenceReport"]

MIN_SHARED_CHARACTERS = 8
Passage = tuple[int, int]


@st.cache_resource(max_entries=16, show_spinner="Reading the explanation …")
def _report(_files: ReportFiles, identity: Identity) -> TextInfluenceReport:
    assert _files.text is not None
    return TextInfluenceReport.read(_files.text)


def text_report_of(files: ReportFiles) -> TextInfluenceReport:
    """Return the explanation of a text."""
    return _report(files, files.identity)


def text_windows(report: TextInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a text, in the order of `by_side`.

    Columns: `place` and `rank` as of `ranked`, `influence`, `text`, `window` (its number),
    `first_token` and `last_token` (its place in the packed corpus), `cosine` if the report has it,
    and `part_*` and `checkpoint_*`.
    """
    frame = pd.DataFrame([_row(entry, report) for entry in report.listed])
    if frame.empty:
        return pd.DataFrame(columns=["place", "rank", "influence", "text", "window", "first_token"])
    return ranked(frame)


def _row(entry: TextWindow, report: TextInfluenceReport) -> dict[str, object]:
    row: dict[str, object] = {
        "influence": entry.influence,
        "text": entry.text,
        "window": entry.window,
        "first_token": entry.first_token,
    }
    length = report.settings.get("window")
    if isinstance(length, int):
        row["last_token"] = entry.first_token + length - 1
    if entry.cosine is not None:
        row["cosine"] = entry.cosine
    row |= {PART_PREFIX + part: value for part, value in entry.by_part.items()}
    steps = zip(report.steps, entry.by_checkpoint, strict=False)
    return row | {f"{CHECKPOINT_PREFIX}{step}": value for step, value in steps}


def sequence_windows(report: SequenceInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a prediction from frames, in the order of `by_side`.

    Columns: `rank` within the own side, `influence`, `cosine`, `last_frame`, `group`, `target`.
    """
    return pd.DataFrame(
        [(e.rank, e.influence, e.cosine, e.last_frame, e.group, e.target) for e in report.listed],
        columns=["rank", "influence", "cosine", "last_frame", "group", "target"],
    )


def shared_passages(text: str, other: str) -> list[Passage]:
    """Return the passages of `text` that also occur in `other`, from left to right.

    They have at least `MIN_SHARED_CHARACTERS` characters. Case is ignored, unless lower case
    changes the length of `text`.
    """
    lowered, wanted = text.lower(), other.lower()
    if len(lowered) != len(text):  # a lower-case letter can be longer: places would not fit
        lowered, wanted = text, other
    passages: list[Passage] = []
    start = 0
    while start <= len(lowered) - MIN_SHARED_CHARACTERS:
        end = start + MIN_SHARED_CHARACTERS
        if lowered[start:end] not in wanted:
            start += 1
            continue
        while end < len(lowered) and lowered[start : end + 1] in wanted:
            end += 1
        passages.append((start, end))
        start = end
    return passages
