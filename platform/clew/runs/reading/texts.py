"""Reads the explanation of a text for display: its training windows as a frame."""

import pandas as pd

from clew.errors import DataError
from clew.runs.influence_columns import CHECKPOINT_PREFIX, PART_PREFIX
from clew.runs.reading.report_files import ReportFiles
from clew.runs.window_report import TextInfluenceReport, TextWindow


def read_text_report(files: ReportFiles) -> TextInfluenceReport:
    """Return the explanation of a text.

    Raises:
        DataError: there is none among the files, or it cannot be read.
    """
    if files.text is None:
        raise DataError("no explanation of a text; expected text_influence.json")
    return TextInfluenceReport.read(files.text)


def windows_of(report: TextInfluenceReport) -> pd.DataFrame:
    """Return the training windows, most helpful first.

    Columns: `rank` from 1, `influence`, `text`, `window` (its number), `first_token` and
    `last_token` (its place in the packed corpus), `cosine` where the report has it, and `part_*`
    and `checkpoint_*`.
    """
    entries = (*report.proponents, *reversed(report.opponents))
    frame = pd.DataFrame([_row(entry, report) for entry in entries])
    if frame.empty:
        return pd.DataFrame(columns=["rank", "influence", "text", "window", "first_token"])
    frame = frame.sort_values("influence", ascending=False, kind="stable", ignore_index=True)
    frame.insert(0, "rank", range(1, len(frame) + 1))
    return frame


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
