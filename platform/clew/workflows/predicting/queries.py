"""Reads queries from the command line or from a file."""

import json
from dataclasses import dataclass
from pathlib import Path

from clew.errors import DataError, UsageError, described, quoted
from clew.input_files import read_lines
from clew.link_prediction.prediction import Query

ASKED = "?"
"""Placeholder for the unknown end of a query in a file."""


@dataclass(frozen=True)
class Asked:
    """A query, and its file and line for error messages."""

    query: Query
    where: str = ""


def asked(head: str, relation: str, tail: str) -> Asked:
    """Return a query from command-line values; an empty value means not given."""
    return Asked(Query(relation, head=head or None, tail=tail or None))


def read_queries(path: Path) -> list[Asked]:
    """Read a file of queries: JSON objects, one per line, or `head<TAB>relation<TAB>tail`.

    In tab-separated lines, `?` is the unknown end, and an unknown tail can be left out. A line with
    both ends is a whole triple.

    Raises:
        DataError: A line has neither form, or the file contains no query.
    """
    found = [
        Asked(_query_of_line(line, where), where)
        for number, line in enumerate(read_lines(path), start=1)
        if line.strip() and (where := f"{path}, line {number}")
    ]
    if not found:
        raise DataError(
            f"{path}: contains no query; expected one query per line, such as head<TAB>relation"
        )
    return found


def _query_of_line(line: str, where: str) -> Query:
    if line.lstrip().startswith("{"):
        return _query_of_json(line, where)
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) not in (2, 3):
        raise DataError(
            f"{where}: {quoted(line.strip())} has {len(fields)} tab-separated columns; expected "
            f"head, relation and tail, with {ASKED} for the unknown end"
        )
    head, relation, tail = (None if field == ASKED else field for field in (*fields, ASKED)[:3])
    return _checked(Query(relation or "", head=head or None, tail=tail or None), where)


def _query_of_json(line: str, where: str) -> Query:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({described(error)})") from None
    unknown = sorted(content.keys() - {"head", "relation", "tail"})
    if unknown or not all(isinstance(v, str | None) for v in content.values()):
        raise DataError(
            f"{where}: {quoted(line.strip())}; expected texts under head, relation and tail"
            + (f", not {quoted(unknown[0])}" if unknown else "")
        )
    query = Query(
        content.get("relation") or "",
        head=content.get("head") or None,
        tail=content.get("tail") or None,
    )
    return _checked(query, where)


def _checked(query: Query, where: str) -> Query:
    try:
        _ = query.is_triple or query.asks_for
    except UsageError as error:
        raise DataError(f"{where}: {error}") from None
    return query
