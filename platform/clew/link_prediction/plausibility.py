"""What in a graph looks wrong: a report to read before training."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import quoted
from clew.link_prediction.denials import NO_VALUE
from clew.link_prediction.imports import INVISIBLE, Imported, clean_name
from clew.link_prediction.leakage import Leakage, RelationPair, find_leakage, is_leaked
from clew.link_prediction.triples import SPLITS, KnowledgeGraph, no_triples, row_blocks
from clew.link_prediction.vocabulary import Vocabulary

HUB_SHARE, LEAST_FACTS = 0.1, 20
CLEANED_BY = "--clean"
SPELLED = r"^(?:https?://\S*[/#])?([A-Za-z]+)[:_](\d+)$"
"""Forms of an identifier: `GO:0001`, `GO_0001`, and an address that ends with it."""


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
        such = f", such as {shown}" if shown else ""
        return f"{self.what}: {self.count:,}{such}. {self.mend}"


@dataclass(frozen=True)
class Report:
    """All findings in a graph."""

    findings: list[Finding]
    pairs: list[dict[str, object]]
    """The pairs of relations, as in `Leakage`, with names."""

    def write(self, path: Path, **more: object) -> None:
        content = more | asdict(self)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report(
    graph: KnowledgeGraph, imported: Imported | None = None, leakage: Leakage | None = None
) -> Report:
    """Look for what is wrong in a graph, and in the files that it was read from."""
    leakage = leakage or find_leakage(graph)
    found = [*of_files(imported)] if imported else []
    found += [*_of_names(graph.entities), *_of_names(graph.relations)]
    found += [*_of_triples(graph, leakage), *_of_pairs(graph, leakage.pairs)]
    name = graph.relations.name
    pairs = [asdict(p) | {"first": name(p.first), "second": name(p.second)} for p in leakage.pairs]
    return Report([finding for finding in found if finding.count], pairs)


def of_files(found: Imported) -> Iterator[Finding]:
    mends = {
        "denied": "Dropped, or with --negated relation in relations of their own",
        "both stated and denied": "They are kept, as other rows state them",
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
    no_value, removed = "|".join(filter(None, NO_VALUE)), f"{CLEANED_BY} removes them"
    for what, pattern, mend in (
        ("in quotes", r'^["\'].*["\']$', "clew data removes double ones"),
        ("with spaces at their ends", r"^\s|\s$|^\x{a0}|\x{a0}$", removed),
        ("with non-breaking or invisible characters", rf"[\x{{a0}}{INVISIBLE}]", removed),
        ("that can mean no value", f"(?i)^({no_value})$", "If so, remove their lines"),
    ):
        hits = array.filter(pc.match_substring_regex(array, pattern))
        yield Finding(f"{of} {what}", len(hits), hits[:3].to_pylist(), mend)
    rests = pc.replace_substring_regex(array, r"^#\s*", "")
    hits = array.filter(pc.and_(pc.is_in(rests, array), pc.not_equal(rests, array)))
    mend = "Remove these lines, if they are comments"
    yield Finding(f"{of} that are another one after #", len(hits), hits[:3].to_pylist(), mend)
    unusual = array.filter(pc.match_substring_regex(array, r"[^\x00-\x7f]")).to_pylist()
    others, keys = array, array
    if unusual:
        composed = set(array.to_pylist())
        same = [
            name for name in unusual if clean_name(name) != name and clean_name(name) in composed
        ]
        what = f"{of} that are another name in another Unicode form"
        yield Finding(what, len(same), same[:3], f"{CLEANED_BY} makes one of them")
        others = array.filter(pc.invert(pc.is_in(array, pa.array(same, pa.string()))))
        keys = pc.utf8_normalize(others, "NFKC")  # the micro sign and the Greek letter are one
    what = f"{of} that differ by case, or forms of one letter, only"
    yield _same(pc.utf8_lower(keys), others, what, "Rename one of them")
    for what, pattern, form in (
        ("number, with and without .0", r"^(\d+)\.0$", r"\1"),
        ("identifier, as an address or with another sign", SPELLED, r"\1:\2"),
    ):
        keys = pc.replace_substring_regex(array, pattern, form)
        yield _same(keys, array, f"{of} that are one {what}", "Write it in one way")
    if names.kind == "entity" and names.label_array is not None:
        mend = "Their identifiers keep them apart"
        yield _same(names.label_array, array, "entities of one name", mend)


def _same(keys: pa.Array, names: pa.Array, what: str, mend: str) -> Finding:
    """Return the names whose key another name has too."""
    codes = keys.dictionary_encode().indices.to_pandas()
    codes = codes[codes.notna() & codes.duplicated(keep=False)].sort_values(kind="stable")
    return Finding(what, len(codes), names.take(pa.array(codes.index[:3])).to_pylist(), mend)


def _of_triples(graph: KnowledgeGraph, leakage: Leakage) -> Iterator[Finding]:
    counts = [
        np.zeros(size, np.int64)
        for size in (graph.num_entities, graph.num_relations, graph.num_entities)
    ]
    loops = [no_triples()]
    for triples in (graph.split(split) for split in SPLITS):
        for block in row_blocks(len(triples)):
            rows = triples[block]
            for number, column in enumerate(rows.T):
                counts[number] += np.bincount(column, minlength=len(counts[number]))
            loops.append(rows[rows[:, 0] == rows[:, 2]])
    heads, uses, tails = counts
    degrees, num_triples = heads + tails, int(uses.sum())
    first = np.array([graph.split(split)[0] for split in SPLITS if len(graph.split(split))])
    alone = (uses[first[:, 1]] == 1) & (degrees[first[:, [0, 2]]] == 1).all(axis=1)
    if num_triples > len(first):
        yield _facts(graph, first[alone], "first lines that seem to name columns",
                     "--header, or remove the line")  # fmt: skip
    num_heads, num_relations, num_tails = (int((count > 0).sum()) for count in counts)
    relations = graph.relations.name_array[:3].to_pylist()
    if num_triples >= LEAST_FACTS and 2 * min(num_heads, num_tails) < num_relations:
        order = "head,tail,relation" if num_tails < num_heads else "relation,head,tail"
        yield Finding("relations, more than heads or tails: columns in another order",
                      num_relations, relations, f"If so, --columns {order}")  # fmt: skip
    elif num_triples >= LEAST_FACTS and graph.num_relations > graph.num_entities:
        yield Finding("relations, more than entities", num_relations, relations, "Check --columns")
    yield _facts(graph, leakage.repeated, "facts that occur twice",
                 "clew data FILE keeps one in each split", leakage.num_repeated)  # fmt: skip
    yield _facts(graph, np.concatenate(loops), "facts of an entity with itself",
                 "Leave them out with data.exclude if they mean nothing")  # fmt: skip
    held_out = np.concatenate([graph.valid, graph.test])
    for names, used, ids in (
        (graph.entities, degrees, held_out[:, [0, 2]].ravel()),
        (graph.relations, uses, held_out[:, 1]),
    ):
        counted = np.bincount(ids, minlength=len(names))
        unseen = np.flatnonzero((counted > 0) & (counted == used))
        what = "entities" if names is graph.entities else "relations"
        yield _named(names, unseen, f"{what} in no training triple", "Split again")
    hubs = np.flatnonzero(degrees > max(HUB_SHARE * num_triples, LEAST_FACTS))
    hubs = hubs[np.argsort(-degrees[hubs])]
    yield _named(graph.entities, hubs, "entities in a tenth of all facts",
                 "Check that none is a placeholder")  # fmt: skip


def _of_pairs(graph: KnowledgeGraph, pairs: Sequence[RelationPair]) -> Iterator[Finding]:
    name = graph.relations.name
    for kind in ("inverse", "duplicate"):
        some = [pair for pair in pairs if pair.kind == kind and pair.first != pair.second]
        shown = [
            f"{name(p.first)} / {name(p.second)} ({p.common:,} in common, {p.share:.0%} of the "
            "larger one's)"
            for p in some[:3]
        ]
        yield Finding(f"pairs of relations that are {kind}s", len(some), shown,
                      "Keep one of them, as FB15k-237 does")  # fmt: skip
    symmetric = [pair for pair in pairs if pair.kind == "symmetric"]
    others = [pair for pair in pairs if pair.kind != "symmetric"]
    mirrored = is_leaked(graph, graph.test, symmetric)
    leaked = mirrored | is_leaked(graph, graph.test, others)
    said = f"Test triples with their mirror in training: {mirrored.sum():,} of {len(leaked):,}"
    yield Finding("symmetric relations", len(symmetric),
                  [name(pair.first) for pair in symmetric[:3]], said)  # fmt: skip
    what = "test triples whose inverse, mirror or duplicate is in training"
    yield _facts(graph, graph.test[leaked], what, "Compare test/mrr with test/mrr_not_leaked")


def _named(names: Vocabulary, ids: np.ndarray, what: str, mend: str) -> Finding:
    return Finding(what, len(ids), [names.label(i) for i in ids[:3]], mend)


def _facts(
    graph: KnowledgeGraph, rows: np.ndarray, what: str, mend: str, number: int | None = None
) -> Finding:
    shown = [
        " ".join((graph.entities.name(h), graph.relations.name(r), graph.entities.name(t)))
        for h, r, t in rows[:3]
    ]
    return Finding(what, len(rows) if number is None else number, shown, mend)
