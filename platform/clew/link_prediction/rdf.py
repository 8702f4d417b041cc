"""Reads RDF with Oxigraph: facts between resources, labels, types, and what OWL denies."""

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyoxigraph

from clew.errors import DataError, quoted, refusing
from clew.input_files import FREE_BYTES, BlockStream, line_blocks
from clew.link_prediction.tables import Texts, as_texts

RDF = {
    ".nt": pyoxigraph.RdfFormat.N_TRIPLES,
    ".nq": pyoxigraph.RdfFormat.N_QUADS,
    ".ttl": pyoxigraph.RdfFormat.TURTLE,
    ".trig": pyoxigraph.RdfFormat.TRIG,
}
NAMES = (
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
                if predicate in NAMES:
                    rank = NAMES.index(predicate) + 9 * ((value.language or "en")[:2] != "en")
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
