"""Reads the formats in which graphs are published, as tables of text with named columns.

The name of a file and its first lines say what it is. Columns are understood by their names, or by
their number where there are no names (triples, OpenBioLink, dictionaries, OpenKE).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, printable, quoted
from clew.input_files import archive_of, unpacked_name
from clew.link_prediction import other_formats
from clew.link_prediction.column_names import (
    MEANINGS,
    NODE_ROLES,
    NOT_OF_FACTS,
    chosen_roles,
    is_qualifier,
    known_format,
    name_spaces,
    roles_of,
)
from clew.link_prediction.denials import flag_of, is_stated, may_be_flag, values_of
from clew.link_prediction.dictionaries import fault_of_ids, repeated_in
from clew.link_prediction.tables import Form, Texts, by_row, filled, read_table, sniff

Holds = Literal["facts", "nodes", "relations", "entity ids", "relation ids"]
NUMBER = re.compile(r"missing|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LEAST_FACTS = 20
"""Number of facts from which a column without repeats is noticed."""
DATE = re.compile(r"\d{4}-\d\d(-\d\d.*)?")
DIRECTIONS = {"Directed", "Undirected"}
"""Values of Gephi's column `Type`, which are no relations."""
ARRAYS, PARQUET = (".npz", ".pt"), (".parquet", ".pq")
WIKIDATA5M = re.compile(r"(?i)wikidata5m_(entity|relation)\.txt")
OF_RELATIONS = re.compile(
    r"(?i)(?:^|[^a-z])(?:rel(?:ation[a-z]*|idx|ids?|names?|types?|s)?|predicates?)(?:[^a-z]|$)"
)
"""Word in the name of a file of relations; not `release`."""
OGB_KIND = re.compile(r"(.+)_entidx2name\.")
"""Name of OGB's file of the names of one kind, whose numbers begin at 0 as those of each kind."""


@dataclass
class Part:
    """What one file holds."""

    path: Path
    taken_for: str
    holds: Holds
    columns: dict[str, Texts]
    """Columns by role, such as `head` or `name`."""
    lines: Sequence[int] | np.ndarray
    """Number of each row's line."""
    are_ids: bool = False
    """Whether facts hold the ids of dictionaries."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Role to the name space of its identifiers (Neo4j)."""
    notes: dict[str, str] = field(default_factory=dict)
    """What was left out of the file, or understood in a way that a reader should know."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Examples for the notes."""

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def keep(self, is_kept: np.ndarray) -> None:
        """Keep some rows, bool `(row,)`."""
        mask = pa.array(is_kept)
        self.columns = {role: column.filter(mask) for role, column in self.columns.items()}
        self.lines = np.asarray(self.lines)[is_kept]

    def refuse(
        self, column: Texts, is_wrong: np.ndarray | pa.Array, what: str, expected: str
    ) -> None:
        """Refuse the first row of a column whose value is wrong, bool `(value,)`."""
        rows = np.flatnonzero(by_row(column, is_wrong))
        if len(rows):
            value = quoted(column[int(rows[0])].as_py())
            raise DataError(f"{self.path}, line {self.lines[rows[0]]}: {what} {value}{expected}")


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
    """
    suffix = Path(unpacked_name(path)).suffix.lower()
    if refused := other_formats.NOT_READ.get(suffix):
        raise DataError(
            f"{path}: {refused} is not read; convert it to N-Triples (.nt), for example "
            "riot --output=nt of Apache Jena"
        )
    if suffix in (*ARRAYS, *PARQUET) and (archive_of(path) or path.suffix.lower() != suffix):
        raise DataError(f"{path}: a packed {suffix} file is not read; unpack it first")
    if form := other_formats.RDF.get(suffix):
        facts, nodes, notes = other_formats.read_rdf(path, form)
        parts = [Part(path, form.name, "facts", facts, range(len(facts["head"])), notes=notes)]
        labels = Part(path, "labels", "nodes", nodes, range(len(nodes["id"])))
        return parts + [labels] * bool(len(nodes["id"]))
    if suffix in ARRAYS:
        arrays = other_formats.read_arrays(path)
        numbers = range(len(arrays["head"]))
        return [Part(path, "OGB's arrays", "facts", arrays, numbers, are_ids=True)]
    if suffix in PARQUET:
        return _by_name(path, *other_formats.read_parquet(path), columns, "Parquet")
    if suffix in (".jsonl", ".ndjson"):
        lines = other_formats.as_table(other_formats.json_lines(path))
        return _by_name(path, *lines, columns, "JSON Lines")
    if suffix == ".json":
        tables = other_formats.read_json(path)
        said = [""] * (len(tables) - 1) + [columns]
        of_each = [_by_name(path, *t, c, "JSON") for t, c in zip(tables, said, strict=True)]
        return [part for parts in of_each for part in parts]
    return _read_text(path, columns, header, names)


def _read_text(path: Path, columns: str, header: bool, names: Sequence[str]) -> list[Part]:
    if of_wikidata := WIKIDATA5M.fullmatch(unpacked_name(path)):
        aliases = other_formats.read_aliases(path)
        holds: Holds = "nodes" if of_wikidata[1].lower() == "entity" else "relations"
        numbers = range(1, len(aliases["id"]) + 1)
        return [Part(path, f"Wikidata5m's names of {holds}", holds, aliases, numbers)]
    chosen = {name.strip() for name in re.findall(r"=\s*([^\d\s,][^,]*)", columns)}

    def are_names(words: Sequence[str]) -> bool:
        return bool(roles_of(words)) or (bool(chosen) and chosen <= set(words))

    form = sniff(path, are_names, header=header or bool(chosen))
    if header and not (columns or names or roles_of(form.header)):  # as without --header
        columns = "head,relation,tail"
    table, lines, has_others = read_table(path, form)
    quotes: list[str] = []
    table = [_unquoted(column, quotes, is_read=form.is_quoted) for column in table]
    is_again = np.zeros(len(lines), bool)
    if form.header:  # tables that were joined with their headers
        same = zip(table, form.header, strict=True)
        is_again = np.logical_and.reduce([by_row(c, pc.equal(c.dictionary, n)) for c, n in same])
        table, lines = [c.filter(pa.array(~is_again)) for c in table], lines[~is_again]
    if names or form.header:
        parts = _by_name(path, list(names or form.header), table, columns, str(form), lines)
    else:
        parts = [_by_number(path, form, table, columns, lines)]
        if form.count not in (None, len(table[0])):
            raise DataError(
                f"{path}, line 1: {form.count:,} rows are promised, but there are "
                f"{len(table[0]):,}; is the file complete?"
            )
    if is_again.any():
        parts[0].notes["headers"] = f"{is_again.sum():,} more lines like the first are left out"
    if quotes:
        parts[0].notes["quotes"] = "around values, as R and spreadsheets write them, are removed"
        parts[0].examples["quotes"] = quotes
    if form.has_comments or has_others:
        parts[0].notes["comments"] = "blank lines, and lines that begin with #, are left out"
    return parts


def _by_name(  # noqa: PLR0917
    path: Path,
    names: Sequence[str],
    table: Sequence[Texts],
    columns: str,
    what: str,
    lines: np.ndarray | None = None,
) -> list[Part]:
    """Name the columns of a table with a header by what they hold."""
    numbers = lines if lines is not None else range(1, (len(table[0]) if table else 0) + 1)
    said = {choice.partition("=")[0].strip() for choice in columns.split(",")}
    roles = chosen_roles(path, columns, names) if columns else roles_of(names, are_names=True)
    relation = roles.get("relation", 0)
    if "relation" in roles.keys() - said and may_be_flag(names[relation], table[relation]):
        name = quoted(names[relation])[1:-1]
        raise DataError(
            f"{path}: {name} holds only true and false, which can be relations, or deny facts; say "
            f"which: --columns relation={name} or --columns stated={name}"
        )
    if "relation" in roles.keys() - said and set() < {*values_of(table[relation])} <= DIRECTIONS:
        is_left = [bool(filled(column).any()) for column in table]
        is_left[relation] = False
        left = [name if is_left[index] else "" for index, name in enumerate(names)]
        roles = chosen_roles(path, columns, left) if columns else roles_of(left, are_names=True)
    neo4j = {role: group for role, (_, group) in name_spaces(names).items()}
    known = known_format(names, bool(neo4j))
    parts = []
    if "head" in roles:
        title = f"{known or what}, edges"
        parts.append(_facts(path, title, names, table, roles, numbers, neo4j))
    if "id" in roles and (known.startswith("Neo4j") or not parts):
        taken = {k: table[i] for k, i in roles.items() if k in NODE_ROLES}
        if kind := OGB_KIND.match(path.name):
            ids, zeros = taken["id"], pa.array(np.zeros(len(numbers), np.int32))
            named = pc.binary_join_element_wise(kind[1], ids.dictionary, ":")
            taken["id"] = Texts.from_arrays(ids.indices, named)
            taken["kind"] = Texts.from_arrays(zeros, pa.array([kind[1]]))
        dictionary = _dictionary(path, taken, numbers) if set(taken) == {"id", "name"} else None
        holds: Holds = "relations" if OF_RELATIONS.search(path.name) and not neo4j else "nodes"
        what = f"{known or what}, {'names of relations' if holds == 'relations' else 'nodes'}"
        parts.append(dictionary or Part(path, what, holds, taken, numbers, groups=neo4j))
    for part, end in zip(parts, ("head", "id"), strict=False) if len(parts) > 1 else ():
        part.keep(filled(part.columns[end]))  # a table of both has rows of either
    if not parts:
        raise DataError(
            f"{path}, line 1: no columns of facts or nodes among {quoted(', '.join(names))}; name "
            "them: --columns head=NAME,relation=NAME,tail=NAME"
        )
    return parts


def _facts(  # noqa: PLR0917
    path: Path,
    what: str,
    names: Sequence[str],
    table: Sequence[Texts],
    roles: Mapping[str, int],
    lines: Sequence[int] | np.ndarray,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> Part:
    """Return the facts of a table, with qualifiers and denials; note what else it says."""
    roles = dict(roles)
    if "split" in roles and all(map(str.isdigit, values_of(table[roles["split"]]))):
        del roles["split"]  # of cross-validation
    columns = {k: table[i] for k, i in roles.items() if k.split()[0] not in NOT_OF_FACTS}
    part = Part(path, what, "facts", columns, lines, groups=groups)
    if "relation" not in columns:  # it has the name of the file
        stem = Path(unpacked_name(path)).stem
        part.notes["relation"] = f"no column names it; it is {stem!r}, the name of the file"
        zeros = pa.array(np.zeros(part.num_rows, np.int32))
        columns["relation"] = Texts.from_arrays(zeros, pa.array([stem]))
    denying, others = list[str](), list[str]()
    for index, name in enumerate(names):
        if index in roles.values():
            continue
        shown = printable(name) or f"column {index + 1}"
        if said := flag_of(path, name, table[index]):
            columns[f"{said[0]} {name} (column {index + 1})".replace("  ", " ")] = said[1]
            denying.append(shown)
        if name in MEANINGS or is_qualifier(name):
            columns.setdefault(name, table[index])
        elif not said and name != "id":
            number = int(filled(table[index]).sum())
            others += [f"{shown} ({number:,})"] * bool(number)
    if denying:
        part.notes["true or denied"] = f"taken from {', '.join(denying)}"
    if others:
        part.notes["other columns"] = f"not used (edges with a value): {', '.join(others)}"
    return part


def _by_number(
    path: Path, form: Form, table: Sequence[Texts], columns: str, lines: np.ndarray
) -> Part:
    """Name the columns of a table without a header by what they hold."""
    width, name = form.num_columns, unpacked_name(path)

    def part(what: str, holds: Holds, roles: Mapping[str, int], **more: Any) -> Part:
        return Part(path, what, holds, {k: table[i] for k, i in roles.items()}, lines, **more)

    if columns:
        chosen = chosen_roles(path, columns, [""] * width)
        for index in {*range(width)} - {*chosen.values()}:
            if is_stated(path, index, table[index]):
                chosen[f"stated {index + 1}"] = index
        return _facts(path, f"{form} triples", [""] * width, table, chosen, lines)
    if width == 2:
        pair = {"id": table[0], "name": table[1]}
        ids = _dictionary(path, pair, lines, has_count=form.count is not None)
        holds: Holds = "relations" if OF_RELATIONS.search(name) else "nodes"
        are_few = len(lines) >= LEAST_FACTS and 4 * len(table[1].dictionary) <= len(lines)
        said = "kind" if are_few and holds == "nodes" else "name"  # OpenBioLink's nodes
        return ids or part(f"{form} {said}s of {holds}", holds, {"id": 0, said: 1})
    if name.startswith("entity_names"):
        roles = dict(zip(("id", "name", "kind", "synonyms"), range(width), strict=False))
        return part(f"{form} names of nodes", "nodes", roles)
    if form.count is not None:
        said = "OpenKE: a count, then head tail relation"
        return part(said, "facts", {"head": 0, "tail": 1, "relation": 2}, are_ids=True)
    return _triples(path, form, table, lines)


def _triples(path: Path, form: Form, table: Sequence[Texts], lines: np.ndarray) -> Part:
    """Return facts in columns without names: head, relation, tail, and what others look like."""
    are_numbers = [
        by_row(column, pc.match_substring_regex(column.dictionary, f"^(?:{NUMBER.pattern})$"))
        for column in table
    ]
    has_titles = len(lines) > 1 and any(n[1:].all() and not n[0] for n in are_numbers)
    if form.num_columns > (3 if has_titles else 5):  # OpenBioLink's triples have five
        shown = quoted(", ".join(column[0].as_py() for column in table))
        raise _unclear(path, f"no usual names of columns in the first line {shown}")
    first, third = are_numbers[0][1:], are_numbers[2][1:]  # the first row can name columns
    has_dot = [pc.any(pc.match_substring(table[i].dictionary, ".")).as_py() for i in (0, 2)]
    if third.size and third.all() and (not first.any() or has_dot == [False, True]):
        raise _unclear(path, "column 3 holds only numbers, which can be weights")
    roles = {"head": 0, "relation": 1, "tail": 2}
    for index in range(3, form.num_columns):
        values = values_of(table[index])
        if is_stated(path, index, table[index]):
            roles[f"stated {index + 1}"] = index
        elif role := _looks_like(values, table[index], len(lines)):
            roles.setdefault(role, index)
    is_id = len(lines) >= LEAST_FACTS and len(table[0].dictionary) == len(lines)
    if is_id and form.num_columns > 3 and 3 not in roles.values():
        why = f"column 1 differs on each of {len(lines):,} lines, as ids of facts do"
        raise _unclear(path, why)
    what = "OpenBioLink's" if form.num_columns > 4 and "weight" in roles else str(form)
    title, names = f"{what} triples, {form.num_columns} columns", [""] * form.num_columns
    found = _facts(path, title, names, table, roles, lines)
    for role, index in list(roles.items())[3:]:
        ones = ", 1 on every line" * (values_of(table[index]) == ["1"])
        found.notes[role.split()[0]] = f"taken from column {index + 1}{ones}"
    return found


def _unclear(path: Path, why: str) -> DataError:
    return DataError(
        f"{path}: {why}; say by name or number what the columns hold, for example --columns "
        "head=1,relation=2,tail=3, or head=1,tail=2,weight=3"
    )


def _looks_like(values: list[str], column: Texts, num_lines: int) -> str:
    """Return the role of a fourth or later column without a name; empty if it is not clear."""
    distinct = set(values)
    if all(map(NUMBER.fullmatch, distinct)):
        # Whole numbers that hardly repeat are ids, of facts or of where they come from.
        hardly_repeat = LEAST_FACTS <= num_lines < 1.1 * len(column.dictionary)
        return "" if hardly_repeat and all(map(str.isdigit, distinct)) else "weight"
    return "time" if all(map(DATE.fullmatch, distinct)) else ""


def _unquoted(column: Texts, examples: list[str], *, is_read: bool) -> Texts:
    """Remove quotes around whole values; if quotes are read, those after a space are left."""
    texts = column.dictionary
    is_whole = pc.match_substring_regex(texts, rf'^\s{"+" if is_read else "*"}"([^"]|"")*"\s*$')
    if not pc.any(is_whole).as_py():
        return column
    examples += texts.filter(is_whole).to_pylist()
    inner = pc.utf8_slice_codeunits(pc.utf8_trim_whitespace(texts), 1, -1)
    inner = pc.replace_substring(inner, '""', '"')
    return Texts.from_arrays(column.indices, pc.if_else(is_whole, inner, texts))


def _dictionary(
    path: Path,
    pair: Mapping[str, Texts],
    lines: Sequence[int] | np.ndarray,
    *,
    has_count: bool = False,
) -> Part | None:
    """Return a dictionary of ids if one of two columns holds 0, 1, 2 and so on; else None."""
    first, second = (pair[role].cast(pa.string()) for role in ("id", "name"))
    for start, both in product((0, 1), ((second, first), (first, second))):
        ids, names = (column[start:] for column in both)
        if not len(ids) or fault_of_ids(ids, lines[start:]):
            continue
        if start and both[0][0].as_py().strip().isdecimal():
            continue  # not a name of a column
        if repeated := repeated_in(names, lines[start:]):
            raise DataError(f"{path}, {repeated}; each name must be there once")
        kind: Holds = "relation ids" if OF_RELATIONS.search(path.name) else "entity ids"
        places = np.argsort(np.asarray(ids.cast(pa.int64())))
        columns = {"name": names.take(pa.array(places)).dictionary_encode()}
        what = f"{'OpenKE' * has_count} dictionary: {kind}".strip()
        return Part(path, what, kind, columns, lines[start:])
    return None
