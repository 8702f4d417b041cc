"""Finds and reads the graph of a configuration: a named data set, files, or a packed folder.

A named data set is a folder with `train.txt` and optionally `valid.txt` and `test.txt`. Each file
can be compressed, as `.gz` or `.zst`. `umls` comes with the package. Other data sets are in the
folder that the environment variable CLEW_DATA names. If the configuration names no other files,
labels are read from the data set's folder: `entity_names.tsv` for entities, and `edge_map.json`,
`relations.en.json`, `relation_names.tsv` or `relation2text.txt` for relations.
"""

from dataclasses import replace
from pathlib import Path

from clew.config.data import TripleData
from clew.errors import ConfigError, DataError
from clew.files import DATA_VARIABLE, data_folder, expanded
from clew.input_files import COMPRESSIONS
from clew.link_prediction.exclusion import leave_out
from clew.link_prediction.packed import read_packed
from clew.link_prediction.triple_files import GraphFiles, labelled, read_graph
from clew.link_prediction.triples import KnowledgeGraph

BUNDLED = Path(__file__).parent / "bundled"
ENTITY_LABELS = ["entity_names.tsv"]
RELATION_LABELS = [
    "edge_map.json",
    "relations.en.json",
    "relation_names.tsv",
    "relation2text.txt",
]


def load_graph(config: TripleData) -> KnowledgeGraph:
    """Read the graph of a configuration, with its labels and without excluded facts."""
    graph = _read(config)
    return leave_out(graph, expanded(config.exclude)) if config.exclude else graph


def _read(config: TripleData) -> KnowledgeGraph:
    if config.packed is not None:
        graph = read_packed(Path(config.packed).expanduser())
        given = _with_config(GraphFiles(Path(config.packed)), config)
        entities, relations = labelled(graph.entities, graph.relations, given)
        return replace(graph, entities=entities, relations=relations)
    return read_graph(*find_files(config))


def find_files(config: TripleData) -> tuple[str, GraphFiles]:
    """Return the name of a configuration's data set and its files.

    Raises:
        ConfigError: If the configuration names no data set, or a packed folder.
    """
    if config.packed is not None:
        raise ConfigError(f"data.packed is {config.packed}; this data set is already packed")
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
        if any((folder / name).is_file() for name in _split_names("train"))
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
    train = _only_file(folder, _split_names("train"))
    if train is None:
        raise DataError(f"{folder}: no train.txt, train.txt.gz or train.txt.zst in this folder")
    return GraphFiles(
        train,
        valid=_only_file(folder, _split_names("valid")),
        test=_only_file(folder, _split_names("test")),
        entity_labels=_first_file(folder, ENTITY_LABELS),
        relation_labels=_first_file(folder, RELATION_LABELS),
    )


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


def _split_names(split: str) -> list[str]:
    return [f"{split}.txt{suffix}" for suffix in ("", *COMPRESSIONS)]


def _first_file(folder: Path, names: list[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _only_file(folder: Path, names: list[str]) -> Path | None:
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{folder}: has {' and '.join(path.name for path in found)}; expected one of them"
        )
    return found[0] if found else None
