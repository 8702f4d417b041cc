"""Finds, reads and describes the graph of a configuration: a data set, files, a packed file.

docs/data.md says what a named data set is. If the configuration names no other files, labels are
read from its folder.

The dashboard's list of facts to leave out begins with lines that identify its data. It is refused
for other data, where the same names can mean other facts. docs/data_on_disk.md describes a packed
data set, whose triples are read from the disk when they are needed.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from clew import names
from clew.config.data import TripleData
from clew.errors import ConfigError, DataError, quoted, refusing
from clew.files import DATA_VARIABLE, data_folder, expanded, remove
from clew.input_files import COMPRESSIONS, check_is_file
from clew.link_prediction.denials import affirmed
from clew.link_prediction.imports import import_graph
from clew.link_prediction.plausibility import of_files
from clew.link_prediction.triple_files import GraphFiles, is_plain, labelled, read_graph
from clew.link_prediction.triples import (
    HEAD,
    RELATION,
    SPLITS,
    TAIL,
    FilterIndex,
    KnowledgeGraph,
    Split,
    Triples,
    as_keys,
    row_blocks,
)
from clew.link_prediction.vocabulary import Kind, Vocabulary
from clew.spreadsheets import FactList

logger = logging.getLogger(__name__)

BUNDLED = Path(__file__).parent / "bundled"
TRAIN = ["train.txt", *(f"train.txt{suffix}" for suffix in COMPRESSIONS)]
ENTITY_LABELS = ["entity_names.tsv"]
RELATION_LABELS = ["edge_map.json", "relations.en.json", "relation_names.tsv", "relation2text.txt"]
PACKED_KEY, PACKED_FORMAT = b"clew.packed", 2
TRIPLES = pa.large_list(pa.list_(pa.int32(), 3))
TEXTS = ("name", "label", "category", "synonyms")
NAMES = pa.large_list(pa.struct([(text, pa.string()) for text in TEXTS]))
KINDS: dict[str, Kind] = {"entities": "entity", "relations": "relation"}
PACKED_SCHEMA = pa.schema(
    [*((split, TRIPLES) for split in SPLITS), *((name, NAMES) for name in KINDS)]
)


def load_graph(config: TripleData) -> KnowledgeGraph:
    """Read the graph of a configuration, with its labels and without excluded facts."""
    graph = _read(config)
    return leave_out(graph, expanded(config.exclude)) if config.exclude else graph


def _read(config: TripleData) -> KnowledgeGraph:
    if config.packed is not None:
        files = _with_config(GraphFiles(Path(config.packed)), config)
        return labelled(read_packed(Path(config.packed).expanduser()), files)
    if config.path is not None:
        path = expanded(config.path)
        graph = _imported(path.name.split(".")[0], [path], config)
        return labelled(graph, _with_config(GraphFiles(path), config))
    name, files = find_files(config)
    splits = {path: split for split in SPLITS if (path := getattr(files, split)) is not None}
    if is_read_plainly(config, files):
        graph = read_graph(name, files)
        if not _denies(graph):  # else denied facts are dropped
            return graph
    for split in SPLITS:
        if (path := getattr(files, split)) and splits[path] != split:
            both = f"{split} and {splits[path]}"
            raise DataError(f"{path}: is the file of {both}; expected a file for each split")
    others = [path for path in (files.entity_to_id, files.relation_to_id) if path is not None]
    return labelled(_imported(name, [*splits, *others], config, splits), files)


def _denies(graph: KnowledgeGraph) -> bool:
    """Return whether a relation denies its facts, such as `NOT|enables`."""
    names_of = graph.relations.name_array
    return not affirmed(names_of).equals(names_of)


def _imported(
    name: str, paths: Sequence[Path], config: TripleData, splits: Mapping[Path, Split] | None = None
) -> KnowledgeGraph:
    """Import a graph, and log what became of its facts, as `clew data` says it."""
    found = import_graph(name, paths, config, splits)
    for key, text in found.notes.items():
        logger.info("%s: %s: %s", paths[0], key, text)
    for finding in of_files(found):
        if finding.count:
            logger.info("look at: %s", finding)
    return found.graph


def is_read_plainly(config: TripleData, files: GraphFiles) -> bool:
    """Return whether files seem to be in Clew's own format, and no setting changes their facts."""
    is_changed = config.columns or config.header or config.clean or config.weights == "use"
    return not is_changed and all(map(is_plain, filter(None, map(vars(files).get, SPLITS))))


def find_files(config: TripleData) -> tuple[str, GraphFiles]:
    """Return the name of a configuration's data set and its files."""
    if config.packed is not None:
        raise ConfigError(f"data.packed is {config.packed}; this data set is already packed")
    if config.path is not None:
        raise ConfigError(
            f"data.path is {config.path}; make a data set of it first: clew data "
            f"{config.path} --output-dir FOLDER"
        )
    if config.name is not None:
        folder = find_data_set(config.name)
        return config.name, _with_config(files_of_folder(folder), config)
    if not config.train:
        raise ConfigError(f"data.train is {config.train!r}; expected a file of training triples")
    train = expanded(config.train)
    # `train.txt` gets the name of its folder, any other file its own name without suffixes.
    stem = train.name.split(".")[0] or train.name
    name = train.resolve().parent.name if stem == "train" else stem
    return name, _with_config(GraphFiles(train), config)


def named_data_sets() -> dict[str, Path]:
    """Return the folders of all named data sets, sorted by name."""
    root = data_folder()
    found = {
        folder.name: folder
        for place in (root, BUNDLED)  # the bundled ones come last, so they win
        if place is not None and place.is_dir()
        for folder in place.iterdir()
        if _present(folder, TRAIN)
    }
    return dict(sorted(found.items()))


def find_data_set(name: str) -> Path:
    """Return the folder of a named data set; the error for an unknown name lists all names."""
    known = named_data_sets()
    if name in known:
        return known[name]
    root = data_folder()
    where = f"{DATA_VARIABLE} is {root}" if root else f"set {DATA_VARIABLE} to add more"
    raise ConfigError(
        f"data.name is {name!r}; expected one of {', '.join(known)} ({where}), or data.train with "
        "a file of triples"
    )


def files_of_folder(folder: Path) -> GraphFiles:
    """Return the files of a data set's folder; validation, test and labels can be missing."""
    splits: dict[str, Path] = {}
    for split in SPLITS:
        found = _present(folder, [name.replace("train", split) for name in TRAIN])
        if len(found) > 1:
            shown = " and ".join(path.name for path in found)
            raise DataError(f"{folder}: has {shown}; expected one of them")
        splits |= {split: found[0]} if found else {}
    if "train" not in splits:
        raise DataError(f"{folder}: no train.txt, plain or compressed, in this folder")
    entities, relations = (_present(folder, names) for names in (ENTITY_LABELS, RELATION_LABELS))
    labels = [next(iter(found), None) for found in (entities, relations)]
    return GraphFiles(**splits, entity_labels=labels[0], relation_labels=labels[1])


def _with_config(files: GraphFiles, config: TripleData) -> GraphFiles:
    """Replace files with those named in the configuration; an empty text replaces nothing."""
    named = {
        "valid": config.valid,
        "test": config.test,
        "entity_to_id": config.entity_to_id,
        "relation_to_id": config.relation_to_id,
        "entity_labels": config.node_name_dict,
        "relation_labels": config.edge_map,
    }
    return replace(files, **{k: expanded(text) for k, text in named.items() if text})


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return those files of a folder that are there; none of a folder that may not be read."""
    return [folder / name for name in names if os.path.isfile(folder / name)]


def leave_out(graph: KnowledgeGraph, path: Path) -> KnowledgeGraph:
    """Return a graph without the training triples in a file; all copies of a triple are removed.

    Entities and relations keep their ids, even if they are in no triple any more.
    """
    check_is_file(path)
    with refusing(f"{path}: cannot be read as UTF-8 text", OSError, UnicodeDecodeError):
        content = path.read_bytes().decode("utf-8-sig")
    listed = FactList.parse(content)
    _check_origin(path, listed.origin, graph)
    wrong = [
        _row(path, number, line, graph)
        for number, line in enumerate(listed.facts, start=listed.first_line)
    ]
    if not wrong:
        raise DataError(
            f"{path}: contains no triple; expected head<TAB>relation<TAB>tail on each line"
        )
    keys = as_keys(np.concatenate([graph.train, np.array(wrong, np.int32)]))
    train, named = keys[: len(graph.train)], keys[len(graph.train) :]
    for place in np.flatnonzero(~np.isin(named, train))[:1].tolist():
        raise DataError(
            f"{path}, line {place + listed.first_line}: {quoted(listed.facts[place])} is not a "
            f"training triple of {graph.name}; only these can be left out"
        )
    kept = ~np.isin(train, named)
    if not kept.any():
        raise DataError(f"{path}: lists every training triple of {graph.name}; none would be left")
    logger.info("%s: %d of %d training triples are left out", path, (~kept).sum(), len(kept))
    weights = None if graph.weights is None else graph.weights[kept]
    return replace(graph, train=graph.train[kept], weights=weights)


def _check_origin(path: Path, said: Mapping[str, str], graph: KnowledgeGraph) -> None:
    given = said.get(names.LIST_FINGERPRINT_PREFIX, graph.fingerprint)
    if given != graph.fingerprint:
        data_set = said.get(names.LIST_DATA_SET_PREFIX, "unknown data")
        raise DataError(
            f"{path}: its facts are from {quoted(data_set)[1:-1]} with fingerprint "
            f"{quoted(given)[1:-1]}, but {graph.name} here has fingerprint "
            f"{graph.fingerprint}; expected a list from these data"
        )


def _row(path: Path, number: int, line: str, graph: KnowledgeGraph) -> tuple[int, int, int]:
    fields = line.split("\t")
    if len(fields) != 3:
        raise DataError(
            f"{path}, line {number}: {quoted(line)} has {len(fields)} tab-separated columns; "
            "expected head<TAB>relation<TAB>tail"
        )
    head, relation, tail = fields
    try:
        return graph.entities.id(head), graph.relations.id(relation), graph.entities.id(tail)
    except DataError as error:
        raise DataError(f"{path}, line {number}: {error}") from None


def describe(graph: KnowledgeGraph) -> dict[str, str | int | float]:
    """Return statistics of a graph; degrees count both ends of every training triple."""
    degrees = _degrees(graph, graph.train)
    held_out = np.concatenate([graph.valid, graph.test])
    ends, relations = held_out[:, [HEAD, TAIL]], held_out[:, RELATION]
    is_trained = degrees > 0, np.isin(np.arange(graph.num_relations), graph.train[:, RELATION])
    seen = degrees[degrees > 0]
    train, valid, test = (_num_distinct(graph, graph.split(split)) for split in SPLITS)
    num_triples = sum(len(graph.split(split)) for split in SPLITS)
    return {
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "num_entities": graph.num_entities,
        "num_relations": graph.num_relations,
        **{f"num_{split}": len(graph.split(split)) for split in SPLITS},
        # What is in validation or test triples, but in no training triple, is never trained.
        "num_unseen_entities": int((~is_trained[0][np.unique(ends)]).sum()),
        "num_unseen_relations": int((~is_trained[1][np.unique(relations)]).sum()),
        "num_untrained": int((~(is_trained[0][ends].all(1) & is_trained[1][relations])).sum()),
        "num_unused_entities": int((degrees + _degrees(graph, held_out) == 0).sum()),
        "num_duplicates": num_triples - train - valid - test,  # inside of each split
        "num_leaked": sum(
            train + distinct - _num_distinct(graph, np.concatenate([graph.train, triples]))
            for distinct, triples in ((valid, graph.valid), (test, graph.test))
        ),
        "num_entity_labels": graph.entities.num_labels,
        "num_relation_labels": graph.relations.num_labels,
        "mean_degree": float(seen.mean()),  # over entities of training triples
        "median_degree": float(np.median(seen)),
        "max_degree": int(seen.max()),
        "hub": graph.entities.label(int(degrees.argmax())),
    }


def _degrees(graph: KnowledgeGraph, triples: Triples) -> np.ndarray:
    return np.bincount(triples[:, [HEAD, TAIL]].ravel(), minlength=graph.num_entities)


def _num_distinct(graph: KnowledgeGraph, triples: Triples) -> int:
    return len(FilterIndex.from_triples(triples, graph.num_relations).tails)


class Packed(BaseModel):
    """What the metadata of a packed file say."""

    format: int
    name: str
    fingerprint: str
    fields_may_be_ids: dict[str, bool]


def pack_graph(name: str, files: GraphFiles, path: Path) -> KnowledgeGraph:
    """Pack a data set into a new file, and return the graph that is read from it.

    If packing fails, there is no file, and the next packing removes what a killed one left.
    """
    if path.exists():
        raise ConfigError(f"{path}: already exists; give a new file, or remove it")
    scratch = path.with_name(f".{path.name}.packing")
    remove(scratch)
    scratch.mkdir(parents=True)
    try:
        graph = read_graph(name, files, on_disk=scratch)
        if _denies(graph):
            raise DataError(
                f"{files.train}: a relation denies its facts (NOT); make a data set first, which "
                "drops them: clew data FILE --output-dir FOLDER"
            )
        _write(scratch / "whole", graph)
        (scratch / "whole").replace(path)
    finally:
        remove(scratch)
    return read_packed(path)


def read_packed(path: Path) -> KnowledgeGraph:
    """Return the graph of a packed file; its triples stay on the disk."""
    check_is_file(path)
    what, advice = f"{path}: not written by clew data --pack", "; pack the data set again"
    with refusing(what, OSError, ValueError, LookupError, pa.ArrowException, advice=advice):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        said = Packed.model_validate_json((reader.schema.metadata or {})[PACKED_KEY])
        if said.format != PACKED_FORMAT:
            raise ValueError(f"it has format {quoted(said.format)}, expected {PACKED_FORMAT}")
        if reader.schema.remove_metadata() != PACKED_SCHEMA or reader.num_record_batches != 1:
            raise ValueError("it holds other columns")
        row = reader.get_batch(0)
        row.validate(full=True)  # refuses a buffer that is too short for its values
        entities, relations = (
            _vocabulary(row.column(column).flatten(), kind, said.fields_may_be_ids[column])
            for column, kind in KINDS.items()
        )
        flat = {split: pc.list_flatten(row.column(split), recursive=True) for split in SPLITS}
        triples = {split: ids.to_numpy().reshape(-1, 3) for split, ids in flat.items()}
    graph = KnowledgeGraph(said.name, entities, relations, **triples)
    limits = np.array([graph.num_entities, graph.num_relations, graph.num_entities])
    for rows in triples.values():
        for part in row_blocks(len(rows)):
            if not ((rows[part] >= 0) & (rows[part] < limits)).all():
                raise DataError(f"{path}: contains an id that no name has; pack the data set again")
    if graph.fingerprint != said.fingerprint:
        raise DataError(
            f"{path}: was changed since it was packed (fingerprint {graph.fingerprint}, packed "
            f"as {quoted(said.fingerprint)}); pack the data set again"
        )
    return graph


def _write(path: Path, graph: KnowledgeGraph) -> None:
    columns = []
    for split in SPLITS:
        flat = pa.array(graph.split(split).reshape(-1))
        columns.append(_one_list(pa.FixedSizeListArray.from_arrays(flat, 3)))
    vocabularies = {"entities": graph.entities, "relations": graph.relations}
    for named in vocabularies.values():
        given = named.name_array, named.label_array, named.category_array, named.synonym_array
        texts = [pa.nulls(len(named), pa.string()) if text is None else text for text in given]
        columns.append(_one_list(pa.StructArray.from_arrays(texts, fields=list(NAMES.value_type))))
    said = Packed(
        format=PACKED_FORMAT,
        name=graph.name,
        fingerprint=graph.fingerprint,
        fields_may_be_ids={key: named.fields_may_be_ids for key, named in vocabularies.items()},
    )
    schema = PACKED_SCHEMA.with_metadata({PACKED_KEY: said.model_dump_json()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def _one_list(values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def _vocabulary(names: pa.StructArray, kind: Kind, fields_may_be_ids: bool) -> Vocabulary:
    name, *others = (names.field(text) for text in TEXTS)
    if not len(name) or name.null_count:
        raise ValueError("a name is missing")
    label, category, synonyms = (None if text.null_count == len(text) else text for text in others)
    return Vocabulary(kind, name, label, fields_may_be_ids, category, synonyms)
