"""Makes one graph of files in published formats, by the rules of docs/data.md."""

import json
import re
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from clew.config.data import ImportSettings
from clew.errors import ConfigError, DataError, counted, printable, quoted, refusing
from clew.files import replacing
from clew.input_files import archive_of, check_is_file, unpacked_name
from clew.link_prediction.column_names import roles_of
from clew.link_prediction.denials import NEGATIVE_WORDS, says_negative, words_of
from clew.link_prediction.descriptions import Noticed, describe_names, read_edge_map, relation_label
from clew.link_prediction.facts import FileNames, facts_of, split_of
from clew.link_prediction.formats import Part, read_file
from clew.link_prediction.other_formats import RDF
from clew.link_prediction.tables import OneColumnError, Texts, single, sniff
from clew.link_prediction.triples import SPLITS, KnowledgeGraph, Split, Triples, as_keys, row_blocks
from clew.link_prediction.vocabulary import Kind, Vocabulary

EDGE_MAPS = ("edge_map.json", "relations.en.json")
IGNORED = re.compile(
    r"(?i)(?:^|[^a-z])(?:readme|licen[cs]e|glossary|entity2src)(?:[^a-z]|$)|^biokg\.metadata\.|"
    r"\.(md|pdf|py|ipynb|html|yaml|yml|log|png|npy|pth|pkl|pckl|del|sh|tar|tar\.[a-z0-9]+|tgz|tbz2?"
    r"|txz|7z|rar)$|^wikidata5m_text\.|^wordnet-mlj12-definitions\.|^stats?\.txt$|^\."
)
BESIDE_OPENKE = re.compile(r"(?i)(type_constrain|test2id_all|[1n]-[1n])\.txt")
"""Files that OpenKE makes of the facts in `train2id.txt` and `test2id.txt`."""
LAST_CHOICE = re.compile(r"(?i)\.(json|jsonld|rdf|owl|xml|n3)$")
"""Files that are read, or refused, only where a folder has no others: often they say no facts."""
LISTS = re.compile(r"(?i)(?:^|[^a-z])(entit(y|ies)|relations?|nodes?)(?:[^a-z]|$)")
FOLD = re.compile(r"(?i)(?:^|[^a-z])((?:fold|cv|split)[-_ ]?\d+)(?!\d)")
"""Word in the names of files or folders that hold the same facts, split in other ways."""
MAX_NAMED = 10
INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
"""Characters without a width, for a class of a regular expression."""


@dataclass
class Imported(Noticed):
    """A graph, and what was noticed while it was read."""

    graph: KnowledgeGraph = field(kw_only=True)


def import_graph(
    name: str,
    paths: Sequence[Path],
    settings: ImportSettings,
    splits: Mapping[Path, Split] | None = None,
) -> Imported:
    """Read files, folders and zip files as one graph; `splits`, if given, not names, say splits."""
    if settings.valid_fraction + settings.test_fraction >= 1:
        raise ConfigError(
            f"valid_fraction {settings.valid_fraction} + test_fraction {settings.test_fraction} "
            "leave nothing to train on; their sum must be below 1"
        )
    ignored: list[Path] = []
    files = [file for path in paths for file in _files(path, ignored)]
    edge_maps = [file for file in files if file.name in EDGE_MAPS]
    found = Noticed()
    if not_read := [path.name for path in ignored if path.name[0] != "."]:
        more = f", … ({len(not_read):,})" if len(not_read) > MAX_NAMED else ""
        found.note("files not read", ", ".join(map(printable, not_read[:MAX_NAMED])) + more)
    parts = _read_parts([file for file in files if file not in edge_maps], settings, found)
    if not any(part.holds == "facts" for part in parts):
        held = ", ".join(sorted({part.holds for part in parts})) or "no table"
        left = f"; not read: {found.notes['files not read']}" if not_read else ""
        raise DataError(
            f"{paths[0]}: no edge ({held}); expected facts; pairs: --columns head,tail{left}"
        )
    names = FileNames(splits, are_given=True) if splits else _file_names(parts, paths, found)
    columns, given, times, weights = facts_of(parts, settings, names, found)
    entities, relations, triples = _named(columns, settings, found)
    _find_contradictions((entities, relations, entities), triples, settings, found)
    relations = _with_labels(relations, [p for p in parts if p.holds in ("relations", "nodes")])
    for path in edge_maps:
        relations = read_edge_map(path, relations)
    entities = describe_names(entities, [p for p in parts if p.holds in ("facts", "nodes")], found)
    is_split = splits or (given > 0).any()
    chosen = np.maximum(given, 0) if is_split else _split(triples, times, settings)
    if not (chosen == 0).any():
        raise DataError(f"{paths[0]}: no fact is left for training; expected at least one")
    rows = [_distinct(triples[chosen == i], weights[chosen == i], found) for i in range(3)]
    used = rows[0][1] if settings.weights == "use" else None
    train, valid, test = (triples for triples, _ in rows)
    graph = KnowledgeGraph(name, entities, relations, train, valid, test, used)
    return Imported(**vars(found), graph=graph)


def write_data_set(found: Imported, output_dir: Path) -> None:
    """Write the platform's own folder: triples of each split, names of entities and relations."""
    graph = found.graph
    with replacing(output_dir) as folder:
        folder.mkdir(parents=True)
        for split in SPLITS:
            if len(rows := graph.split(split)):
                weights = graph.weights if split == "train" else None
                with (folder / f"{split}.txt").open("w", encoding="utf-8") as file:
                    for block in row_blocks(len(rows)):
                        some = None if weights is None else weights[block]
                        file.writelines(_lines(graph, rows[block], some))
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


def _lines(graph: KnowledgeGraph, rows: Triples, weights: np.ndarray | None) -> Iterator[str]:
    named = zip((graph.entities, graph.relations, graph.entities), rows.T, strict=True)
    columns = [names.name_array.take(pa.array(ids)).to_pylist() for names, ids in named]
    if weights is not None:
        columns.append(list(map(str, weights.tolist())))
    return ("\t".join(fields) + "\n" for fields in zip(*columns, strict=True))


def _files(path: Path, ignored: list[Path]) -> Iterator[Path]:
    """Yield the files of a folder or zip file that can hold a table; add the others to a list."""
    if path.is_dir():  # of OGB's folders, raw/ repeats the facts of split/
        of_ogb = [split.parents[2] for split in sorted(path.rglob("split/*/train.pt"))]
        roots = [root / name for root in of_ogb for name in ("split", "mapping")] or [path]
        inner = sorted(inner for root in roots for inner in root.rglob("*"))
        ignored += [p for p in inner if not p.is_file() and not p.is_dir()]  # pipes, dead links
        for file in _chosen([file for file in inner if file.is_file()], ignored):
            yield from _files(file, ignored)
    elif path.suffix.lower() == ".zip" and path.is_file():
        with (
            refusing(f"{path}: not a zip file", OSError, zipfile.BadZipFile),
            zipfile.ZipFile(path) as archive,
        ):
            members = sorted(n for n in archive.namelist() if not n.endswith("/"))
        if outside := [n for n in members if n.startswith("/") or ".." in Path(n).parts]:
            raise DataError(f"{path}: holds {quoted(outside[0])}, a path out of it; pack it again")
        yield from _chosen([path / name for name in members], ignored)
    else:
        if archive_of(path) is None:
            check_is_file(path)
        yield path


def _chosen(files: Sequence[Path], ignored: list[Path]) -> list[Path]:
    """Return the files of a folder that are read; add the others to a list."""
    tables = [f for f in files if f.name not in EDGE_MAPS and not IGNORED.search(unpacked_name(f))]
    openke = {file.parent for file in files if file.name == "train2id.txt"}
    tables = [f for f in tables if f.parent not in openke or not BESIDE_OPENKE.fullmatch(f.name)]
    first = [file for file in tables if not LAST_CHOICE.search(unpacked_name(file))]
    chosen = {*(first or tables), *(file for file in files if file.name in EDGE_MAPS)}
    ignored += [file for file in files if file not in chosen]
    return [file for file in files if file in chosen]


def _read_parts(files: list[Path], settings: ImportSettings, found: Noticed) -> list[Part]:
    """Read all files; a file with only a header names the columns of those it belongs to."""
    headers: dict[str, tuple[str, ...]] = {}
    for path in files:
        stem = unpacked_name(path).partition(".")[0]
        if "header" in stem.lower() and not (form := sniff(path, roles_of, header=True)).has_rows:
            headers[re.sub(r"(?i)[-_]?headers?", "", stem)] = form.header
            found.read[str(path)] = "names of columns"
    parts: list[Part] = []
    for path in files:
        if str(path) in found.read:
            continue
        stem = unpacked_name(path).partition(".")[0]
        header = headers.get(stem) or headers.get(re.sub(r"[-_]?(part)?[-_]?\d+$", "", stem), ())
        read = _parts_of(path, settings, header, is_alone=len(files) == 1)
        if not read:
            found.read[str(path)] = "a list of names, which is not used"
        for part in read:
            said = f"{part.taken_for}: {counted(part.num_rows, 'row')}"
            found.read[str(path)] = "; ".join(filter(None, [found.read.get(str(path)), said]))
            for key, text in part.notes.items():
                found.note(key, text)
                found.examples.setdefault(key, []).extend(part.examples.get(key, []))
        parts += read
    _keep_blank_nodes_apart(parts)
    of_primekg = [p for p in parts if p.taken_for.startswith("PrimeKG")]
    if not any("head_name" in part.columns for part in of_primekg):
        return parts
    again = [part.path for part in of_primekg if "head_name" not in part.columns]
    for path in again:  # its kg.csv says the same, with other identifiers
        found.read[str(path)] += "; not used beside the facts with names"
    return [part for part in parts if part.path not in again]


def _parts_of(
    path: Path, settings: ImportSettings, header: Sequence[str], *, is_alone: bool
) -> list[Part]:
    """Read a file; one beside others can be a mere list of names, or nodes without `--columns`."""
    try:
        return read_file(path, settings.columns, settings.header, header)
    except DataError as error:
        if not is_alone and isinstance(error, OneColumnError) and LISTS.search(path.name):
            return []
        if not is_alone and settings.columns:
            with suppress(DataError):
                parts = read_file(path, "", settings.header, header)
                if all(part.holds != "facts" for part in parts):
                    return parts
        raise


def _file_names(parts: Sequence[Part], roots: Sequence[Path], found: Noticed) -> FileNames:
    """Return what the names of files of facts say, and write the splits into the report.

    A folder's name counts where the file's says nothing. A name gives a split only if another one
    says that its facts are for training. `roots` are the files and folders that were given.
    """
    names = {part.path: _names(part.path, roots) for part in parts if part.holds == "facts"}
    negative = frozenset(path for path, said in names.items() if any(map(says_negative, said)))
    for path in names.keys() - negative:
        if any(NEGATIVE_WORDS & {*words_of(name)} for name in names[path]):
            found.note("facts", f"those of {path.name} hold: its name speaks of something else")
    in_columns = {part.path for part in parts if "split" in part.columns}
    splits: dict[Path, Split] = {}
    folds: dict[str, set[Split]] = {}
    for path, said in names.items():
        named = [split for split in map(split_of, said) if split]
        if named and path not in in_columns:
            splits[path] = named[0]
            if fold := FOLD.search("/".join(said)):
                folds.setdefault(fold[1], set()).add(named[0])
    if len(whole := [fold for fold, held in folds.items() if {"train"} < held]) > 1:
        raise DataError(
            f"{roots[0]}: {quoted(', '.join(whole))[1:-1]} seem to split the same facts, each in "
            "its own way; expected one split, so give the files of one of them"
        )
    has_train = any(split == "train" and path not in negative for path, split in splits.items())
    if splits and not has_train:
        shown = ", ".join(f"{path.name} ({split})" for path, split in splits.items())
        found.note("split", f"not that of {shown}: no name says which facts are for training")
        return FileNames({}, negative)
    for path, split in splits.items():
        found.read[str(path)] += f"; {split}, by its name"
    return FileNames(splits, negative)


def _names(path: Path, roots: Sequence[Path]) -> list[str]:
    """Return the names of a file and of the folders around it, up to those that were given."""
    root = next(root for root in roots if root == path or root in path.parents)
    folders = path.relative_to(root).parts[:-1]
    own = [root.name] * (len(roots) > 1 and root != path)
    return [unpacked_name(path), *reversed(folders), *own]


def _keep_blank_nodes_apart(parts: Sequence[Part]) -> None:
    """Give blank nodes the number of their file of RDF: the same label is another node there."""
    is_rdf = [Path(unpacked_name(part.path)).suffix.lower() in RDF for part in parts]
    of_rdf = [part for part, found in zip(parts, is_rdf, strict=True) if found]
    numbers = {path: i for i, path in enumerate(dict.fromkeys(part.path for part in of_rdf), 1)}
    for part in of_rdf if len(numbers) > 1 else ():
        for end in part.columns.keys() & {"id", "head", "tail"}:
            column = part.columns[end]
            new = pc.replace_substring_regex(column.dictionary, "^_:", f"_:{numbers[part.path]}.")
            part.columns[end] = Texts.from_arrays(column.indices, new)


def _named(
    columns: Sequence[pa.ChunkedArray], settings: ImportSettings, found: Noticed
) -> tuple[Vocabulary, Vocabulary, Triples]:
    """Return names in code point order, and triples of their ids."""
    heads, relations, tails = columns
    size = len(heads)
    ends = pa.chunked_array([*heads.chunks, *tails.chunks])
    entities, ids = _vocabulary("entity", ends, settings, found)
    kinds, relation_ids = _vocabulary("relation", relations, settings, found)
    return entities, kinds, np.stack([ids[:size], relation_ids, ids[size:]], axis=1)


def _vocabulary(
    kind: Kind, column: pa.ChunkedArray, settings: ImportSettings, found: Noticed
) -> tuple[Vocabulary, np.ndarray]:
    texts = single(column)
    values, codes = texts.dictionary, texts.indices.to_numpy()
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


def _find_contradictions(
    names: Sequence[Vocabulary], triples: Triples, settings: ImportSettings, found: Noticed
) -> None:
    """Count the facts that one row denies and another one states."""
    for columns in found.denied:
        rows = np.empty((len(columns[0]), 3), np.int32)
        for place, (column, known) in enumerate(zip(columns, names, strict=True)):
            texts = column.dictionary.to_pylist()
            texts = [*map(clean_name, texts)] if settings.clean else texts
            rows[:, place] = known.find(pa.array(texts, pa.string()))[column.indices]
        rows = np.unique(rows[(rows >= 0).all(axis=1)], axis=0)
        keys = as_keys(np.concatenate([triples, rows]))
        both = rows[np.isin(keys[len(triples) :], keys[: len(triples)])]
        found.counts["both stated and denied"] += len(both)
        found.examples.setdefault("both stated and denied", []).extend(
            " ".join(known.name(i) for known, i in zip(names, row, strict=True)) for row in both[:3]
        )


def clean_name(text: str) -> str:
    """Return a name in Unicode's composed form, without spaces at its ends and invisible ones."""
    visible = re.sub(f"[{INVISIBLE}]", "", text)
    return " ".join(unicodedata.normalize("NFC", visible).split()) or text


def _with_labels(relations: Vocabulary, parts: Sequence[Part]) -> Vocabulary:
    """Label relations as a file says, or with readable words of their names."""
    labels = {name: relation_label(name) for name in relations}
    for part in parts:
        if "name" in part.columns:
            names = zip(*(part.columns[role].to_pylist() for role in ("id", "name")), strict=True)
            labels |= {key: name for key, name in names if key in labels and name}
    return relations.with_labels(pa.array(list(labels.values()), pa.string()))


def _distinct(triples: Triples, weights: np.ndarray, found: Noticed) -> tuple[Triples, np.ndarray]:
    """Return the rows without repeats, in their order, and the sums of their weights."""
    codes, keys = pd.factorize(as_keys(triples))  # numbers by first occurrence
    found.counts["repeated"] += len(triples) - len(keys)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1))
    return np.ascontiguousarray(triples[first]), np.bincount(codes, weights, len(keys))


def _split(triples: Triples, times: np.ndarray, settings: ImportSettings) -> np.ndarray:
    """Return the number of each triple's split, with a share for validation and test.

    Triples between the same two entities, in either direction, stay in one split, so that no test
    triple is a reversed training triple. At random, every entity and relation stays in a training
    triple.
    """
    shares = settings.valid_fraction, settings.test_fraction
    wanted = [round(share * len(triples)) for share in shares]
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
        kinds = pd.Series(rows[starts[free], 1])
        alike = kinds.groupby(kinds)
        place = (alike.cumcount() + 0.5) / alike.transform("size")
        free = free[np.lexsort((kinds, place))]
    filled = np.cumsum(sizes[free]) - sizes[free]
    group = np.zeros(len(starts), np.int8)
    group[free] = np.select([filled < wanted[0], filled < sum(wanted)], [1, 2], 0)
    chosen = np.zeros(len(rows), np.int8)
    chosen[order] = np.repeat(group, sizes)
    return chosen
