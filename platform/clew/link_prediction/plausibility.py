"""What in a graph looks wrong, and which relations say the same: a report to read before training.

Two relations are inverses if at least three fifths of the larger one's facts have their inverse in
the other, duplicates if at least four fifths of them are in the other, ten facts at least. A test
triple whose inverse or duplicate is a training triple can be answered by looking it up: FB15k
became FB15k-237 for this. A relation that is its own inverse is symmetric, and is reported apart.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from clew.errors import quoted
from clew.link_prediction.imports import Imported, as_keys, clean_name
from clew.link_prediction.triples import SPLITS, KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary

LEAST_COMMON, LEAST_SHARE = 10, {"inverse": 0.6, "symmetric": 0.6, "duplicate": 0.8}
HUB_SHARE, LEAST_FACTS = 0.1, 20
CLEANED_BY = "--clean"
PairKind = Literal["inverse", "duplicate", "symmetric"]


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong."""

    what: str
    count: int
    examples: list[str]
    """At most three."""
    mend: str
    """The option that mends it, or what to do."""

    def __str__(self) -> str:
        shown = "; ".join(quoted(text) for text in self.examples)
        return f"{self.what}: {self.count:,}, such as {shown}. {self.mend}"


@dataclass(frozen=True)
class RelationPair:
    """Two relations whose facts are inverses or duplicates of each other, or a symmetric one."""

    kind: PairKind
    first: int
    second: int
    common: int
    """Number of the first relation's facts that have a counterpart in the second."""
    share: float
    """Its share of the larger relation's facts."""


def relation_pairs(graph: KnowledgeGraph) -> list[RelationPair]:
    """Return the pairs of relations that are inverses or near-duplicates, by exact counts."""
    triples = np.concatenate([graph.split(split) for split in SPLITS])
    triples = triples[~pd.Series(as_keys(triples)).duplicated().to_numpy()]
    triples = triples[triples[:, 0] != triples[:, 2]]
    size = graph.num_relations
    is_turned = triples[:, 0] > triples[:, 2]
    pair = pd.factorize(as_keys(np.sort(triples[:, [0, 2]], axis=1)))[0]
    ones = np.ones(len(triples), np.int32)
    shape = 2 * size, int(pair.max(initial=0)) + 1
    sides = sparse.csr_matrix((ones, (2 * triples[:, 1] + is_turned, pair)), shape=shape)
    common = (sides @ sides.T).tocoo()
    numbers = np.bincount(triples[:, 1], minlength=size)
    counts: dict[tuple[bool, int, int], int] = {}
    for row, column, count in zip(common.row, common.col, common.data, strict=True):
        key = bool((row ^ column) & 1), int(row) // 2, int(column) // 2
        counts[key] = counts.get(key, 0) + int(count)
    found = []
    for (is_inverse, first, second), count in sorted(counts.items()):
        if first > second or (first == second and not is_inverse) or count < LEAST_COMMON:
            continue
        share = float(count / max(numbers[first], numbers[second]))
        kind: PairKind = "inverse" if is_inverse else "duplicate"
        kind = "symmetric" if first == second else kind
        if share >= LEAST_SHARE[kind]:
            found.append(RelationPair(kind, first, second, count, share))
    return found


def counterparts(
    triples: Triples, pairs: Sequence[RelationPair]
) -> Iterator[tuple[np.ndarray, Triples]]:
    """Yield rows of triples, and the inverse or duplicate that each would have in a relation."""
    for pair in pairs:
        for here, there in {(pair.first, pair.second), (pair.second, pair.first)}:
            rows = np.flatnonzero(triples[:, 1] == here)
            others = triples[rows][:, [0, 1, 2] if pair.kind == "duplicate" else [2, 1, 0]]
            others[:, 1] = there
            yield rows, others


def is_leaked(graph: KnowledgeGraph, triples: Triples, pairs: Sequence[RelationPair]) -> np.ndarray:
    """Return which triples have their inverse or duplicate in training, bool `(triple,)`."""
    found = np.zeros(len(triples), bool)
    for rows, others in counterparts(triples, [p for p in pairs if p.kind != "symmetric"]):
        keys = as_keys(np.concatenate([graph.train, others]))
        found[rows] |= np.isin(keys[len(graph.train) :], keys[: len(graph.train)])
    return found


@dataclass(frozen=True)
class Report:
    """All findings in a graph."""

    findings: list[Finding]
    pairs: list[RelationPair]

    def write(self, path: Path, **more: object) -> None:
        content = more | asdict(self)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report(graph: KnowledgeGraph, imported: Imported | None = None) -> Report:
    """Look for what is wrong in a graph, and in the files that it was read from."""
    pairs = relation_pairs(graph)
    found = [*_of_files(imported)] if imported else []
    found += [*_of_names(graph.entities), *_of_names(graph.relations)]
    found += [*_of_triples(graph), *_of_pairs(graph, pairs)]
    return Report([finding for finding in found if finding.count], pairs)


def _of_files(found: Imported) -> Iterator[Finding]:
    mends = {
        "denied": "They are dropped; --negated relation gives them relations of their own",
        "deprecated": "They are dropped",
        "repeated": "Each fact is kept once",
        "cleaned": "--clean changed them",
    }
    for key, mend in mends.items():
        yield Finding(f"facts: {key}", found.counts[key], found.examples.get(key, [])[:3], mend)
    for key in [key for key in found.counts if key.startswith("conflicting")]:
        kept = "The first, or the more specific one, is kept"
        yield Finding(key, found.counts[key], found.examples[key][:3], kept)
    if "quotes" in found.notes:
        examples = list(dict.fromkeys(found.examples["quotes"]))
        yield Finding("names in quotes", len(examples), examples[:3], "The quotes are removed")


def _of_names(names: Vocabulary) -> Iterator[Finding]:
    array = names.name_array
    of = f"names of {'entities' if names.kind == 'entity' else 'relations'}"
    for what, pattern in (
        ("in quotes", r'^["\'].*["\']$'),
        ("with spaces at their ends", r"^\s|\s$|^\x{a0}|\x{a0}$"),
        ("with non-breaking or invisible characters", r"[\x{a0}\x{200b}-\x{200d}\x{2060}\x{feff}]"),
    ):
        hits = array.filter(pc.match_substring_regex(array, pattern))
        mend = "clew data FILE removes quotes" if "quotes" in what else f"{CLEANED_BY} removes them"
        yield Finding(f"{of} {what}", len(hits), hits[:3].to_pylist(), mend)
    unusual = array.filter(pc.match_substring_regex(array, r"[^\x00-\x7f]")).to_pylist()
    if unusual:
        composed = set(array.to_pylist())
        same = [
            name for name in unusual if clean_name(name) != name and clean_name(name) in composed
        ]
        what = f"{of} that are another name in another Unicode form"
        yield Finding(what, len(same), same[:3], f"{CLEANED_BY} makes one of them")
    yield _same(pc.utf8_lower(array), array, f"{of} that differ by case only", "Rename one of them")
    if names.kind == "entity" and names.label_array is not None:
        labels = names.label_array
        what = "entities of one name"
        yield _same(labels, array, what, "Their identifiers keep them apart")


def _same(keys: pa.Array, names: pa.Array, what: str, mend: str) -> Finding:
    """Return the names whose key another name has too."""
    codes = keys.dictionary_encode().indices
    known = np.flatnonzero(codes.is_valid().to_numpy(zero_copy_only=False))
    numbers = codes.fill_null(0).to_numpy()[known]
    counts = np.bincount(numbers, minlength=1)
    rows = known[counts[numbers] > 1]
    rows = (
        rows[np.argsort(codes.take(pa.array(rows)).to_numpy(), kind="stable")]
        if len(rows)
        else rows
    )
    return Finding(what, len(rows), names.take(pa.array(rows[:3])).to_pylist(), mend)


def _of_triples(graph: KnowledgeGraph) -> Iterator[Finding]:
    triples = np.concatenate([graph.split(split) for split in SPLITS])
    degrees = np.bincount(triples[:, [0, 2]].ravel(), minlength=graph.num_entities)
    uses = np.bincount(triples[:, 1], minlength=graph.num_relations)
    first = np.array([graph.split(split)[0] for split in SPLITS if len(graph.split(split))])
    alone = (uses[first[:, 1]] == 1) & (degrees[first[:, [0, 2]]] == 1).all(axis=1)
    if len(triples) > len(first):
        yield _facts(graph, first[alone], "first lines that are no fact but names of columns",
                     "--header, or remove the line")  # fmt: skip
    numbers = [len(np.unique(triples[:, column])) for column in range(3)]
    if len(triples) >= LEAST_FACTS and 2 * min(numbers[0], numbers[2]) < numbers[1]:
        order = "head,tail,relation" if numbers[2] < numbers[0] else "relation,head,tail"
        relations = graph.relations.name_array[:3].to_pylist()
        yield Finding("relations, more than heads or tails: columns in another order", numbers[1],
                      relations, f"If so, --columns {order}")  # fmt: skip
    elif len(triples) >= LEAST_FACTS and graph.num_relations > graph.num_entities:
        relations = graph.relations.name_array[:3].to_pylist()
        yield Finding("relations, more than entities", numbers[1], relations, "Check --columns")
    repeated = pd.Series(as_keys(triples)).duplicated().to_numpy()
    yield _facts(graph, triples[repeated], "facts that are there twice",
                 "clew data FILE keeps one in each split")  # fmt: skip
    yield _facts(graph, triples[triples[:, 0] == triples[:, 2]], "facts of an entity with itself",
                 "Leave them out with data.exclude if they mean nothing")  # fmt: skip
    held_out = np.concatenate([graph.valid, graph.test])
    unseen = np.setdiff1d(held_out[:, [0, 2]], graph.train[:, [0, 2]])
    yield _named(graph.entities, unseen, "entities in no training triple", "Split again")
    unseen = np.setdiff1d(held_out[:, 1], graph.train[:, 1])
    yield _named(graph.relations, unseen, "relations in no training triple", "Split again")
    hubs = np.flatnonzero(degrees > max(HUB_SHARE * len(triples), LEAST_FACTS))
    hubs = hubs[np.argsort(-degrees[hubs])]
    yield _named(graph.entities, hubs, "entities in a tenth of all facts",
                 "Check that they are no placeholder")  # fmt: skip


def _of_pairs(graph: KnowledgeGraph, pairs: Sequence[RelationPair]) -> Iterator[Finding]:
    name = graph.relations.name
    for kind in ("inverse", "duplicate"):
        some = [pair for pair in pairs if pair.kind == kind and pair.first != pair.second]
        shown = [
            f"{name(p.first)} / {name(p.second)} ({p.share:.0%} of {p.common:,})" for p in some[:3]
        ]
        yield Finding(f"pairs of relations that are {kind}s", len(some), shown,
                      "Keep one of them, as FB15k-237 does")  # fmt: skip
    same = [name(pair.first) for pair in pairs if pair.kind == "symmetric"]
    yield Finding(
        "symmetric relations", len(same), same[:3], "A split keeps both directions together"
    )
    leaked = graph.test[is_leaked(graph, graph.test, pairs)]
    yield _facts(graph, leaked, "test triples whose inverse or duplicate is in training",
                 "Compare test/mrr with test/mrr_not_leaked")  # fmt: skip


def _named(names: Vocabulary, ids: np.ndarray, what: str, mend: str) -> Finding:
    return Finding(what, len(ids), [names.label(i) for i in ids[:3]], mend)


def _facts(graph: KnowledgeGraph, rows: np.ndarray, what: str, mend: str) -> Finding:
    shown = [
        " ".join((graph.entities.name(h), graph.relations.name(r), graph.entities.name(t)))
        for h, r, t in rows[:3]
    ]
    return Finding(what, len(rows), shown, mend)
