"""Reads the formats in which graphs are published, as tables of text with named columns.

The name of a file and its first lines say what it is. Columns are understood by their names (KGX,
PrimeKG, Hetionet, Neo4j, JSON Lines and any table with usual names), or by their number where there
are no names (triples, OpenBioLink, dictionaries, OpenKE). RDF is read by Oxigraph. A value is never
anything but its text: `NA`, `1e5` and `01` stay what they are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, printable, quoted
from clew.input_files import unpacked_name
from clew.link_prediction.denials import flag_of, is_stated, may_be_flag, values_of
from clew.link_prediction.dictionaries import fault_of_ids, repeated_in
from clew.link_prediction.other_formats import (
    FLAGS,
    QUALIFIERS,
    RDF,
    check_is_read,
    read_aliases,
    read_arrays,
    read_json,
    read_json_lines,
    read_parquet,
    read_rdf,
)
from clew.link_prediction.tables import Form, Texts, filled, read_table, sniff

Holds = Literal["facts", "nodes", "relations", "entity ids", "relation ids"]
NUMBER = re.compile(r"missing|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LEAST_FACTS = 20
"""Number of facts from which a column without repeats is noticed."""
DATE = re.compile(r"\d{4}-\d\d(-\d\d.*)?")
QUALIFIER_ENDS = ("_qualifier", "qualified_predicate")
MEANINGS = ("knowledge_level", "agent_type", "logical_interpretation", "clinical_approval_status")
"""Columns of KGX, apart from qualifiers, that change what an edge says."""

ENDS = [
    ("subject", "object"), ("head", "tail"), ("h", "t"), ("x", "y"), ("start", "end"),
    ("source", "target"), ("src", "dst"), ("from", "to"), ("node1", "node2"), ("node_1", "node_2"),
    ("entity1", "entity2"), ("entity_1", "entity_2"), ("e1", "e2"), ("id1", "id2"), ("s", "o"),
    ("sub", "obj"), ("subj", "obj"), ("head_entity", "tail_entity"),
    ("entity", "value"), ("start_node", "end_node"), ("protein1", "protein2"),
    ("protein_1", "protein_2"), ("protein_a", "protein_b"), ("gene1", "gene2"),
    ("gene_1", "gene_2"), ("gene_a", "gene_b"), ("interactor_a", "interactor_b"),
]  # fmt: skip
END_FORMS = (
    "_id", "_curie", "_cui", "id", "_identifier", "_iri", "_uri", "", "_accession", "_index",
    "_idx", "_name",
)  # fmt: skip
"""How names of the columns of both ends go on; an identifier is preferred to a name."""
OF_AN_END = {"name": ("name", "label"), "kind": ("type", "kind", "category"), "source": ("source",)}
CHOICES = (
    "head", "relation", "tail", "weight", "time", "split", "negated", "stated", "head_name",
    "tail_name", "head_kind", "tail_kind", "unused",
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
        "id", "node_id", "identifier", "curie", "node_idx", "entity_id", "entity", "node",
        "node_index", "ent_idx", "rel_idx", "reltype",
    ],
    "name": [
        "name", "node_name", "label", "title", "preferred_name", "entity_name", "ent_name",
        "rel_name", "rel_id", "entity_id",
    ],
    "kind": ["kind", "category", "type", "node_type", "entity_type", "labels", "class"],
    "synonyms": ["synonym", "synonyms", "aliases", "alias"],
    "source": ["node_source"],
}  # fmt: skip
FACT_ROLES = ("relation", "weight", "time", "split", *FLAGS)
NODE_ROLES = ("id", "name", "kind", "synonyms", "source")
NOT_OF_FACTS = (*NODE_ROLES, "unused")
NEO4J = re.compile(r"(?s)(.*):(START_ID|END_ID|TYPE|ID|LABEL|IGNORE)(?:\((.*)\))?(?:\{.*\})?")
NEO4J_ROLES = {"START_ID": "head", "END_ID": "tail", "TYPE": "relation", "LABEL": "kind"}

WIKIDATA5M = re.compile(r"(?i)wikidata5m_(entity|relation)\.txt")
HOLDS_ALIASES: dict[str, Holds] = {"entity": "nodes", "relation": "relations"}
OF_RELATIONS = re.compile(
    r"(?i)(?:^|[^a-z])rel(?:ation[a-z]*|idx|ids?|names?|types?|s)?(?:[^a-z]|$)"
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
    groups: dict[str, str] = field(default_factory=dict)
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
    check_is_read(path, suffix)
    if suffix in RDF:
        facts, nodes, notes = read_rdf(path, RDF[suffix])
        parts = [
            Part(path, RDF[suffix].name, "facts", facts, range(len(facts["head"])), notes=notes)
        ]
        labels = Part(path, "labels", "nodes", nodes, range(len(nodes["id"])))
        return parts + [labels] * bool(len(nodes["id"]))
    if suffix in (".npz", ".pt"):
        arrays = read_arrays(path)
        numbers = range(len(arrays["head"]))
        return [Part(path, "OGB's arrays", "facts", arrays, numbers, are_ids=True)]
    if suffix in (".parquet", ".pq"):
        return _by_name(path, *read_parquet(path), columns, "Parquet")
    if suffix in (".jsonl", ".ndjson"):
        return _by_name(path, *read_json_lines(path), columns, "JSON Lines")
    if suffix == ".json":
        tables = read_json(path)
        said = [""] * (len(tables) - 1) + [columns]
        of_each = [_by_name(path, *t, c, "JSON") for t, c in zip(tables, said, strict=True)]
        return [part for parts in of_each for part in parts]
    return _read_text(path, columns, header, names)


def _read_text(path: Path, columns: str, header: bool, names: Sequence[str]) -> list[Part]:
    """Read a table of text."""
    if of_wikidata := WIKIDATA5M.fullmatch(unpacked_name(path)):
        aliases, holds = read_aliases(path), HOLDS_ALIASES[of_wikidata[1].lower()]
        numbers = range(1, len(aliases["id"]) + 1)
        return [Part(path, f"Wikidata5m's names of {holds}", holds, aliases, numbers)]
    chosen = {name.strip() for name in re.findall(r"=\s*([^\d\s,][^,]*)", columns)}

    def are_names(words: Sequence[str]) -> bool:
        return bool(roles_of(words)) or (bool(chosen) and chosen <= set(words))

    form = sniff(path, are_names, header=header or bool(chosen))
    if header and not (columns or names or roles_of(form.header)):  # as without --header
        columns = "head,relation,tail"
    table, lines = read_table(path, form)
    quotes: list[str] = []
    if not form.is_quoted:
        table = [_unquoted(column, quotes) for column in table]
    if names or form.header:
        parts = _by_name(path, list(names or form.header), table, columns, str(form), lines)
    else:
        parts = [_by_number(path, form, table, columns, lines)]
        if form.count not in (None, len(table[0])):
            raise DataError(
                f"{path}, line 1: {form.count:,} rows are promised, but there are "
                f"{len(table[0]):,}; is the file complete?"
            )
    if quotes:
        parts[0].notes["quotes"] = "around values, as R and spreadsheets write them, are removed"
        parts[0].examples["quotes"] = quotes
    if form.has_comments or (len(lines) and lines[-1] - form.skip > len(lines)):
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
    roles = roles_of(names, are_names=True)
    if columns:
        roles = _chosen(path, columns, names)
    elif "relation" in roles and may_be_flag(names[roles["relation"]], table[roles["relation"]]):
        name = quoted(names[roles["relation"]])[1:-1]
        raise DataError(
            f"{path}: {name} holds only true and false, which can be relations, or deny facts; say "
            f"which: --columns relation={name} or --columns stated={name}"
        )
    neo4j = {role: group for role, (_, group) in _neo4j(names).items()}
    known = _known_format(names, bool(neo4j))
    parts = []
    if "head" in roles:
        taken = {k: table[i] for k, i in roles.items() if k.split()[0] not in NOT_OF_FACTS}
        part = Part(path, f"{known or what}, edges", "facts", taken, numbers, groups=neo4j)
        _finish_facts(part, names, table, roles)
        parts.append(part)
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


def _finish_facts(
    part: Part, names: Sequence[str], table: Sequence[Texts], roles: Mapping[str, int]
) -> None:
    """Take along qualifiers, and count what the other columns say."""
    _name_relation(part)
    denying, others = _take_denials(part, names, table, roles.values()), []
    for index, name in enumerate(names):
        if name in MEANINGS or name == QUALIFIERS or name.endswith(QUALIFIER_ENDS):
            part.columns.setdefault(name, table[index])
        elif index not in (*roles.values(), *denying) and name != "id":
            number = int(filled(table[index]).sum())
            others += [f"{printable(name)} ({number:,})"] * bool(number)
    if others:
        part.notes["other columns"] = f"not used (edges with a value): {', '.join(others)}"


def _name_relation(part: Part) -> None:
    """Name the relation after the file, if no column names it."""
    if "relation" not in part.columns:
        stem = Path(unpacked_name(part.path)).stem
        part.notes["relation"] = f"no column names it; it is {stem!r}, the name of the file"
        zeros = pa.array(np.zeros(part.num_rows, np.int32))
        part.columns["relation"] = Texts.from_arrays(zeros, pa.array([stem]))


def _take_denials(
    part: Part, names: Sequence[str], table: Sequence[Texts], taken: Iterable[int]
) -> list[int]:
    """Add those other columns that say which facts are denied; return their numbers."""
    denying = []
    for index, name in enumerate(names):
        if index in taken:
            continue
        if said := flag_of(name, table[index]):
            part.columns[f"{said[0]} {name} (column {index + 1})".replace("  ", " ")] = said[1]
            denying.append(index)
        elif may_be_flag(name, table[index]):
            raise DataError(
                f"{part.path}: {quoted(name)} holds only true and false, which can deny facts, or "
                f"mean something else; say which: --columns stated={name} or unused={name}"
            )
    if denying:
        shown = ", ".join(printable(names[i]) or f"column {i + 1}" for i in denying)
        part.notes["true or denied"] = f"taken from {shown}"
    return denying


def _by_number(
    path: Path, form: Form, table: Sequence[Texts], columns: str, lines: np.ndarray
) -> Part:
    """Name the columns of a table without a header by what they hold."""
    width, name = form.num_columns, unpacked_name(path)

    def part(what: str, holds: Holds, roles: Mapping[str, int], **more: Any) -> Part:
        return Part(path, what, holds, {k: table[i] for k, i in roles.items()}, lines, **more)

    if columns:
        found = _by_chosen_number(path, form, table, columns, lines)
        _name_relation(found)
        return found
    if width == 2:
        pair = {"id": table[0], "name": table[1]}
        ids = _dictionary(path, pair, lines, has_count=form.count is not None)
        holds: Holds = "relations" if OF_RELATIONS.search(name) else "nodes"
        return ids or part(f"{form} names of {holds}", holds, {"id": 0, "name": 1})
    if name.startswith("entity_names"):
        roles = dict(zip(("id", "name", "kind", "synonyms"), range(width), strict=False))
        return part(f"{form} names of nodes", "nodes", roles)
    if form.count is not None:
        said = "OpenKE: a count, then head tail relation"
        return part(said, "facts", {"head": 0, "tail": 1, "relation": 2}, are_ids=True)
    first, third = (_are_numbers(table[i])[1:] for i in (0, 2))  # the first row can name columns
    if third.size and third.all() and not first.any():
        raise DataError(
            f"{path}: column 3 holds only numbers, which can be weights; say by role and number "
            "what the columns hold: --columns head=1,tail=2,weight=3, or head=1,relation=2,tail=3"
        )
    roles, others = {"head": 0, "relation": 1, "tail": 2}, []
    for index in range(3, width):
        values = values_of(table[index])
        if is_stated(path, index, values):
            roles[f"stated {index + 1}"] = index
        elif (role := _looks_like(values, table[index], len(lines))) in roles or not role:
            others.append(str(index + 1))
        else:
            roles[role] = index
    if "4" in others and len(lines) >= LEAST_FACTS and len(table[0].dictionary) == len(lines):
        raise DataError(
            f"{path}: column 1 differs on each of {len(lines):,} lines, as ids of facts do; say by "
            "role and number what the columns hold: --columns head=2,relation=3,tail=4, or "
            "head=1,relation=2,tail=3"
        )
    what = "OpenBioLink's triples" if width > 4 and "weight" in roles else f"{form} triples"
    found = part(f"{what}, {width} columns", "facts", roles)
    _take_denials(found, [""] * width, table, roles.values())
    for role, index in list(roles.items())[3:]:
        ones = ", 1 on every line" * (values_of(table[index]) == ["1"])
        found.notes[role.split()[0]] = f"taken from column {index + 1}{ones}"
    if others:
        found.notes["other columns"] = f"not used: column {', '.join(others)}"
    return found


def _are_numbers(column: Texts) -> np.ndarray:
    is_number = pc.match_substring_regex(column.dictionary, f"^(?:{NUMBER.pattern})$")
    found: np.ndarray = is_number.to_numpy(zero_copy_only=False)[column.indices.to_numpy()]
    return found


def _by_chosen_number(
    path: Path, form: Form, table: Sequence[Texts], columns: str, lines: np.ndarray
) -> Part:
    """Name the columns of a table without a header as `--columns` says."""
    chosen = _chosen(path, columns, [""] * form.num_columns)
    for index in {*range(form.num_columns)} - {*chosen.values()}:
        if is_stated(path, index, values_of(table[index])):
            chosen[f"stated {index + 1}"] = index
    taken = {k: table[i] for k, i in chosen.items() if k.split()[0] not in NOT_OF_FACTS}
    found = Part(path, f"{form} triples", "facts", taken, lines)
    _take_denials(found, [""] * form.num_columns, table, chosen.values())
    return found


def _looks_like(values: list[str], column: Texts, num_lines: int) -> str:
    """Return the role of a fourth or later column without a name; empty if it is not clear."""
    distinct = set(values)
    if all(map(NUMBER.fullmatch, distinct)):
        # Whole numbers that hardly repeat are ids, of facts or of where they come from.
        hardly_repeat = LEAST_FACTS <= num_lines < 1.1 * len(column.dictionary)
        return "" if hardly_repeat and all(map(str.isdigit, distinct)) else "weight"
    return "time" if all(map(DATE.fullmatch, distinct)) else ""


def _unquoted(column: Texts, examples: list[str]) -> Texts:
    """Remove quotes around whole values of a table in which they do not protect separators."""
    texts = column.dictionary
    is_whole = pc.match_substring_regex(texts, '^"([^"]|"")*"$')
    if not pc.any(is_whole).as_py():
        return column
    examples += texts.filter(is_whole).to_pylist()
    inner = pc.replace_substring(pc.utf8_slice_codeunits(texts, 1, -1), '""', '"')
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
    for ids, names in ((second, first), (first, second)):
        if not len(ids) or fault_of_ids(ids, lines):
            continue
        if repeated := repeated_in(names, lines):
            raise DataError(f"{path}, {repeated}; each name must be there once")
        kind: Holds = "relation ids" if OF_RELATIONS.search(path.name) else "entity ids"
        places = np.argsort(np.asarray(ids.cast(pa.int64())))
        columns = {"name": names.take(pa.array(places)).dictionary_encode()}
        what = f"{'OpenKE' * has_count} dictionary: {kind}".strip()
        return Part(path, what, kind, columns, lines)
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


def roles_of(names: Sequence[str], *, are_names: bool = False) -> dict[str, int]:
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
    for role in (*(FACT_ROLES if "head" in found else ()), *NODE_ROLES):
        if role in NODE_ROLES and "head" in found and "id" not in neo4j and "_id" not in names:
            continue
        for name in OTHER_ROLES[role]:
            if role not in found and name in places and places[name] not in found.values():
                found[role] = places[name]
    is_facts = "head" in found and ("relation" in found or bool(neo4j))
    if "head" in found and not is_facts:  # two ends and a score (STRING), or nothing else
        is_known = "weight" in found or len(found) == len(names)
        is_facts = is_known and all(len(plain[found[end]]) > 2 for end in ("head", "tail"))
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
            index = list(names).index(name)
        elif name.isdecimal() and 0 < int(name) <= len(names):
            index = int(name) - 1
        else:
            raise DataError(
                f"{path}: has no column {quoted(name)}, which --columns names; it has "
                f"{quoted(', '.join(names)) if any(names) else len(names)}"
            )
        found[f"unused {index}" if role == "unused" else role] = index
    found = _known_beside(found, names) | found
    if not {"head", "tail"} <= found.keys():
        raise DataError(f"--columns is {columns}; expected head, tail and usually relation in it")
    return found


def _known_beside(chosen: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return the columns that are not chosen, by the roles that their names say."""
    left = ["" if index in chosen.values() else name for index, name in enumerate(names)]
    if not {"head", "tail"} & chosen.keys():
        return roles_of(left, are_names=True)
    said = roles_of(["subject", "object", *left], are_names=True)
    found = {role: said[role] - 2 for role in FACT_ROLES[1:] if said.get(role, 0) > 1}
    by_name = roles_of(names, are_names=True)
    for side in ("head", "tail"):
        if by_name.get(side) == chosen.get(side, -1):
            found |= {k: i for k, i in by_name.items() if k.startswith(f"{side}_")}
    return {role: index for role, index in found.items() if index not in chosen.values()}
