"""Reads graphs in KGX, the exchange format of Biolink: nodes and edges, as TSV or JSON Lines.

Nodes have `id`, `name`, `category` and `synonym`. Edges have `subject`, `predicate` and `object`;
`negated` says that the triple is denied, `deprecated` that it is not valid any more. What other
columns say about an edge is counted. Files can be compressed. See
https://github.com/biolink/kgx/blob/master/specification/kgx-format.md.
"""

import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from jaxtyping import Int
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, field_validator

from clew.biolink import DENIED, PREFIX, most_specific
from clew.errors import DataError, described, printable, quoted
from clew.input_files import COMPRESSIONS, line_blocks

log = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)

Negated = Literal["drop", "relation"]
LIST_SEPARATOR = "|"
QUALIFIERS, QUALIFIER_ENDS = "qualifiers", ("_qualifier", "qualified_predicate")
FORMATS = ("tsv", "jsonl")
NO_VALUE = ("", "none", "null", "nan", "na")


def _flag(value: object) -> object:
    """Return a flag as pydantic reads it (`True`, `yes`, `t`, `1`); no value is false."""
    text = value.strip().lower() if isinstance(value, str) else value
    return False if text is None or text in NO_VALUE else text


Flag = Annotated[bool, BeforeValidator(_flag)]


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
    """An edge; its extra fields are the other columns."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    subject: str
    predicate: str
    object: str
    negated: Flag = False
    deprecated: Flag = False

    @property
    def more(self) -> dict[str, str]:
        """The other columns that have a value, as text."""
        found = {}
        for column, value in (self.model_extra or {}).items():
            parts = value if isinstance(value, list) else [value]
            text = LIST_SEPARATOR.join(str(part) for part in parts if part is not None)
            if text and column != "id":
                found[column] = text
        return found

    @property
    def qualifiers(self) -> dict[str, str]:
        """The qualifiers: columns of their own, or TRAPI's list of types and values."""
        found = {key: text for key, text in self.more.items() if key.endswith(QUALIFIER_ENDS)}
        listed = (self.model_extra or {}).get(QUALIFIERS) or []
        for entry in listed if isinstance(listed, list) else [listed]:
            if not isinstance(entry, dict):
                found[QUALIFIERS] = str(entry)
            elif "qualifier_type_id" in entry:
                key = str(entry["qualifier_type_id"]).removeprefix(PREFIX)
                found[key] = str(entry.get("qualifier_value", ""))
        return found

    def relation(self, *, qualifiers: bool) -> str:
        more = sorted(self.qualifiers.items()) if qualifiers else []
        parts = [f"{key}={value}" for key, value in more] + [DENIED] * self.negated
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
    num_denied: int
    """Number of edges that deny their triple."""
    num_deprecated: int
    """Number of edges that are not valid any more, which are dropped."""
    ignored: Mapping[str, Counter[str]]
    """Column to how often each of its values is on an edge that is kept without it."""


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


def read_kgx(path: Path, *, qualifiers: bool = False, negated: Negated = "drop") -> KgxGraph:
    """Read the nodes and edges of a folder.

    Args:
        path: The folder.
        qualifiers: Whether edges with different qualifiers have different relations.
        negated: Whether edges that deny their triple are dropped, or get relations of their own.

    Raises:
        DataError: If a file is missing or malformed; the message names the file and the line.
    """
    node_files, edge_files = find_files(path)
    names, kinds, synonyms = _read_nodes(node_files)
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    ids = array("q")
    seen: Counter[str] = Counter()
    ignored: dict[str, Counter[str]] = {}
    for file in edge_files:
        for number, record in _records(file, ("subject", "predicate", "object")):
            edge = _checked(KgxEdge, record, file, number)
            seen.update(edge=1, denied=edge.negated, deprecated=edge.deprecated)
            if edge.deprecated or (edge.negated and negated == "drop"):
                continue
            used = {QUALIFIERS, *edge.qualifiers} if qualifiers else ()
            for column, text in edge.more.items():
                if column not in used:
                    ignored.setdefault(column, Counter())[text] += 1
            relation = edge.relation(qualifiers=qualifiers)
            for text in (edge.subject, relation, edge.object):
                _refuse_unwritable(text, file, number)
            ids.append(entities.setdefault(edge.subject, len(entities)))
            ids.append(relations.setdefault(relation, len(relations)))
            ids.append(entities.setdefault(edge.object, len(entities)))
    if not ids:
        raise DataError(
            f"{path}: its edge files contain no edge that is neither denied nor deprecated "
            f"({seen['edge']} edges in all); expected at least one"
        )
    all_triples = np.frombuffer(ids, np.int64).reshape(-1, 3)
    if missing := sum(entity not in names for entity in entities):
        log.warning("%s: entities of edges that are not nodes, and have no name: %d", path, missing)
    triples = np.unique(all_triples, axis=0)
    if len(triples) < len(all_triples):
        log.info("%s: %d edges contain %d distinct triples", path, len(all_triples), len(triples))
    counts = seen["edge"], seen["denied"], seen["deprecated"]
    return KgxGraph(
        list(entities), list(relations), triples, names, kinds, synonyms, *counts, ignored
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
