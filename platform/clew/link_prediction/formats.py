"""Reads the formats in which graphs are published, as tables of text with named columns.

The name of a file and its first lines say what it is. Columns are understood by their names (KGX,
PrimeKG, Hetionet, Neo4j, JSON Lines and any table with usual names), or by their number where there
are no names (triples, OpenBioLink, dictionaries, OpenKE). RDF is read by Oxigraph. A value is never
anything but its text: `NA`, `1e5` and `01` stay what they are.
"""

import csv
import json
import re
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pyoxigraph

from clew.errors import DataError, described, printable, quoted
from clew.input_files import BlockStream, check_ratio, line_blocks, unpacked_name

Holds = Literal["facts", "nodes", "relations", "entity ids", "relation ids"]
SAMPLE_LINES, SAMPLE_BYTES = 200, 2**18
NUMBER = re.compile(r"missing|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DATE = re.compile(r"\d{4}-\d\d(-\d\d.*)?")
MAX_COLUMNS = 1_000
TEXT = pa.dictionary(pa.int32(), pa.string())
Texts: TypeAlias = pa.DictionaryArray
LIST_SEPARATOR = "|"
QUALIFIERS, QUALIFIER_ENDS = "qualifiers", ("_qualifier", "qualified_predicate")
MEANINGS = ("knowledge_level", "agent_type", "logical_interpretation", "clinical_approval_status")
"""Columns of KGX, apart from qualifiers, that change what an edge says."""
FLAGS = ("negated", "deprecated")

ENDS = [
    ("subject", "object"), ("head", "tail"), ("h", "t"), ("x", "y"), ("start", "end"),
    ("source", "target"), ("src", "dst"), ("from", "to"), ("node1", "node2"), ("node_1", "node_2"),
    ("entity1", "entity2"), ("entity_1", "entity_2"), ("e1", "e2"), ("id1", "id2"), ("s", "o"),
    ("sub", "obj"), ("subj", "obj"), ("head_entity", "tail_entity"),
]  # fmt: skip
END_FORMS = ("_id", "_curie", "id", "", "_index")
OF_AN_END = {"name": ("name", "label"), "kind": ("type", "kind", "category"), "source": ("source",)}
TEXTS_OF_JSON = {"subject", "predicate", "object", "id", "name"}
CHOICES = (
    "head", "relation", "tail", "weight", "time", "split", "negated", "head_name", "tail_name",
    "head_kind", "tail_kind",
)  # fmt: skip
OTHER_ROLES = {
    "relation": [
        "predicate", "predicate_id", "relation", "relation_id", "metaedge", "rel", "relationship",
        "edge", "edge_type", "relation_type", "relationship_type", "r", "p", "interaction", "type",
        "label", "property", "edge_label",
    ],
    "weight": ["weight", "score", "confidence", "qscore", "probability", "combined_score"],
    "time": ["time", "timestamp", "date", "year"],
    "split": ["split", "fold"],
    "negated": ["negated", "negative", "is_negated"],
    "deprecated": ["deprecated"],
    "id": [
        "id", "node_id", "identifier", "curie", "entity_id", "entity", "node", "node_index",
        "ent_idx", "node_idx", "rel_idx", "reltype",
    ],
    "name": [
        "name", "node_name", "label", "title", "preferred_name", "entity_name", "ent_name",
        "rel_name", "rel_id",
    ],
    "kind": ["kind", "category", "type", "node_type", "entity_type", "labels", "class"],
    "synonyms": ["synonym", "synonyms", "aliases", "alias"],
    "source": ["node_source"],
}  # fmt: skip
FACT_ROLES = ("relation", "weight", "time", "split", *FLAGS)
NODE_ROLES = ("id", "name", "kind", "synonyms", "source")
NEO4J = re.compile(r"(?s)(.*):(START_ID|END_ID|TYPE|ID|LABEL|IGNORE)(?:\((.*)\))?(?:\{.*\})?")
NEO4J_ROLES = {"START_ID": "head", "END_ID": "tail", "TYPE": "relation", "LABEL": "kind"}
RDF_NAMES = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name",
    "https://schema.org/name",
    "http://xmlns.com/foaf/0.1/name",
)
RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
RDF = {
    ".nt": pyoxigraph.RdfFormat.N_TRIPLES,
    ".nq": pyoxigraph.RdfFormat.N_QUADS,
    ".ttl": pyoxigraph.RdfFormat.TURTLE,
    ".trig": pyoxigraph.RdfFormat.TRIG,
}


@dataclass
class Part:
    """What one file holds."""

    path: Path
    taken_for: str
    holds: Holds
    columns: dict[str, Texts]
    """Columns by role, such as `head` or `name`."""
    first_line: int = 1
    """Line of the first row."""
    are_ids: bool = False
    """Whether facts hold the ids of dictionaries."""
    groups: dict[str, str] = field(default_factory=dict)
    """Role to the name space of its identifiers (Neo4j)."""
    notes: dict[str, str] = field(default_factory=dict)
    """What was left out of the file, or understood in a way that a reader should know."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Examples for the notes."""

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Form:
    """How a text is a table."""

    delimiter: str
    """A space stands for runs of spaces and tabs."""
    num_columns: int
    skip: int
    """Number of lines before the first row: comments, a count, the header."""
    header: tuple[str, ...]
    """Names of the columns; empty if the text has none."""
    count: int | None
    """What the first line says about the number of rows, as in OpenKE."""
    has_rows: bool
    has_comments: bool

    @property
    def is_quoted(self) -> bool:
        return self.delimiter in ",;|"

    def __str__(self) -> str:
        names = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "space"}
        return f"{names[self.delimiter]}-separated"


def read_file(
    path: Path, columns: str = "", header: bool = False, names: Sequence[str] = ()
) -> list[Part]:
    """Read a file in any of the formats; one file can hold both facts and nodes.

    Args:
        path: The file, or `archive.zip/member`.
        columns: Which columns hold what: `head=x_id,relation=relation,tail=y_id` with names or
            numbers from 1, or the roles in order: `head,tail,relation`.
        header: Whether the first line names the columns, whatever its words are.
        names: Names of the columns, from another file.

    Raises:
        DataError: If the file is malformed or its format is unknown.
    """
    suffix = Path(unpacked_name(path)).suffix.lower()
    if suffix in RDF:
        return _read_rdf(path, RDF[suffix])
    if suffix == ".npz":
        return [_read_arrays(path)]
    if suffix in (".parquet", ".pq"):
        return _by_name(path, *_read_parquet(path), columns, ("Parquet", 1))
    if suffix in (".jsonl", ".ndjson"):
        return _by_name(path, *_read_json_lines(path), columns, ("JSON Lines", 1))
    form = sniff(path, header=header or "=" in columns)
    if form.header and not (columns or names or _roles(form.header)):  # --header: as without one
        columns = "head,relation,tail"
    table, has_comments = _read_text(path, form)
    if names or form.header:
        first = form.skip + 1
        parts = _by_name(path, list(names or form.header), table, columns, (str(form), first))
    else:
        parts = [_by_number(path, form, table, columns)]
        parts[0].first_line = form.skip + 1
        if form.count not in (None, len(table[0])):
            raise DataError(
                f"{path}, line 1: {form.count:,} rows are promised, but there are "
                f"{len(table[0]):,}; is the file complete?"
            )
    if form.has_comments or has_comments:
        parts[0].notes["comments"] = "lines that begin with # are left out"
    return parts


def sniff(path: Path, *, header: bool = False) -> Form:
    """Return how a text is a table, from its first lines."""
    block = next(line_blocks(path))[:SAMPLE_BYTES]
    if b"\0" in block[:1000] or block[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: not UTF-8 text; save it as UTF-8, or as Parquet")
    text = block.decode("utf-8", "replace")
    lines = text.split("\n")[:-1][:SAMPLE_LINES] or [text]
    comments = next((i for i, s in enumerate(lines) if not s.startswith(("#", "%"))), len(lines))
    rest = [line for line in lines[comments:] if line.strip()]
    has_count = len(rest) > 1 and re.fullmatch(r"\s*[0-9]{1,10}\s*", rest[0]) is not None
    skip = comments + has_count
    if not rest:
        raise DataError(f"{path}: only comments; expected rows of a table")
    delimiter, rows = _delimiter(path, rest[has_count:])
    names: Sequence[str] = ()
    last = _fields(lines[comments - 1].lstrip("#% "), delimiter) if comments else []
    is_named = len(last) == len(rows[0]) and _roles(last)
    if is_named:
        names = last
    elif len(last) == len(rows[0]):  # a first name that begins with #
        skip, comments = skip - 1, comments - 1
    elif not has_count and (header or _roles(rows[0])):
        names, rows, skip = rows[0], rows[1:], skip + 1
    if len(names or rows[0]) > MAX_COLUMNS:
        raise DataError(f"{path}: more than {MAX_COLUMNS:,} columns; expected a table of facts")
    return Form(
        delimiter, len(names or rows[0]), skip, tuple(names),
        int(rest[0]) if has_count else None, bool(rows),
        comments > bool(is_named),
    )  # fmt: skip


def _fields(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    if delimiter == "\t":
        return [part.strip('"') for part in line.split("\t")]
    return next(csv.reader([line], delimiter=delimiter), [])


def _delimiter(path: Path, lines: list[str]) -> tuple[str, list[list[str]]]:
    """Return the separator that gives most lines the same number of columns, and the rows."""
    best: tuple[float, str, list[list[str]]] = (0.0, "", [])
    for delimiter in "\t,;| ":
        try:
            rows = [_fields(line, delimiter) for line in lines]
            if delimiter in ",;|":
                rows = list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter))
        except csv.Error:
            continue
        (width, number), *_ = Counter(map(len, rows)).most_common(1)
        share = number / len(rows) - 0.05 * (delimiter == " ")
        if width > 1 and share > best[0]:
            best = share, delimiter, rows
    if not best[1]:
        raise DataError(
            f"{path}: {quoted(lines[0])} is one column; expected columns between tabs, commas, "
            "semicolons, bars or spaces, or JSON Lines (.jsonl), Parquet (.parquet), RDF (.nt, "
            ".ttl), or OGB's arrays (.npz)"
        )
    return best[1], best[2]


def _utf8(path: Path) -> Iterator[bytes]:
    """Yield a file's blocks; Arrow cannot show a row that is no UTF-8."""
    for block in line_blocks(path):
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason})") from None
        yield block


def _read_text(path: Path, form: Form) -> tuple[list[Texts], bool]:
    """Read a table; lines that begin with # and have other columns are comments."""
    faults: list[pa_csv.InvalidRow] = []
    comments: list[int] = []

    def other(row: pa_csv.InvalidRow) -> str:
        is_comment = row.text.startswith(("#", "%"))
        (comments.append(1) if is_comment else faults.append(row))
        return "skip" if is_comment else "error"

    names = [str(number) for number in range(form.num_columns)]
    blocks = _utf8(path)
    if form.delimiter == " ":
        blocks = (
            re.sub(rb"[ \t]+", b"\t", re.sub(rb"(?m)^[ \t]+|[ \t]+$", b"", b)) for b in blocks
        )
    try:
        reader = pa_csv.open_csv(
            pa.PythonFile(BlockStream(blocks), "r"),
            pa_csv.ReadOptions(column_names=names, skip_rows=form.skip, block_size=2**25),
            pa_csv.ParseOptions(
                delimiter="\t" if form.delimiter == " " else form.delimiter,
                quote_char='"' if form.is_quoted else False,
                newlines_in_values=form.is_quoted,
                invalid_row_handler=other,
            ),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, TEXT), null_values=[], strings_can_be_null=False
            ),
        )
        return [_single(column) for column in reader.read_all().columns], bool(comments)
    except pa.ArrowException as error:
        if faults:
            row = faults[0]
            line = f", line {row.number}" if row.number else ""
            raise DataError(
                f"{path}{line}: {row.actual_columns} columns in {quoted(row.text)}; expected "
                f"{form.num_columns}, as in its first row"
            ) from None
        if "Empty CSV" in str(error):
            return [_texts([]) for _ in names], bool(comments)
        raise DataError(f"{path}: not a table in UTF-8 ({described(error)})") from None


def _texts(values: Sequence[str]) -> Texts:
    return pa.array(values, pa.string()).dictionary_encode()


def _single(column: pa.ChunkedArray) -> Texts:
    """Return a column of dictionaries as one array with one dictionary."""
    chunks = column.unify_dictionaries().chunks
    if not chunks:
        return _texts([])
    codes = pa.concat_arrays([chunk.indices for chunk in chunks])
    return Texts.from_arrays(codes, chunks[0].dictionary)


def _by_name(
    path: Path, names: Sequence[str], table: Sequence[Texts], columns: str, place: tuple[str, int]
) -> list[Part]:
    """Name the columns of a table with a header by what they hold."""
    what, line = place
    roles = _roles(names, are_names=True)
    if columns:
        roles = _chosen(path, columns, names)
    neo4j = {role: group for role, (_, group) in _neo4j(names).items()}
    known = _known_format(names, bool(neo4j))
    parts = []
    if "head" in roles:
        taken = {k: table[i] for k, i in roles.items() if k not in NODE_ROLES}
        part = Part(path, f"{known or what}, edges", "facts", taken, line, groups=neo4j)
        _finish_facts(part, names, table, roles)
        parts.append(part)
    if "id" in roles and (known.startswith("Neo4j") or not parts):
        taken = {k: table[i] for k, i in roles.items() if k in NODE_ROLES}
        dictionary = _dictionary(path, taken) if set(taken) == {"id", "name"} else None
        holds: Holds = "relations" if re.search("rel", path.name.lower()) and not neo4j else "nodes"
        what = f"{known or what}, {'names of relations' if holds == 'relations' else 'nodes'}"
        parts.append(dictionary or Part(path, what, holds, taken, line, groups=neo4j))
    for part, end in zip(parts, ("head", "id"), strict=False) if len(parts) > 1 else ():
        column = part.columns[end]  # a table of both has rows of either
        is_kept = pc.not_equal(column.dictionary, "").take(column.indices)
        part.columns = {role: texts.filter(is_kept) for role, texts in part.columns.items()}
    if not parts:
        raise DataError(
            f"{path}, line 1: no columns of facts or nodes among {quoted(', '.join(names))}; name "
            "them: --columns head=NAME,relation=NAME,tail=NAME"
        )
    return parts


def _finish_facts(
    part: Part, names: Sequence[str], table: Sequence[Texts], roles: Mapping[str, int]
) -> None:
    """Take along qualifiers, and count what the other columns say."""
    if "relation" not in roles:
        stem = unpacked_name(part.path).partition(".")[0]
        part.notes["relation"] = f"no column names it; it is {stem!r}, the name of the file"
        zeros = pa.array(np.zeros(part.num_rows, np.int32))
        part.columns["relation"] = Texts.from_arrays(zeros, pa.array([stem]))
    others = []
    for index, name in enumerate(names):
        if name in MEANINGS or name == QUALIFIERS or name.endswith(QUALIFIER_ENDS):
            part.columns.setdefault(name, table[index])
        elif index not in roles.values() and name != "id":
            filled = pc.not_equal(table[index].dictionary, "").to_numpy(zero_copy_only=False)
            if number := int(filled[table[index].indices.to_numpy()].sum()):
                others.append(f"{printable(name)} ({number:,})")
    if others:
        part.notes["other columns"] = f"not used (edges with a value): {', '.join(others)}"


def _by_number(path: Path, form: Form, table: Sequence[Texts], columns: str) -> Part:
    """Name the columns of a table without a header by what they hold."""
    width, name = form.num_columns, unpacked_name(path)

    def part(what: str, holds: Holds, roles: Mapping[str, int], **more: Any) -> Part:
        return Part(path, what, holds, {k: table[i] for k, i in roles.items()}, **more)

    if columns:
        return part(f"{form} triples", "facts", _chosen(path, columns, [""] * width))
    if width == 2:
        ids = _dictionary(
            path, {"id": table[0], "name": table[1]}, has_count=form.count is not None
        )
        holds: Holds = "relations" if "rel" in name.lower() else "nodes"
        return ids or part(f"{form} names of {holds}", holds, {"id": 0, "name": 1})
    if name.startswith("entity_names"):
        roles = dict(zip(("id", "name", "kind", "synonyms"), range(width), strict=False))
        return part(f"{form} names of nodes", "nodes", roles)
    if form.count is not None:
        said = "OpenKE: a count, then head tail relation"
        return part(said, "facts", {"head": 0, "tail": 1, "relation": 2}, are_ids=True)
    roles, others = {"head": 0, "relation": 1, "tail": 2}, []
    for index in range(3, width):
        distinct = set(table[index].dictionary.slice(0, 1000).to_pylist())
        if distinct in ({"0", "1"}, {"-1", "1"}):
            roles["stated"] = index
        elif "weight" not in roles and all(map(NUMBER.fullmatch, distinct)):
            roles["weight"] = index
        elif "time" not in roles and all(map(DATE.fullmatch, distinct)):
            roles["time"] = index
        else:
            others.append(str(index + 1))
    what = "OpenBioLink's triples" if width > 4 and "weight" in roles else f"{form} triples"
    found = part(f"{what}, {width} columns", "facts", roles)
    for role in {"weight", "time"} & roles.keys():
        found.notes[role] = f"column {roles[role] + 1} looks like it; not used"
    if others:
        found.notes["other columns"] = f"not used: column {', '.join(others)}"
    if not form.is_quoted:
        _unquote(found)
    return found


def _unquote(part: Part) -> None:
    """Remove quotes around whole values of a table in which they do not protect separators."""
    for role in ("head", "relation", "tail"):
        texts = part.columns[role].dictionary
        inner = pc.replace_substring(pc.utf8_slice_codeunits(texts, 1, -1), '""', "\0")
        is_whole = pc.match_substring_regex(texts, '(?s)^"[^\0]+"$')
        is_whole = pc.and_(is_whole, pc.invert(pc.match_substring(inner, '"')))
        if pc.any(is_whole).as_py():
            part.examples.setdefault("quotes", []).extend(texts.filter(is_whole).to_pylist())
            part.notes["quotes"] = "around values, as R and spreadsheets write them, are removed"
            texts = pc.if_else(is_whole, pc.replace_substring(inner, "\0", '"'), texts)
            part.columns[role] = Texts.from_arrays(part.columns[role].indices, texts)


def _dictionary(path: Path, pair: Mapping[str, Texts], *, has_count: bool = False) -> Part | None:
    """Return a dictionary of ids if one of two columns holds 0, 1, 2 and so on; else None."""
    first, second = (pair[role].cast(pa.string()) for role in ("id", "name"))
    for ids, names in ((second, first), (first, second)):
        if len(ids) and pc.all(pc.match_substring_regex(ids, r"^(0|[1-9][0-9]{0,9})$")).as_py():
            numbers = np.asarray(ids.cast(pa.int64()))
            if np.array_equal(np.sort(numbers), np.arange(len(numbers))):
                kind: Holds = "relation ids" if "rel" in path.name.lower() else "entity ids"
                columns = {"name": names.take(pa.array(np.argsort(numbers))).dictionary_encode()}
                return Part(
                    path, f"{'OpenKE' * has_count} dictionary: {kind}".strip(), kind, columns
                )
    return None


def _known_format(names: Sequence[str], is_neo4j: bool) -> str:
    """Return the format that a header belongs to; empty for any other table."""
    if is_neo4j or {"_start", "_end"} <= set(names):
        return "Neo4j's CSV"
    known = (
        ({"x_index", "display_relation"}, "PrimeKG"),
        ({"metaedge"}, "Hetionet"),
        ({"id", "name", "kind"}, "Hetionet"),
        ({"subject", "predicate", "object"}, "KGX"),
        ({"id", "category"}, "KGX"),
    )
    return next((name for needed, name in known if needed <= set(names)), "")


def _roles(names: Sequence[str], *, are_names: bool = False) -> dict[str, int]:
    """Return the columns by role that their names say; empty if they do not name columns."""
    neo4j = _neo4j(names)
    found = {role: index for role, (index, _) in neo4j.items()}
    if neo4j:  # name:string
        names = [re.sub(r"(?<=.):[A-Za-z]+(\[\])?$", "", name) for name in names]
    plain = [re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in names]
    places = {name: index for index, name in reversed(list(enumerate(plain)))}
    for first, second, form in ((a, b, form) for a, b in ENDS for form in END_FORMS):
        if "head" not in found and first + form in places and second + form in places:
            found |= {"head": places[first + form], "tail": places[second + form]}
            for side, end in (("head", first), ("tail", second)):
                for role, words in OF_AN_END.items():
                    index = next((places[n] for w in words if (n := f"{end}_{w}") in places), None)
                    if index is not None:
                        found[f"{side}_{role}"] = index
    for role in (
        *(FACT_ROLES if "head" in found else ()),
        *(NODE_ROLES * ("id" not in found or 1)),
    ):
        if role in NODE_ROLES and "head" in found and "id" not in neo4j and "_id" not in names:
            continue
        for name in OTHER_ROLES[role]:
            if role not in found and name in places and places[name] not in found.values():
                found[role] = places[name]
    is_facts = "head" in found and ("relation" in found or bool(neo4j))
    is_nodes = "id" in found and len(found) > 1
    return found if is_facts or is_nodes or neo4j or are_names else {}


def _neo4j(names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return column and name space of identifiers by role, for a header of Neo4j."""
    matches = [(i, NEO4J.fullmatch(name.strip())) for i, name in enumerate(names)]
    return {
        NEO4J_ROLES.get(match[2], match[2].lower()): (index, match[3] or "")
        for index, match in reversed(matches)
        if match
    }


def _chosen(path: Path, columns: str, names: Sequence[str]) -> dict[str, int]:
    """Return the columns by role that `--columns` says."""
    found: dict[str, int] = {}
    for position, part in enumerate(columns.split(","), 1):
        role, _, name = (word.strip() for word in part.partition("="))
        name = name or str(position)
        if role not in CHOICES:
            raise DataError(f"--columns names {quoted(role)}; expected {', '.join(CHOICES)}")
        if name in names:
            found[role] = list(names).index(name)
        elif name.isdecimal() and 0 < int(name) <= len(names):
            found[role] = int(name) - 1
        else:
            raise DataError(
                f"{path}: has no column {quoted(name)}, which --columns names; it has "
                f"{quoted(', '.join(names)) if any(names) else len(names)}"
            )
    if not {"head", "tail"} <= found.keys():
        raise DataError(f"--columns is {columns}; expected head, tail and usually relation in it")
    return found


def _read_parquet(path: Path) -> tuple[list[str], list[Texts]]:
    try:
        with pq.ParquetFile(path) as file:
            names, rows = file.schema_arrow.names, file.metadata.num_rows
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
        check_ratio(path, path.stat().st_size, max(size, rows * 4 * len(names)))
        table = pq.read_table(path, read_dictionary=names)
        return names, [_as_text(table.column(index)) for index in range(len(names))]
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not Parquet that can be read ({described(error)})") from None


def _as_text(column: pa.ChunkedArray) -> Texts:
    if not pa.types.is_dictionary(column.type):
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), LIST_SEPARATOR)
        column = column.cast(pa.string()).fill_null("").dictionary_encode()
    elif column.null_count or column.type.value_type != pa.string():
        column = column.cast(pa.string()).fill_null("").dictionary_encode()
    return _single(column)


def _read_json_lines(path: Path) -> tuple[list[str], list[Texts]]:
    """Read objects, one on each line, as a table of text; lists are joined by `|`."""
    codes: dict[str, dict[str, int]] = {}
    columns: dict[str, array[int]] = {}
    number = 0
    for block in line_blocks(path):
        for line in block.split(b"\n")[:-1]:
            for key, text in _record(path, number + 1, line).items():
                known, column = codes.setdefault(key, {"": 0}), columns.setdefault(key, array("i"))
                column.extend([0] * (number - len(column)))
                column.append(known.setdefault(text, len(known)))
            if len(columns) > MAX_COLUMNS:
                raise DataError(f"{path}, line {number + 1}: more than {MAX_COLUMNS:,} keys")
            number += 1
    for column in columns.values():
        column.extend([0] * (number - len(column)))
    return list(columns), [
        Texts.from_arrays(pa.array(np.frombuffer(column, np.int32)), pa.array(list(codes[key])))
        for key, column in columns.items()
    ]


def _record(path: Path, number: int, line: bytes) -> dict[str, str]:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        for entry in _listed(record.get(QUALIFIERS)):
            if isinstance(entry, dict) and "qualifier_type_id" in entry:
                key = str(entry["qualifier_type_id"]).removeprefix("biolink:")
                record |= {key: entry.get("qualifier_value"), QUALIFIERS: None}
        for key in record.keys() & {*TEXTS_OF_JSON, *FLAGS}:
            if isinstance(record[key], list | dict if key in FLAGS else list | dict | bool):
                raise ValueError(f"{key} is no text")
        texts = {
            key: LIST_SEPARATOR.join(str(part) for part in _listed(value) if part is not None)
            for key, value in record.items()
        }
        "".join(texts.values()).encode()  # fails for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: not JSON Lines ({described(error)})") from None
    return texts


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read_arrays(path: Path) -> Part:
    """Read OGB's arrays: head, relation and tail, with head_type and tail_type if there are any."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            size = sum(info.file_size for info in file.zip.infolist())
            check_ratio(path, path.stat().st_size, size)
            names = {"head", "relation", "tail", "head_type", "tail_type"} & set(file.files)
            arrays = {name: pa.array(file[name].astype(str).reshape(-1)) for name in names}
    except (OSError, ValueError, MemoryError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not arrays that can be read ({described(error)})") from None
    if not {"head", "relation", "tail"} <= names or len(set(map(len, arrays.values()))) > 1:
        raise DataError(f"{path}: expected arrays head, relation and tail of the same length")
    for side in ("head", "tail"):
        if (kind := arrays.pop(f"{side}_type", None)) is not None:
            arrays[side] = pc.binary_join_element_wise(kind, arrays[side], ":")
            arrays[f"{side}_kind"] = kind
    columns = {name: texts.dictionary_encode() for name, texts in arrays.items()}
    return Part(path, "OGB's arrays", "facts", columns, are_ids=True)


def _read_rdf(path: Path, form: pyoxigraph.RdfFormat) -> list[Part]:
    """Read RDF: triples of resources are facts, labels are names, types are kinds too."""
    names: dict[str, int] = {}
    facts = array("i")
    nodes: dict[str, dict[str, tuple[int, str]]] = {}
    others: Counter[str] = Counter()
    try:
        for quad in pyoxigraph.parse(
            input=cast("IO[bytes]", BlockStream(line_blocks(path))), format=form
        ):
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
            if predicate == RDF_TYPE:
                kind = 0, re.split(r"[#/]", _resource(value))[-1]
                nodes.setdefault(subject, {}).setdefault("kind", kind)
            for text in (subject, predicate, _resource(value)):
                facts.append(names.setdefault(text, len(names)))
    except (SyntaxError, ValueError, OSError) as error:
        raise DataError(f"{path}: not {form.name} ({described(error)})") from None
    codes, values = (
        np.frombuffer(facts, np.int32).reshape(-1, 3),
        pa.array(list(names), pa.string()),
    )
    columns = {
        role: Texts.from_arrays(pa.array(np.ascontiguousarray(codes[:, i])), values)
        for i, role in enumerate(("head", "relation", "tail"))
    }
    parts = [Part(path, form.name, "facts", columns)]
    if others:
        shown = [f"{quoted(name)[1:-1]} ({n:,})" for name, n in others.most_common(5)]
        parts[0].notes["literals"] = f"not used: {', '.join(shown)}"
    if nodes:
        texts = {
            role: _texts([node.get(role, (0, ""))[1] for node in nodes.values()])
            for role in ("name", "kind")
        }
        parts.append(Part(path, "labels", "nodes", {"id": _texts(list(nodes)), **texts}))
    return parts


def _resource(term: Any) -> str:
    return str(term) if isinstance(term, pyoxigraph.BlankNode) else str(term.value)
