"""Reads RDF, Parquet, JSON, JSON Lines and OGB's arrays as columns of text."""

import json
import re
import warnings
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyoxigraph

from clew.errors import DataError, quoted, refusing
from clew.input_files import (
    FREE_BYTES,
    BlockStream,
    check_is_file,
    check_ratio,
    line_blocks,
    read_bytes,
)
from clew.link_prediction.column_names import FLAGS, QUALIFIERS
from clew.link_prediction.tables import MAX_COLUMNS, Texts, as_texts, single

LIST_SEPARATOR = "|"
TEXTS_OF_JSON = {"subject", "predicate", "object", "id", "name"}
MAX_JSON_BYTES = 2**28
NOT_READ = {
    ".rdf": "RDF/XML", ".owl": "RDF/XML", ".xml": "XML", ".jsonld": "JSON-LD", ".n3": "Notation3",
}  # fmt: skip
"""Formats that are refused by name; entities of XML can fill the memory."""
RDF = {
    ".nt": pyoxigraph.RdfFormat.N_TRIPLES,
    ".nq": pyoxigraph.RdfFormat.N_QUADS,
    ".ttl": pyoxigraph.RdfFormat.TURTLE,
    ".trig": pyoxigraph.RdfFormat.TRIG,
}
RDF_NAMES = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name",
    "https://schema.org/name",
    "http://xmlns.com/foaf/0.1/name",
)
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
OWL = "http://www.w3.org/2002/07/owl#"
DENIAL = f"{OWL}NegativePropertyAssertion"
DENIED_PARTS = (f"{OWL}sourceIndividual", f"{OWL}assertionProperty", f"{OWL}targetIndividual")
MAX_NAMES_RATIO = 20


def read_aliases(path: Path) -> dict[str, Texts]:
    """Read Wikidata5m's aliases: an identifier and its names; the first one is the label."""
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    with refusing(f"{path}: not UTF-8", UnicodeDecodeError):
        rows = [line.decode().split("\t", 2) for line in lines]
    return {
        "id": as_texts([row[0] for row in rows]),
        "name": as_texts(["".join(row[1:2]) for row in rows]),
        "synonyms": as_texts(["".join(row[2:]).replace("\t", LIST_SEPARATOR) for row in rows]),
    }


def read_rdf(
    path: Path, form: pyoxigraph.RdfFormat
) -> tuple[dict[str, Texts], dict[str, Texts], dict[str, str]]:
    """Read RDF: triples of resources are facts, labels are names, types are kinds too."""
    names: dict[str, int] = {}
    facts = array("i")
    nodes: dict[str, dict[str, tuple[int, str]]] = {}
    others: Counter[str] = Counter()
    num_bytes = num_characters = 0

    def counted() -> Iterator[bytes]:
        nonlocal num_bytes
        for block in line_blocks(path):
            num_bytes += len(block)
            yield block

    with refusing(f"{path}: not {form.name}", SyntaxError, ValueError, OSError):
        for quad in pyoxigraph.parse(input=cast("IO[bytes]", BlockStream(counted())), format=form):
            predicate, value = quad.predicate.value, quad.object
            if isinstance(quad.subject, pyoxigraph.Triple) or isinstance(value, pyoxigraph.Triple):
                others["facts about facts"] += 1
                continue
            subject = _resource(quad.subject)
            if isinstance(value, pyoxigraph.Literal):
                if predicate in RDF_NAMES:
                    rank = RDF_NAMES.index(predicate) + 9 * ((value.language or "en")[:2] != "en")
                    node = nodes.setdefault(subject, {})
                    node["name"] = min(node.get("name", (99, "")), (rank, value.value))
                else:
                    others[predicate] += 1
                continue
            if predicate == TYPE:
                kind = 0, re.split(r"[#/]", _resource(value))[-1]
                nodes.setdefault(subject, {}).setdefault("kind", kind)
            for text in (subject, predicate, _resource(value)):
                facts.append(names.setdefault(text, len(names)))
                if facts[-1] == len(names) - 1:  # a prefix can be long, and used often
                    num_characters += len(text)
                    if num_characters > max(FREE_BYTES, MAX_NAMES_RATIO * num_bytes):
                        raise DataError(
                            f"{path}: its names take more than {MAX_NAMES_RATIO} times the size of "
                            "the file; expected shorter prefixes"
                        )
    said = {
        role: as_texts([node.get(role, (0, ""))[1] for node in nodes.values()])
        for role in ("name", "kind")
    }
    shown = [f"{quoted(name)[1:-1]} ({n:,})" for name, n in others.most_common(5)]
    notes = {"literals": f"not used: {', '.join(shown)}"} if others else {}
    return _columns(names, facts), {"id": as_texts(list(nodes)), **said}, notes


def _columns(names: dict[str, int], facts: "array[int]") -> dict[str, Texts]:
    """Return facts by role; OWL's negative assertions become the facts that they deny."""
    codes = np.frombuffer(facts, np.int32).reshape(-1, 3)
    values = pa.array(list(names), pa.string())
    is_denial = (codes[:, 1] == names.get(TYPE, -1)) & (codes[:, 2] == names.get(DENIAL, -1))
    is_about = np.isin(codes[:, 0], codes[is_denial, 0])
    assertions: dict[int, dict[int, int]] = {}
    for assertion, part, value in codes[is_about].tolist():
        assertions.setdefault(assertion, {})[part] = value
    parts = [names.get(part, -1) for part in DENIED_PARTS]
    denied = [[said[p] for p in parts] for said in assertions.values() if {*parts} <= said.keys()]
    codes = np.concatenate([codes[~is_about], np.array(denied, np.int32).reshape(-1, 3)])
    columns = {
        role: Texts.from_arrays(pa.array(np.ascontiguousarray(codes[:, i])), values)
        for i, role in enumerate(("head", "relation", "tail"))
    }
    if denied:
        flags = pa.array(np.arange(len(codes)) >= len(codes) - len(denied)).cast(pa.int32())
        columns["negated"] = Texts.from_arrays(flags, pa.array(["false", "true"]))
    return columns


def _resource(term: Any) -> str:
    return str(term) if isinstance(term, pyoxigraph.BlankNode) else str(term.value)


def read_parquet(path: Path) -> tuple[list[str], list[Texts]]:
    what = f"{path}: not Parquet that can be read"
    with refusing(what, OSError, UnicodeDecodeError, pa.ArrowException):
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
        check_ratio(path, path.stat().st_size, max(size, rows * 4 * len(names)))
        table = pq.read_table(path, read_dictionary=names)
        return names, [_as_text(name, table.column(index)) for index, name in enumerate(names)]


def _as_text(name: str, column: pa.ChunkedArray) -> Texts:
    try:
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), LIST_SEPARATOR)
        is_text = pa.types.is_dictionary(column.type) and column.type.value_type == pa.string()
        if not is_text or column.null_count:
            column = column.cast(pa.string()).fill_null("").dictionary_encode()
    except pa.ArrowException:  # nested or binary values: they are counted, and refused as names
        if name in TEXTS_OF_JSON:
            raise
        column = pc.if_else(column.is_valid(), "\0", "").dictionary_encode()
    return single(column)


def read_json(path: Path) -> list[tuple[list[str], list[Texts]]]:
    """Read a whole JSON file as tables: an array of objects, or KGX's, TRAPI's or Hetionet's."""
    text = read_bytes(path, MAX_JSON_BYTES, "JSON Lines (.jsonl) or tables")
    with refusing(f"{path}: not JSON", ValueError, RecursionError):
        content = json.loads(text)
    tables = [content]
    if isinstance(content, dict):
        for key in ("message", "knowledge_graph"):
            content = held if isinstance(held := content.get(key), dict) else content
        tables = [_listed_by_id(content.get(key)) for key in ("nodes", "edges")]
    if not all(isinstance(t, list) and all(isinstance(r, dict) for r in t) for t in tables):
        raise DataError(
            f'{path}: this JSON is not read; expected KGX\'s {{"nodes": [...], "edges": [...]}}, '
            "Hetionet's, an array of objects, or JSON Lines (.jsonl)"
        )
    if not any(tables):
        raise DataError(f"{path}: no record; expected nodes and edges")
    if isinstance(content, dict) and "metaedge_tuples" in content:
        tables = _of_hetionet(path, *tables)
    return [
        as_table((f"{path}, object {i}", record) for i, record in enumerate(table, 1))
        for table in tables
        if table
    ]


def _listed_by_id(table: Any) -> Any:
    """Return TRAPI's records, which are under their ids, as a list; another table as it is."""
    if not isinstance(table, dict):
        return table
    return [{**row, "id": key} if isinstance(row, dict) else row for key, row in table.items()]


def _of_hetionet(path: Path, nodes: Any, edges: Any) -> list[list[dict[str, Any]]]:
    """Return the records of Hetionet's JSON under the names of its tables."""
    with refusing(f"{path}: not Hetionet's JSON", KeyError, TypeError, ValueError, IndexError):
        named = [{**n, "id": f"{n['kind']}::{n['identifier']}", "data": None} for n in nodes]
        ends = [[edge[end] for end in ("source_id", "target_id")] for edge in edges]
        return [
            [{"id": n["id"], "name": n.get("name"), "kind": n["kind"]} for n in named],
            [
                {
                    "source": "::".join(map(str, source)),
                    "metaedge": f"{source[0]} {edge['kind']} {target[0]}",
                    "target": "::".join(map(str, target)),
                }
                for edge, (source, target) in zip(edges, ends, strict=True)
            ],
        ]


def json_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield lines of JSON with their places; blank ones may only be at the end."""
    blank, lines = 0, (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            blank = blank or number
        elif blank:
            raise DataError(f"{path}, line {blank}: a blank line; expected a record of JSON")
        else:
            yield f"{path}, line {number}", line


def as_table(
    records: Iterable[tuple[str, bytes | dict[str, Any]]],
) -> tuple[list[str], list[Texts]]:
    """Return records or their JSON, with their places, as a table; lists are joined by `|`."""
    codes: dict[str, dict[str, int]] = {}
    columns: dict[str, array[int]] = {}
    number = 0
    for place, record in records:
        for key, text in _record(place, record).items():
            known, column = codes.setdefault(key, {"": 0}), columns.setdefault(key, array("i"))
            column.extend([0] * (number - len(column)))
            column.append(known.setdefault(text, len(known)))
        if len(columns) > MAX_COLUMNS:
            raise DataError(f"{place}: more than {MAX_COLUMNS:,} keys")
        number += 1
    for column in columns.values():
        column.extend([0] * (number - len(column)))
    return list(columns), [
        Texts.from_arrays(pa.array(np.frombuffer(column, np.int32)), pa.array(list(codes[key])))
        for key, column in columns.items()
    ]


def _record(place: str, given: bytes | dict[str, Any]) -> dict[str, str]:
    with refusing(
        f"{place}: not a record of JSON", KeyError, TypeError, ValueError, RecursionError
    ):
        record = json.loads(given) if isinstance(given, bytes) else given
        if not isinstance(record, dict):
            raise ValueError("not an object")
        of_neo4j = record.keys() & {"labels", "properties", "start"}
        if of_neo4j and record.get("type") in ("node", "relationship"):
            # Neo4j's JSON export (APOC), under the names of its CSV export.
            ends = {f"_{end}": record[end]["id"] for end in ("start", "end") if end in record}
            own = {"_type": record.get("label")} if ends else {"_id": record.get("id")}
            own["_labels"] = record.get("labels")
            record = {**record.get("properties", {}), **ends, **own}
        for entry in _listed(record.get(QUALIFIERS)):
            if isinstance(entry, dict) and "qualifier_type_id" in entry:
                key = str(entry["qualifier_type_id"]).removeprefix("biolink:")
                record |= {key: entry.get("qualifier_value"), QUALIFIERS: None}
        for entry in _listed(record.get("attributes")):  # of TRAPI
            said = entry.get("attribute_type_id") if isinstance(entry, dict) else None
            if (key := str(said).removeprefix("biolink:")) in FLAGS:
                record = {**record, key: entry.get("value")}
        for key in record.keys() & {*TEXTS_OF_JSON, *FLAGS}:
            if isinstance(record[key], list | dict if key in FLAGS else list | dict | bool):
                raise ValueError(f"{key} is not text")
        texts = {
            key: LIST_SEPARATOR.join(str(part) for part in _listed(value) if part is not None)
            for key, value in record.items()
        }
        "".join(texts.values()).encode()  # fails for a lone surrogate
    return texts


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def npz_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return those of some arrays that an `.npz` file has; pickled objects are refused."""
    check_is_file(path)
    # Malformed zip files and NumPy headers raise almost any error.
    with refusing(f"{path}: not an .npz file of plain arrays", Exception):
        _check_parts(path)  # NumPy would suggest to load another file as a pickle
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in names if name in content}


def _check_parts(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        check_ratio(path, path.stat().st_size, sum(p.file_size for p in archive.infolist()))


def read_torch(path: Path, stand_ins: Mapping[str, type]) -> Any:
    """Return the tensors and plain values that `torch.save` wrote; nothing in the file is run.

    `stand_ins` are other types that the file may name, and what stands for each of them here.

    Raises:
        DataError: The file unpacks to a huge one, or a tensor has more numbers than the file holds
            for it. For a file that it does not read, torch raises many types of error.
    """
    import torch

    check_is_file(path)
    if zipfile.is_zipfile(path):
        _check_parts(path)
    with (
        warnings.catch_warnings(),
        torch.serialization.safe_globals([(kind, name) for name, kind in stand_ins.items()]),
    ):
        warnings.simplefilter("ignore")
        content = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    waiting, seen, num_characters = [content], set[int](), 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            held = 0 if part.is_meta else part.untyped_storage().nbytes()
            if part.numel() * part.element_size() > held:
                raise DataError(f"{path}: a tensor of shape {tuple(part.shape)} is not in the file")
        elif isinstance(part, str):  # one text can be in a list many times
            num_characters += len(part)
        elif isinstance(part, dict | list | tuple) and id(part) not in seen:
            seen.add(id(part))
            waiting += part.values() if isinstance(part, dict) else part
    check_ratio(path, path.stat().st_size, num_characters)
    return content


class _Given:
    """Stands in for NumPy's types in a file of torch: keeps what they would be made of."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.state = state

    def values(self) -> np.ndarray:
        """Return the whole numbers of an array of one dimension."""
        _, (_,), kind, _, content = self.state
        (name, *_), (_, order, *_) = kind.given, kind.state
        if not re.fullmatch("[iu][1248]", name) or order not in ("<", ">", "|"):
            raise ValueError("not whole numbers")
        return np.frombuffer(content, order + name)


NUMPY_TYPES = (
    "numpy.ndarray", "numpy.dtype",
    "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
)  # fmt: skip


def _torch_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return those of some arrays that a file of torch holds; nothing in it is run."""
    try:
        content = read_torch(path, dict.fromkeys(NUMPY_TYPES, _Given))
        found = [(name, content[name]) for name in names if name in content]
        return {n: v.values() if isinstance(v, _Given) else np.asarray(v) for n, v in found}
    except DataError:
        raise
    except Exception:  # torch raises many types of error for a file that it does not read
        raise DataError(
            f"{path}: not one of OGB's splits, or it holds objects whose reading could run code; "
            "expected a dictionary of arrays head, relation and tail"
        ) from None


def read_arrays(path: Path) -> dict[str, Texts]:
    """Read OGB's arrays: head, relation and tail, with head_type and tail_type if there are any."""
    read = npz_arrays if path.suffix.lower() == ".npz" else _torch_arrays
    found = read(path, ("head", "relation", "tail", "head_type", "tail_type"))
    are_names = all(values.dtype.kind in "iuUS" for values in found.values())
    sizes = {values.size for values in found.values()}
    if not {"head", "relation", "tail"} <= found.keys() or len(sizes) > 1 or not are_names:
        raise DataError(
            f"{path}: expected arrays head, relation and tail of the same length, of whole numbers "
            "or text"
        )
    arrays = {n: pa.array(values.reshape(-1)).cast(pa.string()) for n, values in found.items()}
    for side in ("head", "tail"):
        if (kind := arrays.pop(f"{side}_type", None)) is not None:
            arrays[side] = pc.binary_join_element_wise(kind, arrays[side], ":")
            arrays[f"{side}_kind"] = kind
    return {name: array.dictionary_encode() for name, array in arrays.items()}
