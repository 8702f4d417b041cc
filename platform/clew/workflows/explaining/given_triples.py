"""Reads the triples to explain: `head,relation,tail`, or a file of triples.

A line that cannot be used does not stop the reading: each triple has its own problem field.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clew.errors import DataError, quoted
from clew.input_files import line_blocks
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.triples import KnowledgeGraph, Triples

SHOWN_PROBLEMS = 5
NUM_FIELDS = 3
MAX_PIECES = 32
"""Largest number of pieces between commas; every way to join them to three fields is tried."""


@dataclass(frozen=True)
class GivenTriple:
    """A triple to explain; if it cannot be used, `ids` is None and `problem` says why."""

    index: int
    """Line number, counted from 0."""
    text: str
    ids: tuple[int, int, int] | None
    problem: str = ""


def read_test_triples(test: str, graph: KnowledgeGraph) -> list[GivenTriple]:
    """Read a file of triples, or one triple written as `head,relation,tail`.

    Raises:
        DataError: `test` is neither.
    """
    if not test.strip():
        raise DataError("no test triple given; expected head,relation,tail or a file of triples")
    path = Path(test)
    if os.path.isfile(path):  # Path.is_file raises if the text cannot be a path
        lines = b"".join(line_blocks(path)).decode("utf-8", "replace").split("\n")[:-1]
        return [_of_line(index, line, graph) for index, line in enumerate(lines)]
    if "," not in test:
        raise DataError(
            f"{quoted(test)}: no such file, and not a triple; expected a file of triples, or "
            "head,relation,tail"
        )
    return [_of_commas(test, graph)]


def usable(triples: Sequence[GivenTriple], source: str) -> Triples:
    """Return the ids of triples, all of which must be usable.

    Raises:
        DataError: Some triples cannot be used. The message lists the first few, with near matches.
    """
    wrong = [triple for triple in triples if triple.ids is None]
    if wrong:
        more = f" (and {len(wrong) - SHOWN_PROBLEMS} more)" if len(wrong) > SHOWN_PROBLEMS else ""
        listed = "; ".join(
            f"line {triple.index + 1}: {triple.problem}" for triple in wrong[:SHOWN_PROBLEMS]
        )
        raise DataError(f"{quoted(source)[1:-1]}: {listed}{more}")
    return np.array([triple.ids for triple in triples], np.int32).reshape(-1, NUM_FIELDS)


def _of_line(index: int, line: str, graph: KnowledgeGraph) -> GivenTriple:
    fields = line.split("\t")
    if len(fields) != NUM_FIELDS or "" in fields:
        problem = f"{quoted(line)} is not head<TAB>relation<TAB>tail"
        return GivenTriple(index, line, None, problem)
    return _of_fields(index, line, fields, graph)


def _of_commas(text: str, graph: KnowledgeGraph) -> GivenTriple:
    """Split at two of the commas; names can contain commas, so every way is tried."""
    pieces = text.split(",")
    if len(pieces) > MAX_PIECES:
        problem = f"{quoted(text)} has {len(pieces) - 1:,} commas; give a file with tabs instead"
        return GivenTriple(0, text, None, problem)
    ways = [
        [",".join(pieces[:i]), ",".join(pieces[i:j]), ",".join(pieces[j:])]
        for i in range(1, len(pieces) - 1)
        for j in range(i + 1, len(pieces))
    ]
    if not ways:
        return GivenTriple(0, text, None, f"{quoted(text)} is not head,relation,tail")
    tried = [_of_fields(0, text, [field.strip() for field in way], graph) for way in ways]
    found = [triple for triple in tried if triple.ids is not None]
    if len(found) > 1:
        problem = (
            f"{quoted(text)} can be read as {len(found)} triples; give a file with tabs instead"
        )
        return GivenTriple(0, text, None, problem)
    return found[0] if found else tried[0]


def _of_fields(index: int, text: str, fields: list[str], graph: KnowledgeGraph) -> GivenTriple:
    problems, ids = [], []
    for field, vocabulary in zip(
        fields, (graph.entities, graph.relations, graph.entities), strict=True
    ):
        known = pa.array([field.encode("utf-8", "replace")]).cast(pa.string())
        found = int(fields_to_ids(known, vocabulary)[0])
        if found < 0:
            problems.append(vocabulary.unknown_name_message(field))
        ids.append(found)
    if problems:
        return GivenTriple(index, text, None, "; ".join(problems))
    return GivenTriple(index, text, (ids[0], ids[1], ids[2]))
