"""The explanation of an image sequence for the pages: its training windows as a frame."""

from pathlib import Path

import pandas as pd

from clew.runs.window_report import SequenceInfluenceReport

__all__ = ["SequenceInfluenceReport"]


def sequence_report(path: Path) -> SequenceInfluenceReport:
    """Return the explanation of an image sequence.

    Raises:
        DataError: it cannot be read.
    """
    return SequenceInfluenceReport.read(path)


def windows_of(report: SequenceInfluenceReport) -> pd.DataFrame:
    """Return the training windows, most helpful first.

    Columns: `influence`, `cosine`, `last_frame`, `group`, `target`.
    """
    entries = (*report.proponents, *reversed(report.opponents))
    return pd.DataFrame(
        [(e.influence, e.cosine, e.last_frame, e.group, e.target) for e in entries],
        columns=["influence", "cosine", "last_frame", "group", "target"],
    )
