"""Which columns of a table hold what: by the names of the columns, or as `--columns` says."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from clew.errors import DataError, quoted

QUALIFIERS, FLAGS = "qualifiers", ("negated", "deprecated")
MEANINGS = ("knowledge_level", "agent_type", "logical_interpretation", "clinical_approval_status")
"""Columns of KGX, apart from qualifiers, that change what an edge says."""
ENDS = [
    ("subject", "object"), ("head", "tail"), ("h", "t"), ("x", "y"), ("start", "end"),
    ("source", "target"), ("src", "dst"), ("from", "to"), ("node1", "node2"), ("e1", "e2"),
    ("entity1", "entity2"), ("id1", "id2"), ("s", "o"), ("sub", "obj"), ("subj", "obj"),
    ("headentity", "tailentity"), ("entity", "value"), ("startnode", "endnode"),
    ("protein1", "protein2"), ("proteina", "proteinb"), ("gene1", "gene2"), ("genea", "geneb"),
    ("interactora", "interactorb"),
]  # fmt: skip
"""Names of the columns of both ends, of letters and digits alone, as all names are compared."""
END_FORMS = ("id", "curie", "cui", "identifier", "iri", "uri", "", "accession", "index", "idx",
             "name")  # fmt: skip
"""How names of the columns of both ends go on; an identifier is preferred to a name."""
OF_AN_END = {"name": ("name", "label"), "kind": ("type", "kind", "category"), "source": ("source",)}
CHOICES = (
    "head", "relation", "tail", "weight", "time", "split", "negated", "stated", "head_name",
    "tail_name", "head_kind", "tail_kind", "unused",
)  # fmt: skip
OTHER_ROLES = {
    "relation": [
        "predicate", "predicateid", "relation", "relationid", "metaedge", "rel", "relationship",
        "edge", "edgetype", "relationtype", "relationshiptype", "r", "p", "interaction", "type",
        "label", "property", "edgelabel",
    ],
    "weight": ["weight", "score", "confidence", "qscore", "probability", "combinedscore"],
    "time": ["time", "timestamp", "date", "year"],
    "split": ["split", "fold"],
    "negated": ["negated", "negative", "isnegated"],
    "deprecated": ["deprecated", "isdeprecated", "retracted", "isretracted", "obsolete"],
    "id": [
        "id", "nodeindex", "nodeid", "identifier", "curie", "nodeidx", "entityid", "entity",
        "node", "stringproteinid", "entidx", "relidx", "reltype",
    ],
    "name": [
        "name", "nodename", "label", "title", "preferredname", "entityname", "entname",
        "relname", "relid", "entityid",
    ],
    "kind": ["kind", "category", "categories", "type", "nodetype", "entitytype", "labels", "class"],
    "synonyms": ["synonym", "synonyms", "aliases", "alias"],
    "source": ["nodesource"],
}  # fmt: skip
FACT_ROLES = ("relation", "weight", "time", "split", *FLAGS)
NODE_ROLES = ("id", "name", "kind", "synonyms", "source")
NOT_OF_FACTS = (*NODE_ROLES, "unused")
NEO4J = re.compile(r"(?s)(.*):(START_ID|END_ID|TYPE|ID|LABEL|IGNORE)(?:\((.*)\))?(?:\{.*\})?")
NEO4J_ROLES = {"START_ID": "head", "END_ID": "tail", "TYPE": "relation", "LABEL": "kind"}


def is_qualifier(name: str) -> bool:
    return name == QUALIFIERS or name.endswith(("_qualifier", "qualified_predicate"))


def known_format(names: Sequence[str], is_neo4j: bool) -> str:
    """Return the format that a header belongs to; empty for any other table."""
    if is_neo4j or {"_start", "_end"} <= set(names):
        return "Neo4j's CSV"
    known = (
        ({"x_index", "display_relation"}, "PrimeKG"),
        ({"node_index"}, "PrimeKG"),
        ({"metaedge"}, "Hetionet"),
        ({"id", "name", "kind"}, "Hetionet"),
        ({"subject", "predicate", "object"}, "KGX"),
        ({"id", "category"}, "KGX"),
    )
    return next((name for needed, name in known if needed <= set(names)), "")


def roles_of(names: Sequence[str], *, are_names: bool = False) -> dict[str, int]:
    """Return the columns by role that their names say; empty if they do not name columns."""
    neo4j = name_spaces(names)
    found = {role: index for role, (index, _) in neo4j.items()}
    if neo4j:  # name:string
        names = [re.sub(r"(?<=.):[A-Za-z]+(\[\])?$", "", name) for name in names]
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in names]
    places = {name: index for index, name in reversed(list(enumerate(plain)))}
    for first, second, form in ((a, b, form) for a, b in ENDS for form in END_FORMS):
        if "head" not in found and first + form in places and second + form in places:
            found |= {"head": places[first + form], "tail": places[second + form]}
            for side, end in (("head", first), ("tail", second)):
                for role, words in OF_AN_END.items():
                    index = next((places[n] for w in words if (n := f"{end}{w}") in places), None)
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


def is_fact(names: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Return whether usual names of columns, such as `e1 r e2`, are a fact.

    They are if later rows have their relation and one of their ends.
    """
    if len(names) != 3:
        return False
    place = roles_of(names, are_names=True).get("relation", 1)
    own, others = [*names], [[*row] for row in rows if len(row) == 3 and [*row] != [*names]]
    relations = {row.pop(place) for row in others}
    return own.pop(place) in relations and not {*own}.isdisjoint(chain(*others))


def name_spaces(names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return column and name space of identifiers by role, for a header of Neo4j."""
    matches = [(i, NEO4J.fullmatch(name.strip())) for i, name in enumerate(names)]
    return {
        NEO4J_ROLES.get(match[2], match[2].lower()): (index, match[3] or "")
        for index, match in reversed(matches)
        if match
    }


def chosen_roles(path: Path, columns: str, names: Sequence[str]) -> dict[str, int]:
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
        role = f"unused {index}" if role == "unused" else role
        if role in found:
            raise DataError(f"--columns names {role} twice; expected each once")
        found[role] = index
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
    found = {role: said[role] - 2 for role in FACT_ROLES if said.get(role, 0) > 1}
    by_name = roles_of(names, are_names=True)
    for side in ("head", "tail"):
        if by_name.get(side) == chosen.get(side, -1):
            found |= {k: i for k, i in by_name.items() if k.startswith(f"{side}_")}
    return {role: index for role, index in found.items() if index not in chosen.values()}
