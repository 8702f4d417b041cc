"""Explanations of texts and image sequences for the pages: their training windows as frames."""

import pandas as pd
import streamlit as st

from clew.runs.reading.report_files import ReportFiles
from clew.runs.reading.texts import read_text_report, windows_of
from clew.runs.window_report import SequenceInfluenceReport, TextInfluenceReport
from clew.ui.data.influence import Identity

__all__ = ["SequenceInfluenceReport", "TextInfluenceReport", "windows_of"]

MIN_SHARED_CHARACTERS = 8
Passage = tuple[int, int]


@st.cache_resource(max_entries=16, show_spinner="Reading the explanation …")
def _report(_files: ReportFiles, identity: Identity) -> TextInfluenceReport:
    return read_text_report(_files)


def text_report_of(files: ReportFiles) -> TextInfluenceReport:
    """Return the explanation of a text."""
    return _report(files, files.identity)


def sequence_windows(report: SequenceInfluenceReport) -> pd.DataFrame:
    """Return the training windows behind a prediction from frames, most helpful first.

    Columns: `influence`, `cosine`, `last_frame`, `group`, `target`.
    """
    entries = (*report.proponents, *reversed(report.opponents))
    return pd.DataFrame(
        [(e.influence, e.cosine, e.last_frame, e.group, e.target) for e in entries],
        columns=["influence", "cosine", "last_frame", "group", "target"],
    )


def shared_passages(text: str, other: str) -> list[Passage]:
    """Return where `text` repeats at least `MIN_SHARED_CHARACTERS` of `other`, from left to right.

    Upper and lower case are the same here.
    """
    lowered, wanted = text.lower(), other.lower()
    if len(lowered) != len(text):  # a letter whose small form is longer: places would not fit
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
