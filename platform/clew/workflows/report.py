"""Writes an explanation as an HTML page to mail, or as a TRAPI message."""

from pathlib import Path
from typing import Literal

from clew.files import write_whole
from clew.runs.reading.explanation import html_report, open_explanation, trapi_json
from clew.runs.reading.facts import place_text
from clew.workflows.outputs import check_file

ReportFormat = Literal["html", "trapi"]


def write_report(explanation: str, test: int, output: Path, form: ReportFormat) -> str:
    """Write the explanation of one triple to a file; return one line that says what was written.

    Args:
        explanation: A trace run's id, a folder that `tracin` wrote, or its JSON file.
        test: Position of the triple in the report, from 0.
        output: The file; an existing file is replaced.
        form: Format of the file: an HTML page or a TRAPI message.

    Raises:
        UsageError: There is no such explanation, or the file cannot be written.
    """
    check_file("--output", output)
    found = open_explanation(explanation, test)
    rank = float(found.test["rank"])
    write_whole(output, html_report(found) if form == "html" else trapi_json(found))
    return f"{output}: the training facts behind {found.title} ({place_text(rank)})"
