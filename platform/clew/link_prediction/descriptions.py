r"""What files say of entities and relations: ids, names, kinds, synonyms, labels.

A table of labels contains `id<TAB>name`. Further columns contain the kind (`Drug`, `Disease`) and
other names, separated by `|`. Labels of relations can also be in a JSON edge map from predicate to
label. `id` and predicate are written as in the triples.

In JSON, a label is a text, an object with `label` or `name`, or an object with `predicate` and
qualifiers. If no key is a relation of the graph, the map is read in reverse
(`{"{\"predicate\": \"biolink:treats\"}": "predicate:0"}`): its values are the relations and its
keys are the labels. Such a key can also be one of these objects, written as text.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from clew.biolink import DENIED, PREFIX, most_specific, terms
from clew.errors import DataError, printable, quoted, refusing
from clew.input_files import line_blocks
from clew.link_prediction.denials import NO_VALUE
from clew.link_prediction.dictionaries import WHOLE_NUMBER, fault_of_ids, fields_to_ids, may_be_ids
from clew.link_prediction.formats import Part, read_file
from clew.link_prediction.other_formats import LIST_SEPARATOR
from clew.link_prediction.tables import Texts, as_texts, own_form, read_table
from clew.link_prediction.vocabulary import Kind, Vocabulary

log = logging.getLogger(__name__)

MAX_EDGE_MAP_BYTES = 2**26
WIDE_KINDS = ("NamedThing", "Thing", "Entity")
COLUMNS = ("id", "name", "kind", "synonyms")


@dataclass
class Noticed:
    """What was noticed while files were read."""

    read: dict[str, str] = field(default_factory=dict)
    """File to what it was taken for."""
    notes: dict[str, str] = field(default_factory=dict)
    """What became of facts and columns, by a word for it."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of edges, of denied and deprecated ones, of repeated facts, of conflicts."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    denied: list[list[Texts]] = field(default_factory=list)
    """Head, relation and tail of the facts that were dropped because their source denies them."""

    def note(self, key: str, text: str) -> None:
        if text not in self.notes.get(key, ""):
            self.notes[key] = "; ".join(filter(None, [self.notes.get(key, ""), text]))


def read_dictionary(path: Path, kind: Kind) -> Vocabulary:
    """Read a dictionary; its ids must be 0, 1, 2 and so on, each once, in any order.

    A header, OpenKE's count and ids before names (PyKEEN) are understood.
    """
    part = read_file(path)[0]
    if not part.holds.endswith("ids"):
        columns = [column.cast(pa.string()) for column in part.columns.values()]
        ids = max(columns, key=lambda c: pc.sum(pc.match_substring_regex(c, WHOLE_NUMBER)).as_py())
        fault = fault_of_ids(ids, part.lines)
        raise DataError(f"{path}, {fault}; expected names and the ids 0, 1, 2 and so on")
    names = part.columns["name"].cast(pa.string())
    return Vocabulary(kind, names, fields_may_be_ids=may_be_ids(names))


def read_labels(path: Path, vocabulary: Vocabulary) -> Vocabulary:
    first_line = next(line_blocks(path)).partition(b"\n")[0]
    num_columns = min(max(first_line.count(b"\t") + 1, 2), len(COLUMNS))
    table, lines, _ = read_table(path, own_form(*COLUMNS[:num_columns]))
    columns = dict(zip(COLUMNS, table, strict=False))
    return _labelled(Part(path, "labels", "nodes", columns, lines), vocabulary)


def read_edge_map(path: Path, relations: Vocabulary) -> Vocabulary:
    edge_map = _read_json_object(path)
    keys, values = list(edge_map), list(edge_map.values())
    if (fields_to_ids(pa.array(keys), relations) < 0).all():
        parsed = [_parsed_object(key) for key in keys]
        keys, values = [v if isinstance(v, str) else "" for v in values], parsed
    labels = [_label_text(path, key, text) for key, text in zip(keys, values, strict=True)]
    columns = {"id": as_texts(keys), "name": as_texts(labels)}
    part = Part(path, "labels", "relations", columns, range(1, len(keys) + 1))
    return _labelled(part, relations)


def _labelled(part: Part, vocabulary: Vocabulary) -> Vocabulary:
    """Add the labels of one file, which must be of this graph, and one for each name."""
    if (fields_to_ids(part.columns["id"].dictionary, vocabulary) < 0).all():
        raise DataError(
            f"{part.path}: labels {part.num_rows} names, but no {vocabulary.kind} of the graph, "
            f"which has for example {vocabulary.name(0)!r}; expected labels of the same graph"
        )
    noticed = Noticed()
    found = describe_names(vocabulary, [part], noticed)
    if clashes := noticed.examples.get("conflicting names"):
        raise DataError(f"{part.path}: two labels, {quoted(clashes[0])}; expected one per name")
    said = part.path, found.num_labels, len(vocabulary), vocabulary.kind
    log.info("%s: labels of %d of %d %s names", *said)
    return found


def describe_names(vocabulary: Vocabulary, parts: Sequence[Part], found: Noticed) -> Vocabulary:
    """Add what parts say about entities or relations: names, kinds and synonyms."""
    known: dict[str, list[str]] = {}
    for role in ("name", "kind", "synonyms"):
        texts = [""] * len(vocabulary)
        for part in parts:
            for end in ("id", "head", "tail"):
                column = part.columns.get(role if end == "id" else f"{end}_{role}")
                if column is not None and end in part.columns:
                    names = part.columns[end]
                    ids = fields_to_ids(names.dictionary, vocabulary)[names.indices]
                    _add(texts, role, (ids, column), vocabulary, found)
        known[role] = texts
    missing = sum(not text for text in known["name"]) if any(known["name"]) else 0
    if missing:
        found.note("no name", f"{missing:,} entities; their identifiers are shown")
    synonyms = [_synonyms(*pair) for pair in zip(known["synonyms"], known["name"], strict=True)]
    said = {"label": known["name"], "category": known["kind"], "synonym": synonyms}
    arrays = {
        f"{key}_array": pa.array([text or None for text in texts], pa.string())
        for key, texts in said.items()
        if any(texts)
    }
    return replace(vocabulary, **arrays)


def _add(
    texts: list[str],
    role: str,
    said_of: tuple[np.ndarray, Texts],
    vocabulary: Vocabulary,
    found: Noticed,
) -> None:
    """Add what a column says to what is known; a blank or a vaguer word replaces nothing."""
    ids, column = said_of
    changes: dict[str, Callable[[str], str]] = {"kind": _kind, "name": _one_line, "synonyms": str}
    said = list(map(changes[role], column.dictionary.to_pylist()))
    depths = terms().categories if role == "kind" else {}
    wide = WIDE_KINDS if role == "kind" else ()
    keys = ids.astype(np.int64) * max(len(said), 1) + column.indices.to_numpy()
    for key in pd.unique(keys).tolist():
        entity, text = key // len(said), said[key % len(said)]
        if entity < 0 or not text or text == (old := texts[entity]):
            continue
        if role == "synonyms":
            texts[entity] = f"{old}{LIST_SEPARATOR * bool(old)}{text}"
            continue
        name = vocabulary.name(entity)
        vague, was_vague = (t.lower() in NO_VALUE or t in (name, *wide) for t in (text, old))
        if not vague and not was_vague and text.casefold() != old.casefold():
            found.counts[f"conflicting {role}s"] += 1
            examples = found.examples.setdefault(f"conflicting {role}s", [])
            examples.append(f"{name}: {old} / {text}")
        is_deeper = depths.get(text, 0) > depths.get(old, 0)
        if is_deeper or (was_vague and not (vague and old)):
            texts[entity] = text


def _kind(text: str) -> str:
    """Return the most specific of several kinds; KGX separates them by `|`, Neo4j by `;` or `:`."""
    parts = text.split(":")[1:] if text.startswith(":") else re.split(r"[|;]", text)
    return _one_line((most_specific(filter(None, parts)) or "").removeprefix(PREFIX))


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _synonyms(text: str, name: str) -> str:
    """Return synonyms without the name itself and without repeats."""
    found: dict[str, str] = {}
    for part in map(" ".join, map(str.split, text.split(LIST_SEPARATOR))):
        found.setdefault(part.casefold(), part)
    kept = [part for key, part in found.items() if key not in ("", name.casefold())]
    return LIST_SEPARATOR.join(part for part in kept if part.isprintable())


def relation_label(relation: str) -> str:
    """Return a readable predicate, such as `affects (object aspect qualifier: activity)`."""
    predicate, *qualifiers = relation.split(";")
    words = predicate.removeprefix(PREFIX).replace("_", " ")
    qualifiers = ["denied" if part == DENIED else part for part in qualifiers]
    parts = [part.replace(PREFIX, "").replace("_", " ").replace("=", ": ") for part in qualifiers]
    return f"{words} ({', '.join(parts)})" if parts else words


def _read_json_object(path: Path) -> dict[str, object]:
    if path.is_file() and path.stat().st_size > MAX_EDGE_MAP_BYTES:
        raise DataError(
            f"{path}: larger than {MAX_EDGE_MAP_BYTES:,} bytes; expected an object from predicate "
            "to label"
        )
    text = b"".join(line_blocks(path))
    what, advice = f"{path}: not JSON in UTF-8", "; expected an object from predicate to label"
    with refusing(what, ValueError, RecursionError, advice=advice):
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # fails for a lone surrogate
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: expected a JSON object from predicate to label")
    return content


def _parsed_object(key: str) -> object:
    try:
        content = json.loads(key)
    except (ValueError, RecursionError):
        return key
    return content if isinstance(content, dict) else key


def _label_text(path: Path, key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in ("label", "name"):
            if isinstance(value.get(name), str):
                return str(value[name])
        if isinstance(value.get("predicate"), str):
            qualifiers = [f"{k}: {v}" for k, v in value.items() if k != "predicate" and v]
            shown = f" ({', '.join(qualifiers)})" if qualifiers else ""
            return f"{value['predicate']}{shown}"
    raise DataError(
        f"{path}: the label of {quoted(key)} is {quoted(json.dumps(value))}; expected a text, or "
        "an object with label, name or predicate"
    )
