"""Reads the files of a report that someone uploads, in a child process (`clew.untrusted`).

The child reads a file as the pages would. A table comes back and is written again, so that the
pages read only what this program has written. JSON is kept as it is: the same reader has then read
it within the child's memory.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import DataError
from clew.input_files import check_unpacked
from clew.runs.influence_report import (
    SequenceInfluenceReport,
    TextInfluenceReport,
    read_influence_json,
)
from clew.runs.reading.reports import INFLUENCE_TABLE, read_whole_table
from clew.untrusted import MAX_ANSWER_MIB, read_limited


def admitted(path: Path, name: str) -> tuple[str, Path]:
    """Return the field of `ReportFiles` that an uploaded file is for, and the file to read.

    Args:
        path: The file, with the suffix .json, .parquet or .csv.
        name: Its name on the person's computer, for messages.

    Raises:
        DataError: The file is not part of a report, or takes too much memory or time to read.
    """
    try:
        table = read_limited(__name__, str(path), path=str(path))
    except DataError as error:
        raise DataError(str(error).replace(str(path), name)) from None
    kind = table.schema.metadata[b"kind"].decode()
    if kind in {"parquet", "csv"}:
        path = path.with_name(f"{path.stem}-{kind}-read.parquet")
        pq.write_table(table, path)
    return kind, path


def answer(path: str) -> pa.Table:
    """Read a file in the child; return its rows if it is a table, and what it is."""
    file, table = Path(path), pa.table({})
    kind = file.suffix[1:]
    if kind == "json":
        kind = _kind_of_json(file)
        {"text": TextInfluenceReport.read, "sequence": SequenceInfluenceReport.read}.get(
            kind, read_influence_json
        )(file)
    else:
        if kind == "parquet":
            check_unpacked(file, INFLUENCE_TABLE, MAX_ANSWER_MIB * 2**20)
        table = read_whole_table(file)
    return table.replace_schema_metadata({"kind": kind})


def _kind_of_json(path: Path) -> str:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # the reader of the report describes the error
        return "json"
    if not isinstance(content, dict):
        return "json"
    if "prompt" in content:
        return "text"
    return "sequence" if "prediction" in content else "json"
