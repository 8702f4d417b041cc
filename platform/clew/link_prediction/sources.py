"""Finds, reads and describes the graph of a configuration: a data set, files, a packed file.

A named data set is a folder with `train.txt` and optionally `valid.txt` and `test.txt`. Each file
can be compressed (`.gz`, `.bz2`, `.xz`, `.zst`). `umls` comes with the package. Others are in the
folder that the environment variable CLEW_DATA names. If the configuration names no other files,
labels are read from the data set's folder: `entity_names.tsv` for entities, and `edge_map.json`,
`relations.en.json`, `relation_names.tsv` or `relation2text.txt` for relations.

A list of facts to leave out has one triple `head<TAB>relation<TAB>tail` per line, with the names of
the data set. The dashboard's list begins with lines that identify its data. Such a list is refused
for other data, where the same names can mean other facts.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from clew import names
from clew.config.data import TripleData
from clew.errors import ConfigError, DataError, quoted, refusing
from clew.files import DATA_VARIABLE, data_folder, expanded
from clew.input_files import COMPRESSIONS, check_is_file
from clew.link_prediction.imports import import_graph
from clew.link_prediction.packed import read_packed
from clew.link_prediction.triple_files import GraphFiles, is_plain, labelled, read_graph
from clew.link_prediction.triples import (
    HEAD,
    RELATION,
    SPLITS,
    TAIL,
    FilterIndex,
    KnowledgeGraph,
    Triples,
    as_keys,
)
from clew.spreadsheets import FactList

logger = logging.getLogger(__name__)

BUNDLED = Path(__file__).parent / "bundled"
TRAIN = ["train.txt", *(f"train.txt{suffix}" for suffix in COMPRESSIONS)]
ENTITY_LABELS = ["entity_names.tsv"]
RELATION_LABELS = ["edge_map.json", "relations.en.json", "relation_names.tsv", "relation2text.txt"]


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
        return import_graph(path.name.split(".")[0], [path], config).graph
    name, files = find_files(config)
    splits = {path: split for split in SPLITS if (path := getattr(files, split)) is not None}
    if is_read_plainly(config, files):
        return read_graph(name, files)
    for split in SPLITS:
        if (path := getattr(files, split)) and splits[path] != split:
            both = f"{split} and {splits[path]}"
            raise DataError(f"{path}: is the file of {both}; expected a file for each split")
    others = [path for path in (files.entity_to_id, files.relation_to_id) if path is not None]
    return labelled(import_graph(name, [*splits, *others], config, splits).graph, files)


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
