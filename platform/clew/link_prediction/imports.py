"""Makes one graph of files in published formats: names, kinds, splits, and what was noticed.

Where several sources describe an entity, what is known is never lost to a blank or a vaguer word.
Files whose names say `train`, `valid` or `test` keep their splits; other facts are split.
"""

import json
import math
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from clew.biolink import DENIED, PREFIX, most_specific, terms
from clew.config.data import ImportSettings
from clew.errors import ConfigError, DataError, counted, described, printable, quoted
from clew.files import replacing
from clew.input_files import archive_of, check_is_file, unpacked_name
from clew.link_prediction.dictionaries import fields_to_ids, may_be_ids, read_edge_map
from clew.link_prediction.formats import (
    FLAGS,
    LIST_SEPARATOR,
    MEANINGS,
    QUALIFIER_ENDS,
    QUALIFIERS,
    Part,
    Texts,
    read_file,
    sniff,
)
from clew.link_prediction.triples import (
    SPLITS,
    KnowledgeGraph,
    Split,
    Triples,
    no_triples,
    row_blocks,
)
from clew.link_prediction.vocabulary import Kind, Vocabulary

SPLIT_NAME = re.compile(r"(?:^|[^a-z])(train|valid|val|dev|test)(?:ing|ation)?(?:[^a-z]|$)")
SPLIT_OF: dict[str, Split] = {
    "train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test",
}  # fmt: skip
EDGE_MAPS = ("edge_map.json", "relations.en.json")
IGNORED = re.compile(r"(?i)readme|licen[cs]e|\.(md|json|pdf|py|html|yaml|yml|log|png)$|^\.")
TRUE, FALSE = ("true", "t", "yes", "y", "1", "on"), ("false", "f", "no", "n", "0", "off")
NO_VALUE = ("", "none", "null", "nan", "na", "n/a", "-", "unknown")
INVISIBLE = re.compile("[\u200b\u200c\u200d\u2060\ufeff]")
CONTROLS = r"[\x00-\x1f\x7f]"


NO_GRAPH = KnowledgeGraph(
    "", Vocabulary.from_names("entity", []), Vocabulary.from_names("relation", []),
    no_triples(), no_triples(), no_triples(),
)  # fmt: skip


@dataclass
class Imported:
    """A graph, and what was noticed while it was read."""

    graph: KnowledgeGraph = NO_GRAPH
    read: dict[str, str] = field(default_factory=dict)
    """File to what it was taken for."""
    notes: dict[str, str] = field(default_factory=dict)
    """What became of facts and columns, by a word for it."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of edges, of denied and deprecated ones, of repeated facts, of conflicts."""
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, key: str, text: str) -> None:
        if text not in self.notes.get(key, ""):
            self.notes[key] = "; ".join(filter(None, [self.notes.get(key, ""), text]))


def import_graph(
    name: str,
    paths: Sequence[Path],
    settings: ImportSettings,
    splits: Mapping[Path, Split] | None = None,
) -> Imported:
    """Read files and folders as one graph.

    Args:
        name: Name of the graph.
        paths: Files, folders and zip files.
        settings: How to read and split them.
        splits: Split of each file, where its name should not say it.

    Raises:
        ConfigError: If the shares of the splits leave no training triples.
        DataError: If a file is malformed, or there are no facts.
    """
    if settings.valid_fraction + settings.test_fraction >= 1:
        raise ConfigError(
            f"valid_fraction {settings.valid_fraction} + test_fraction {settings.test_fraction} "
            "leave nothing to train on; their sum must be below 1"
        )
    files = [file for path in paths for file in _files(path)]
    edge_maps = [file for file in files if file.name in EDGE_MAPS]
    found = Imported()
    parts = _read_parts([file for file in files if file not in edge_maps], settings, found)
    if not any(part.holds == "facts" for part in parts):
        held = ", ".join(sorted({part.holds for part in parts})) or "no table"
        raise DataError(f"{paths[0]}: contains no edge ({held}); expected a file of facts")
    columns, given, times = _facts(parts, settings, splits or {}, found)
    entities, relations, triples = _named(columns, settings, found)
    relations = _with_labels(relations, [p for p in parts if p.holds in ("relations", "nodes")])
    for path in edge_maps:
        relations = read_edge_map(path, relations)
    entities = _described(entities, [p for p in parts if p.holds in ("facts", "nodes")], found)
    chosen = np.maximum(given, 0) if splits else _split(triples, given, times, settings, found)
    rows = {split: _distinct(triples[chosen == i], found) for i, split in enumerate(SPLITS)}
    return replace(found, graph=KnowledgeGraph(name, entities, relations, **rows))


def write_data_set(found: Imported, output_dir: Path) -> None:
    """Write the platform's own folder: triples of each split, names of entities and relations."""
    graph = found.graph
    with replacing(output_dir) as folder:
        folder.mkdir(parents=True)
        for split in SPLITS:
            if len(rows := graph.split(split)):
                with (folder / f"{split}.txt").open("wb") as file:
                    for block in row_blocks(len(rows)):
                        file.write(_lines(graph, rows[block]))
        with (folder / "entity_names.tsv").open("w", encoding="utf-8") as names:
            empty = [""] * graph.num_entities
            kinds, synonyms = (
                empty if texts is None else [text or "" for text in texts.to_pylist()]
                for texts in (graph.entities.category_array, graph.entities.synonym_array)
            )
            named = graph.entities.named(np.arange(graph.num_entities))
            for (entity, label), kind, other in zip(named, kinds, synonyms, strict=True):
                names.write(f"{entity}\t{label}\t{kind}\t{other}\n")
        labels = dict(graph.relations.named(np.arange(graph.num_relations)))
        text = json.dumps(labels, indent=1, ensure_ascii=False) + "\n"
        (folder / "edge_map.json").write_text(text, encoding="utf-8")


def _lines(graph: KnowledgeGraph, rows: Triples) -> bytes:
    columns = [
        names.name_array.take(pa.array(rows[:, column]))
        for column, names in enumerate((graph.entities, graph.relations, graph.entities))
    ]
    lines = pc.binary_join_element_wise(*columns, "\t").to_pylist()
    return "".join(f"{line}\n" for line in lines).encode()


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a folder or zip file that can hold a table."""
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.is_file() and (inner.name in EDGE_MAPS or not IGNORED.search(inner.name)):
                yield from _files(inner)
    elif path.suffix == ".zip" and path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                members = sorted(n for n in archive.namelist() if not n.endswith("/"))
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: not a zip file ({described(error)})") from None
        yield from (path / name for name in members if not IGNORED.search(Path(name).name))
    else:
        if archive_of(path) is None:
            check_is_file(path)
        yield path


def _read_parts(files: list[Path], settings: ImportSettings, found: Imported) -> list[Part]:
    """Read all files; a file with only a header names the columns of those it belongs to."""
    headers: dict[str, tuple[str, ...]] = {}
    for path in files:
        stem = unpacked_name(path).partition(".")[0]
        if "header" in stem.lower() and not (form := sniff(path, header=True)).has_rows:
            headers[re.sub(r"(?i)[-_]?headers?", "", stem)] = form.header
            found.read[str(path)] = "names of columns"
    parts: list[Part] = []
    for path in files:
        if str(path) in found.read:
            continue
        stem = unpacked_name(path).partition(".")[0]
        header = headers.get(stem) or headers.get(re.sub(r"[-_]?(part)?[-_]?\d+$", "", stem), ())
        read = read_file(path, settings.columns, settings.header, header)
        for part in read:
            said = f"{part.taken_for}: {counted(part.num_rows, 'row')}"
            found.read[str(path)] = "; ".join(filter(None, [found.read.get(str(path)), said]))
            for key, text in part.notes.items():
                found.note(key, text)
                found.examples.setdefault(key, []).extend(part.examples.get(key, []))
        parts += read
    return parts


def _facts(
    parts: Sequence[Part],
    settings: ImportSettings,
    splits: Mapping[Path, Split],
    found: Imported,
) -> tuple[list[pa.ChunkedArray], np.ndarray, np.ndarray]:
    """Return head, relation and tail of all facts, their split (-1 for none) and their time."""
    dictionaries: dict[str, pa.StringArray] = {
        part.holds: part.columns["name"].cast(pa.string()) for part in parts if "ids" in part.holds
    }
    for role in ("source", "group"):
        _tell_apart(parts, role)
    columns: dict[str, list[Texts]] = {"head": [], "relation": [], "tail": []}
    given, times = [], []
    for part in (part for part in parts if part.holds == "facts"):
        _replace_ids(part, dictionaries)
        _check_names(part)
        _use_flags(part, settings, found)
        _use_qualifiers(part, settings, found)
        for role, column in columns.items():
            column.append(part.columns[role])
        given.append(_splits_of(part, splits))
        times.append(_times_of(part, settings))
    return (
        [pa.chunked_array(c) for c in columns.values()],
        np.concatenate(given),
        np.concatenate(times),
    )


def _joined(columns: Sequence[Texts], name: Callable[[Sequence[str]], str]) -> Texts:
    """Return one text for the values of several columns; `name` is called once for each kind."""
    keys = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        keys = keys * max(len(column.dictionary), 1) + column.indices.to_numpy()
        keys = pd.factorize(keys)[0]  # numbers by first occurrence
    codes = keys
    first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
    rows = [column.take(pa.array(first)).to_pylist() for column in columns]
    texts = pa.array(
        [name(row) for row in zip(*rows, strict=True)], pa.string()
    ).dictionary_encode()
    return texts.take(pa.array(codes))


def _tell_apart(parts: Sequence[Part], by: str) -> None:
    """Prefix identifiers with their source, if two sources use the same identifier.

    `by` is `source` (PrimeKG's `x_source`) or `group` (Neo4j's `:ID(Group)`).
    """
    places = []
    for part in parts:
        for end in ("head", "tail", "id"):
            if by == "group" and part.groups.get(end) and end in part.columns:
                group = pa.array([part.groups[end]]).dictionary_encode()
                places.append((part, end, group.take(pa.array(np.zeros(part.num_rows, np.int32)))))
            name = "source" if end == "id" else f"{end}_source"
            if by == "source" and name in part.columns and end in part.columns:
                places.append((part, end, part.columns[name]))
    pairs = {
        pair
        for part, end, sources in places
        for pair in _joined([part.columns[end], sources], "\t".join).dictionary.to_pylist()
    }
    if len({pair.partition("\t")[0] for pair in pairs}) < len(pairs):
        for part, end, sources in places:
            part.columns[end] = _joined([sources, part.columns[end]], ":".join)


def _replace_ids(part: Part, dictionaries: Mapping[str, pa.Array]) -> None:
    """Replace ids by the names that a dictionary in another file gives them."""
    for role in ("head", "relation", "tail"):
        kind: Kind = "relation" if role == "relation" else "entity"
        names = dictionaries.get(f"{kind} ids")
        if names is None:
            continue
        column = part.columns[role]
        known = Vocabulary(kind, names, fields_may_be_ids=may_be_ids(names))
        if part.are_ids:
            known = replace(known, name_array=pa.array([""] * len(names)), fields_may_be_ids=True)
        ids = fields_to_ids(column.dictionary, known)
        if (unknown := np.flatnonzero(ids < 0)).size:
            row = int(np.argmax(np.isin(column.indices.to_numpy(), unknown)))
            name = column[row].as_py()
            said = (
                f"id {quoted(name)} has no name"
                if part.are_ids
                else known.unknown_name_message(name)
            )
            raise DataError(f"{part.path}, line {part.first_line + row}: {said}")
        part.columns[role] = Texts.from_arrays(column.indices, names.take(pa.array(ids)))


def _check_names(part: Part) -> None:
    """Refuse what cannot be a name: nothing, tabs, line ends."""
    for role in ("head", "relation", "tail"):
        column = part.columns[role]
        bad = pc.or_(
            pc.equal(column.dictionary, ""), pc.match_substring_regex(column.dictionary, CONTROLS)
        ).to_numpy(zero_copy_only=False)
        if bad.any() and (rows := np.flatnonzero(bad[column.indices.to_numpy()])).size:
            row = int(rows[0])
            raise DataError(
                f"{part.path}, line {part.first_line + row}: {role} is "
                f"{quoted(column[row].as_py())}, which is not a name; expected text without tabs "
                "and line ends"
            )


def _kept(part: Part, is_kept: np.ndarray) -> None:
    mask = pa.array(is_kept)
    part.columns = {role: column.filter(mask) for role, column in part.columns.items()}


def _use_flags(part: Part, settings: ImportSettings, found: Imported) -> None:
    """Drop edges that are denied or not valid any more, or give denied ones their own relation."""
    found.counts["edges"] += part.num_rows
    flags = {flag: _flags(part, flag) for flag in FLAGS if flag in part.columns}
    if "stated" in part.columns:
        stated = part.columns["stated"]
        flags["negated"] = np.isin(
            stated.indices, np.flatnonzero(pc.not_equal(stated.dictionary, "1"))
        )
    for flag, word in (("deprecated", "deprecated"), ("negated", "denied")):
        if flag not in flags or not flags[flag].any():
            continue
        found.counts[word] += int(flags[flag].sum())
        rows = np.flatnonzero(flags[flag])[:3]
        found.examples.setdefault(word, []).extend(_shown(part, row) for row in rows)
        if word == "denied" and settings.negated == "relation":
            codes = Texts.from_arrays(
                pa.array(flags[flag].astype(np.int32)), pa.array(["", DENIED])
            )
            relations = [part.columns["relation"], codes]
            part.columns["relation"] = _joined(relations, lambda row: ";".join(filter(None, row)))
        else:
            _kept(part, ~flags[flag])
            flags = {name: values[~flags[flag]] for name, values in flags.items()}


def _shown(part: Part, row: int) -> str:
    return " ".join(
        str(part.columns[role][int(row)].as_py()) for role in ("head", "relation", "tail")
    )


def _flags(part: Part, flag: str) -> np.ndarray:
    """Return which rows a column of flags is true in; no value is false."""
    column = part.columns[flag]
    texts = [text.strip().lower() for text in column.dictionary.to_pylist()]
    codes = column.indices.to_numpy()
    wrong = [i for i, text in enumerate(texts) if text not in (*TRUE, *FALSE, *NO_VALUE)]
    if wrong and (rows := np.flatnonzero(np.isin(codes, wrong))).size:
        row = int(rows[0])
        raise DataError(
            f"{part.path}, line {part.first_line + row}: {flag} is {quoted(column[row].as_py())}; "
            "expected true or false"
        )
    found: np.ndarray = np.array([text in TRUE for text in texts], bool)[codes]
    return found


def _use_qualifiers(part: Part, settings: ImportSettings, found: Imported) -> None:
    """Make qualifiers part of the relation, or count them and the other columns with a meaning."""
    names = sorted(n for n in part.columns if n == QUALIFIERS or n.endswith(QUALIFIER_ENDS))
    if settings.qualifiers and names:
        columns = [part.columns["relation"], *(part.columns[name] for name in names)]
        part.columns["relation"] = _joined(
            columns,
            lambda row: ";".join(
                [row[0], *(f"{k}={v}" for k, v in zip(names, row[1:], strict=True) if v)]
            ),
        )
        names = []
    for name in (*names, *(name for name in MEANINGS if name in part.columns)):
        counts = pc.value_counts(part.columns[name].cast(pa.string())).to_pylist()
        values = Counter({c["values"]: c["counts"] for c in counts if c["values"]})
        if values:
            listed = ", ".join(f"{n:,} {quoted(v)[1:-1]}" for v, n in values.most_common(5))
            end = "" if name in MEANINGS else "; --qualifiers makes it part of the relation"
            more = ", …" * (len(values) > 5)
            found.note(name, f"not used, on {values.total():,} edges: {listed}{more}{end}")


def _splits_of(part: Part, splits: Mapping[Path, Split]) -> np.ndarray:
    """Return the number of each fact's split; -1 if nothing says it."""
    if "split" in part.columns:
        column = part.columns["split"]
        known = [SPLIT_OF.get(text.strip().lower(), "") for text in column.dictionary.to_pylist()]
        numbers = np.array([SPLITS.index(s) if s else -1 for s in known], np.int8)
        return numbers[column.indices.to_numpy()] if len(numbers) else np.empty(0, np.int8)
    match = SPLIT_NAME.search(unpacked_name(part.path).lower())
    split = splits.get(part.path) or (SPLIT_OF[match[1]] if match else None)
    return np.full(part.num_rows, SPLITS.index(split) if split else -1, np.int8)


def _times_of(part: Part, settings: ImportSettings) -> np.ndarray:
    """Return a number for the time of each fact."""
    if settings.split != "time":
        return np.zeros(part.num_rows)
    if "time" not in part.columns:
        raise DataError(
            f"{part.path}: no column of times for a split by time; name it, for example --columns "
            "head,relation,tail,time"
        )
    column = part.columns["time"]
    texts: pd.Series[Any] = pd.Series(column.dictionary.to_pylist(), dtype=object)
    times = pd.to_datetime(texts, errors="coerce", format="mixed")
    numbers = pd.to_numeric(texts, errors="coerce")
    values = numbers if numbers.notna().all() else times.astype("int64").where(times.notna())
    if values.isna().any():
        text = column.dictionary[int(values.isna().argmax())].as_py()
        raise DataError(f"{part.path}: the time {quoted(text)} is neither a number nor a date")
    found: np.ndarray = values.to_numpy(float)[column.indices.to_numpy()]
    return found


def _named(
    columns: Sequence[pa.ChunkedArray], settings: ImportSettings, found: Imported
) -> tuple[Vocabulary, Vocabulary, Triples]:
    """Return names in code point order, and triples of their ids."""
    heads, relations, tails = columns
    size = len(heads)
    if not size:
        raise DataError(
            f"contain no edge that is neither denied nor deprecated ({found.counts['edges']} edges "
            "in all); expected at least one"
        )
    ends = pa.chunked_array([*heads.chunks, *tails.chunks])
    entities, ids = _vocabulary("entity", ends, settings, found)
    kinds, relation_ids = _vocabulary("relation", relations, settings, found)
    return entities, kinds, np.stack([ids[:size], relation_ids, ids[size:]], axis=1)


def _vocabulary(
    kind: Kind, column: pa.ChunkedArray, settings: ImportSettings, found: Imported
) -> tuple[Vocabulary, np.ndarray]:
    chunks = column.unify_dictionaries().chunks
    values, codes = chunks[0].dictionary, np.concatenate([c.indices.to_numpy() for c in chunks])
    if settings.clean:
        cleaned = [clean_name(text) for text in values.to_pylist()]
        changed = pc.not_equal(values, pa.array(cleaned))
        if number := pc.sum(changed).as_py():
            found.counts["cleaned"] += number
            found.examples.setdefault("cleaned", []).extend(values.filter(changed)[:3].to_pylist())
        values = pa.array(cleaned, pa.string())
    used = np.zeros(len(values), bool)
    used[codes] = True
    names = pc.unique(values.filter(pa.array(used)))
    names = names.take(pc.sort_indices(names))
    positions = pc.index_in(values, value_set=names).fill_null(-1).to_numpy().astype(np.int32)
    return Vocabulary(kind, names), positions[codes]


def clean_name(text: str) -> str:
    """Return a name in Unicode's composed form, without spaces at its ends and invisible ones."""
    return " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", text)).split()) or text


def _with_labels(relations: Vocabulary, parts: Sequence[Part]) -> Vocabulary:
    """Label relations as a file says, or with readable words of their names."""
    labels = dict(zip(relations, map(relation_label, relations), strict=True))
    for part in parts:
        if "name" in part.columns:
            names = zip(
                part.columns["id"].to_pylist(), part.columns["name"].to_pylist(), strict=True
            )
            labels |= {key: name for key, name in names if key in labels and name}
    return relations.with_labels(pa.array(list(labels.values()), pa.string()))


def relation_label(relation: str) -> str:
    """Return a readable predicate, such as `affects (object aspect qualifier: activity)`."""
    predicate, *qualifiers = relation.split(";")
    words = predicate.removeprefix(PREFIX).replace("_", " ")
    qualifiers = ["denied" if part == DENIED else part for part in qualifiers]
    parts = [part.replace(PREFIX, "").replace("_", " ").replace("=", ": ") for part in qualifiers]
    return f"{words} ({', '.join(parts)})" if parts else words


def _described(entities: Vocabulary, parts: Sequence[Part], found: Imported) -> Vocabulary:
    """Add what the parts say about entities: names, kinds and synonyms."""
    known: dict[str, list[str]] = {}
    for role in ("name", "kind", "synonyms"):
        texts = [""] * len(entities)
        for part in parts:
            for end in ("id", "head", "tail"):
                column = part.columns.get(role if end == "id" else f"{end}_{role}")
                if column is not None and end in part.columns:
                    ids = entities.find(part.columns[end].dictionary)[part.columns[end].indices]
                    _add(texts, role, (ids, column), entities, found)
        known[role] = texts
    missing = sum(not text for text in known["name"]) if any(known["name"]) else 0
    if missing:
        found.note("no name", f"{missing:,} entities; their identifiers are shown")
    synonyms = [_synonyms(*pair) for pair in zip(known["synonyms"], known["name"], strict=True)]
    label, category, synonym = (
        pa.array([text or None for text in texts], pa.string()) if any(texts) else None
        for texts in (known["name"], known["kind"], synonyms)
    )
    return replace(entities, label_array=label, category_array=category, synonym_array=synonym)


def _add(
    texts: list[str],
    role: str,
    said_of: tuple[np.ndarray, Texts],
    entities: Vocabulary,
    found: Imported,
) -> None:
    """Add what a column says to what is known; a blank or a vaguer word replaces nothing."""
    ids, column = said_of
    said = column.dictionary.to_pylist()
    changes: dict[str, Callable[[str], str]] = {"kind": _kind, "name": _one_line, "synonyms": str}
    change = changes[role]
    said = [change(text) for text in said]
    keys = ids.astype(np.int64) * max(len(said), 1) + column.indices.to_numpy()
    for key in pd.unique(keys).tolist():
        entity, text = key // len(said), said[key % len(said)]
        if entity < 0 or not text or text == (old := texts[entity]):
            continue
        if role == "synonyms":
            texts[entity] = f"{old}{LIST_SEPARATOR * bool(old)}{text}"
            continue
        vague, was_vague = (_is_vague(role, t, entities.name(entity)) for t in (text, old))
        if not vague and not was_vague and text.casefold() != old.casefold():
            found.counts[f"conflicting {role}s"] += 1
            examples = found.examples.setdefault(f"conflicting {role}s", [])
            examples.append(f"{entities.name(entity)}: {old} / {text}")
        is_deeper = role == "kind" and _depth(text) > _depth(old)
        if is_deeper or (was_vague and not (vague and old)):
            texts[entity] = text


def _is_vague(role: str, text: str, identifier: str) -> bool:
    is_wide = role == "kind" and text in ("NamedThing", "Thing", "Entity")
    return text.lower() in NO_VALUE or text == identifier or is_wide


def _depth(kind: str) -> int:
    """Return the depth of a kind in Biolink; 0 if it is not in Biolink."""
    return terms().categories.get(kind, 0)


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


def _distinct(triples: Triples, found: Imported) -> Triples:
    """Return the rows without repeats, in their order."""
    is_repeated = pd.Series(as_keys(triples)).duplicated().to_numpy()
    found.counts["repeated"] += int(is_repeated.sum())
    return np.ascontiguousarray(triples[~is_repeated])


def as_keys(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row of ids, equal for equal rows and ordered as they are."""
    sizes = [int(column.max(initial=0)) + 1 for column in rows.T]
    if math.prod(sizes) > 2**63 - 1:
        ranks: np.ndarray = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return ranks
    keys = np.zeros(len(rows), np.int64)
    for column, size in zip(rows.T, sizes, strict=True):
        keys = keys * size + column
    return keys


def _split(
    triples: Triples,
    given: np.ndarray,
    times: np.ndarray,
    settings: ImportSettings,
    found: Imported,
) -> np.ndarray:
    """Return the number of each triple's split: the given one, or a share for validation and test.

    Triples between the same two entities, in either direction, stay in one split, so that no test
    triple is a reversed training triple. At random, every entity and relation stays in a training
    triple.
    """
    if (given > 0).any():
        if unsaid := int((given < 0).sum()):
            found.note("split", f"{unsaid:,} facts of files that do not say it are for training")
        given = np.maximum(given, 0)
        return given
    wanted = [
        round(share * len(triples)) for share in (settings.valid_fraction, settings.test_fraction)
    ]
    if settings.split == "time":
        order = np.argsort(times, kind="stable")
        chosen = np.zeros(len(triples), np.int8)
        chosen[order[len(order) - sum(wanted) :]] = 1
        chosen[order[len(order) - wanted[1] :]] = 2
        return chosen
    pair = pd.factorize(as_keys(np.sort(triples[:, [0, 2]], axis=1)))[0]
    shuffled = np.random.default_rng(settings.seed).permutation(int(pair.max()) + 1)
    order = np.argsort(shuffled[pair], kind="stable")  # rows of the same pair are neighbours
    rows = triples[order]
    is_needed = np.zeros(len(rows), bool)
    for names in (np.stack([rows[:, 0], rows[:, 2]], 1).reshape(-1), rows[:, 1]):
        is_needed[np.unique(names, return_index=True)[1] // (len(names) // len(rows))] = True
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    sizes = np.diff(starts, append=len(rows))
    free = np.flatnonzero(~np.logical_or.reduceat(is_needed, starts))
    if settings.split == "relation":  # the same share of each relation
        kinds = rows[starts[free], 1]
        by_kind = np.argsort(kinds, kind="stable")
        _, first, counts = np.unique(kinds[by_kind], return_index=True, return_counts=True)
        place = np.arange(len(free)) - np.repeat(first, counts)
        free = free[by_kind[np.argsort((place + 0.5) / np.repeat(counts, counts), kind="stable")]]
    filled = np.cumsum(sizes[free]) - sizes[free]
    group = np.zeros(len(starts), np.int8)
    group[free] = np.select([filled < wanted[0], filled < sum(wanted)], [1, 2], 0)
    chosen = np.zeros(len(rows), np.int8)
    chosen[order] = np.repeat(group, sizes)
    return chosen
