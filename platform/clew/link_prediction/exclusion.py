"""Removes a list of facts from training, such as the facts that reviewers marked as wrong.

The list has one triple `head<TAB>relation<TAB>tail` per line, with the names of the data set. The
dashboard's list begins with lines that identify its data (`clew.names`). Such a list is refused for
other data, where the same names can mean other facts.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from clew import names
from clew.errors import DataError, described, quoted
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph
from clew.spreadsheets import FactList
from clew.text_blocks import check_is_file

logger = logging.getLogger(__name__)

NUM_COLUMNS = 3

Row = tuple[int, int, int]


def leave_out(graph: KnowledgeGraph, path: Path) -> KnowledgeGraph:
    """Return a graph without the training triples in a file; all copies of a triple are removed.

    Entities and relations keep their ids, even if they are in no triple any more.

    Raises:
        DataError: If the file belongs to other data, contains no triple, contains a triple that is
            not a training triple, or contains all training triples.
    """
    check_is_file(path)
    try:
        content = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({described(error)})") from None
    listed = FactList.parse(content)
    _check_origin(path, listed.origin, graph)
    named = {
        _row(path, number, line, graph): number
        for number, line in enumerate(listed.facts, start=listed.first_line)
    }
    if not named:
        raise DataError(
            f"{path}: contains no triple; expected head<TAB>relation<TAB>tail on each line"
        )
    wrong = np.array(list(named), np.int32)
    candidates = np.flatnonzero(
        np.logical_and.reduce(
            [np.isin(graph.train[:, part], wrong[:, part]) for part in (HEAD, RELATION, TAIL)]
        )
    )
    found = [row for row in candidates if tuple(graph.train[row].tolist()) in named]
    missing = named.keys() - {tuple(graph.train[row].tolist()) for row in found}
    if missing:
        number = min(named[row] for row in missing)
        raise DataError(
            f"{path}, line {number}: {quoted(listed.facts[number - listed.first_line])} is not a "
            f"training triple of {graph.name}; only these can be left out"
        )
    if len(found) == len(graph.train):
        raise DataError(f"{path}: lists every training triple of {graph.name}; none would be left")
    logger.info("%s: %d of %d training triples are left out", path, len(found), len(graph.train))
    return replace(graph, train=np.delete(graph.train, found, axis=0))


def _check_origin(path: Path, said: Mapping[str, str], graph: KnowledgeGraph) -> None:
    """Refuse a list of other data."""
    given = said.get(names.LIST_FINGERPRINT_PREFIX, graph.fingerprint)
    if given != graph.fingerprint:
        data_set = said.get(names.LIST_DATA_SET_PREFIX, "unknown data")
        raise DataError(
            f"{path}: its facts are from {quoted(data_set)[1:-1]} with fingerprint "
            f"{quoted(given)[1:-1]}, but {graph.name} here has fingerprint "
            f"{graph.fingerprint}; expected a list from these data"
        )


def _row(path: Path, number: int, line: str, graph: KnowledgeGraph) -> Row:
    fields = line.split("\t")
    if len(fields) != NUM_COLUMNS:
        raise DataError(
            f"{path}, line {number}: {quoted(line)} has {len(fields)} tab-separated columns; "
            "expected head<TAB>relation<TAB>tail"
        )
    head, relation, tail = fields
    try:
        return graph.entities.id(head), graph.relations.id(relation), graph.entities.id(tail)
    except DataError as error:
        raise DataError(f"{path}, line {number}: {error}") from None
