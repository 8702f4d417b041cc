"""Reads graphs in KGX, the exchange format of Biolink: nodes and edges, as TSV or JSON Lines.

Nodes have `id`, `name`, `category` and `synonym`. Edges have `subject`, `predicate` and `object`.
Files can be compressed. See
https://github.com/biolink/kgx/blob/master/specification/kgx-format.md.
"""

import json
import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from clew.biolink.terms import PREFIX, most_specific
from clew.errors import DataError, described, printable, quoted
from clew.text_blocks import COMPRESSIONS, line_blocks

log = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)

LIST_SEPARATOR = "|"
QUALIFIER_ENDS = ("_qualifier", "qualified_predicate")
FORMATS = ("tsv", "jsonl")


class KgxNode(BaseModel):
    """A node; other columns are ignored."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    id: str
    name: str | None = None
    category: list[str] = []
    synonym: list[str] = []

    @field_validator("category", "synonym", mode="before")
    @classmethod
    def _may_be_text(cls, value: object) -> object:
        return value.split(LIST_SEPARATOR) if isinstance(value, str) else value or []

    @property
    def synonyms(self) -> list[str]:
        """The printable synonyms, without duplicates and without the node's own name."""
        texts = (" ".join(text.replace(LIST_SEPARATOR, " ").split()) for text in self.synonym)
        known = {(self.name or "").casefold(), ""}
        found: dict[str, str] = {}
        for text in texts:
            if text.isprintable() and text.casefold() not in known:
                found.setdefault(text.casefold(), text)
        return list(found.values())


class KgxEdge(BaseModel):
    """An edge; other columns are ignored, except qualifiers."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    subject: str
    predicate: str
    object: str

    @property
    def qualified(self) -> str:
        """The predicate followed by its qualifiers, sorted by name."""
        more = self.model_extra or {}
        found = sorted((key, more[key]) for key in more if key.endswith(QUALIFIER_ENDS))
        parts = [f"{key}={value}" for key, value in found if value not in (None, "", [])]
        return ";".join([self.predicate, *parts])


@dataclass(frozen=True)
class KgxGraph:
    """The contents of a graph's KGX files."""

    entities: list[str]
    relations: list[str]
    triples: Int[np.ndarray, "triple 3"]
    """Distinct triples, sorted, as positions in `entities`, `relations` and `entities`."""
    names: dict[str, str]
    kinds: dict[str, str]
    synonyms: dict[str, list[str]]
    num_edges: int
    """Number of edges read; several edges can be the same triple from different sources."""


def find_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the node files and the edge files in a folder, identified by their names.

    Raises:
        DataError: If the folder has no node files or no edge files.
    """
    ends = tuple(f".{kind}{packed}" for kind in FORMATS for packed in ("", *COMPRESSIONS))
    files = sorted(f for f in path.iterdir() if f.name.endswith(ends)) if path.is_dir() else []
    nodes, edges = ([f for f in files if word in f.name.lower()] for word in ("node", "edge"))
    if not nodes or not edges:
        raise DataError(
            f"{path}: expected a folder with node files and edge files, such as nodes.tsv and "
            f"edges.tsv or nodes.jsonl and edges.jsonl; it has {len(nodes)} node files and "
            f"{len(edges)} edge files"
        )
    return nodes, edges


def read_kgx(path: Path, *, qualifiers: bool = False) -> KgxGraph:
    """Read the nodes and edges of a folder.

    Args:
        path: The folder.
        qualifiers: Whether edges with different qualifiers have different relations.

    Raises:
        DataError: If a file is missing or malformed; the message names the file and the line.
    """
    node_files, edge_files = find_files(path)
    names, kinds, synonyms = _read_nodes(node_files)
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    ids = array("q")
    for file in edge_files:
        for number, record in _records(file, ("subject", "predicate", "object")):
            edge = _checked(KgxEdge, record, file, number)
            relation = edge.qualified if qualifiers else edge.predicate
            for text in (edge.subject, relation, edge.object):
                _refuse_unwritable(text, file, number)
            ids.append(entities.setdefault(edge.subject, len(entities)))
            ids.append(relations.setdefault(relation, len(relations)))
            ids.append(entities.setdefault(edge.object, len(entities)))
    if not ids:
        raise DataError(f"{path}: its edge files contain no edge; expected one edge per line")
    all_triples = np.frombuffer(ids, np.int64).reshape(-1, 3)
    if missing := sum(entity not in names for entity in entities):
        log.warning("%s: entities of edges that are not nodes, and have no name: %d", path, missing)
    triples = np.unique(all_triples, axis=0)
    if len(triples) < len(all_triples):
        log.info("%s: %d edges contain %d distinct triples", path, len(all_triples), len(triples))
    return KgxGraph(
        list(entities), list(relations), triples, names, kinds, synonyms, len(all_triples)
    )


def _read_nodes(
    files: list[Path],
) -> tuple[dict[str, str], dict[str, str], dict[str, list[str]]]:
    names: dict[str, str] = {}
    kinds: dict[str, str] = {}
    synonyms: dict[str, list[str]] = {}
    for file in files:
        for number, record in _records(file, ("id",)):
            node = _checked(KgxNode, record, file, number)
            names[node.id] = printable(" ".join((node.name or "").split()))
            kind = most_specific(node.category) or ""
            kinds[node.id] = printable(" ".join(kind.removeprefix(PREFIX).split()))
            if found := node.synonyms:
                synonyms[node.id] = found
    return names, kinds, synonyms


def _records(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, object]]]:
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    numbered = enumerate(lines, 1)
    if ".jsonl" in path.suffixes:
        for number, line in numbered:
            yield number, _json_record(path, number, line)
        return
    header = _text(path, 1, next(numbered)[1]).split("\t")
    if lacking := [name for name in needed if name not in header]:
        raise DataError(
            f"{path}, line 1: no column {lacking[0]!r} among {quoted(', '.join(header))}; expected "
            "the header of a KGX file"
        )
    for number, line in numbered:
        fields = _text(path, number, line).split("\t")
        if len(fields) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(fields)} columns; expected {len(header)}, as in the "
                "header"
            )
        yield number, dict(zip(header, fields, strict=True))


def _json_record(path: Path, number: int, line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON ({described(error)})") from None
    if not isinstance(record, dict):
        raise DataError(f"{path}, line {number}: expected a JSON object")
    return record


def _text(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: not UTF-8; save the file as UTF-8") from None


def _checked(kind: type[R], record: dict[str, object], path: Path, number: int) -> R:
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        raise DataError(
            f"{path}, line {number}: {described(error)}; expected a valid {kind.__name__.lower()}"
        ) from None


def _refuse_unwritable(text: str, path: Path, number: int) -> None:
    """Refuse a text that cannot be a name in a file of triples."""
    if not text or not text.isprintable():
        raise DataError(
            f"{path}, line {number}: {quoted(text)} is not a name; expected printable text, "
            "without tabs"
        )
