"""Writes an explanation as a page to mail, or as a message in TRAPI."""

from pathlib import Path
from typing import Literal

from clew.files import write_whole
from clew.runs.sharing.explanation import open_explanation
from clew.runs.sharing.html_report import html_report
from clew.runs.sharing.trapi import trapi_json
from clew.workflows.outputs import check_file

ReportFormat = Literal["html", "trapi"]


def write_report(explanation: str, test: int, output: Path, form: ReportFormat) -> str:
    """Write one explained triple to a file; return in a line what was written.

    Args:
        explanation: A trace run's id, a folder that `tracin` wrote, or its JSON file.
        test: The triple's place in the report, from 0.
        output: The file; one that is there is replaced.
        form: As a page of HTML, or as a TRAPI message.

    Raises:
        UsageError: there is no such explanation, or the file cannot be written.
    """
    check_file("--output", output)
    found = open_explanation(explanation, test)
    write_whole(output, html_report(found) if form == "html" else trapi_json(found))
    return f"{output}: why the model believes that {found.title}"
