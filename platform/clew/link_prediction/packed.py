"""Packed data sets: triples are stored as ids, and are read from the disk when they are needed.

packed.json               the format, the data set's name, counts and fingerprint
train.arrow               and valid.arrow, test.arrow: one Arrow record batch with the column
                          `triple`, three int32 each; mapped into memory, never read as a whole
entities.parquet          and relations.parquet: names and labels in the order of their ids

Packing needs memory for the names and for some blocks of lines, for any number of triples. Ids,
order and fingerprint are the same as without packing.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ValidationError

from clew.errors import ConfigError, DataError, described, quoted
from clew.files import remove, replacing, write_whole
from clew.link_prediction.fields import stream_coded
from clew.link_prediction.triple_files import (
    TRIPLE,
    GraphFiles,
    labelled,
    read_dictionaries,
    refuse_same_file,
    refuse_same_triples,
    translate,
    vocabularies_of,
    warn_of_column_names,
)
from clew.link_prediction.triples import (
    SPLITS,
    KnowledgeGraph,
    Split,
    Triples,
    no_triples,
    row_blocks,
)
from clew.link_prediction.vocabulary import Vocabulary

MANIFEST, FORMAT = "packed.json", 1
COLUMN = "triple"
SCHEMA = pa.schema([(COLUMN, pa.list_(pa.int32(), 3))])


class PackedManifest(BaseModel):
    """The contents of `packed.json`."""

    format: int
    name: str
    fingerprint: str
    num_triples: dict[Split, int]
    """Number of triples in each split that has a file; the other splits are empty."""


def pack_graph(name: str, files: GraphFiles, folder: Path) -> KnowledgeGraph:
    """Pack a data set into a new folder, and return the graph that is read from this folder.

    If packing fails, the folder does not exist.

    Raises:
        ConfigError: If the folder already exists.
        DataError: If the files cannot be used.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: already exists; give a new folder, or remove it")
    _remove_abandoned(folder)
    given = {s: p for s in SPLITS if (p := getattr(files, s)) is not None}
    paths = list(given.values())
    refuse_same_file(paths)
    dictionaries = read_dictionaries(files)
    with replacing(folder) as temporary:
        temporary.mkdir()
        raw = [temporary / f"{split}.codes" for split in given]
        values = _write_codes(paths, raw)
        tables = [np.memmap(path, np.int32, "r+").reshape(-1, 3) for path in raw]
        warn_of_column_names(paths, tables, values)
        entities, relations = vocabularies_of(dictionaries, tables, values)
        translate(paths, tables, values, (entities, relations), in_place=True)
        refuse_same_triples(paths, tables)
        for split, triples, path in zip(given, tables, raw, strict=True):
            _write_triples(temporary / f"{split}.arrow", triples)
            path.unlink()
        del tables, triples
        entities, relations = labelled(entities, relations, files)
        entities.write(temporary / "entities.parquet")
        relations.write(temporary / "relations.parquet")
        graph = _read(name, temporary, given)
        manifest = PackedManifest(
            format=FORMAT,
            name=name,
            fingerprint=graph.fingerprint,
            num_triples={split: len(graph.split(split)) for split in given},
        )
        write_whole(temporary / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return read_packed(folder)


def read_packed(folder: Path) -> KnowledgeGraph:
    """Return the graph of a packed folder; its triples stay on the disk.

    Raises:
        DataError: If it is not a packed folder, or was changed since it was packed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: no {MANIFEST}; expected a folder written by clew data --pack")
    try:
        manifest = PackedManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DataError(f"{path}: not written by clew data --pack ({described(error)})") from None
    if manifest.format != FORMAT:
        raise DataError(
            f"{path}: format {quoted(manifest.format)}, expected {FORMAT}; pack the data set again"
        )
    graph = _read(manifest.name, folder, manifest.num_triples)
    if graph.fingerprint != manifest.fingerprint:
        raise DataError(
            f"{folder}: was changed since it was packed (fingerprint {graph.fingerprint}, packed "
            f"as {quoted(manifest.fingerprint)}); pack the data set again"
        )
    return graph


def _read(name: str, folder: Path, splits: Iterable[Split]) -> KnowledgeGraph:
    entities = Vocabulary.read(folder / "entities.parquet", "entity")
    relations = Vocabulary.read(folder / "relations.parquet", "relation")
    limits = np.array([len(entities), len(relations), len(entities)])
    triples = {split: _map_triples(folder / f"{split}.arrow", limits) for split in splits}
    every = {split: triples.get(split, no_triples()) for split in SPLITS}
    return KnowledgeGraph(name, entities, relations, **every)


def _write_codes(paths: list[Path], raw: list[Path]) -> pa.StringArray:
    for path in raw:
        path.touch()

    def write(number: int, codes: np.ndarray) -> None:
        with raw[number].open("ab") as file:
            file.write(np.ascontiguousarray(codes, np.int32).data)

    return stream_coded(paths, TRIPLE, write)


def _write_triples(path: Path, triples: Triples) -> None:
    """Write a split as one record batch, so that it can be mapped as one array."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(triples.reshape(-1)), 3)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(pa.record_batch([column], schema=SCHEMA))


def _map_triples(path: Path, limits: np.ndarray) -> Triples:
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        batch.validate(full=True)  # refuses a buffer that is too short for its values
        if batch.schema != SCHEMA:
            raise ValueError(f"it holds {' '.join(str(batch.schema).split())}")
        flat: np.ndarray = batch.column(COLUMN).flatten().to_numpy(zero_copy_only=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read ({described(error)}); pack the data set again"
        ) from None
    triples = flat.reshape(-1, 3)
    for rows in row_blocks(len(triples)):
        if not ((triples[rows] >= 0) & (triples[rows] < limits)).all():
            raise DataError(f"{path}: contains an id that no name has; pack the data set again")
    return triples


def _remove_abandoned(folder: Path) -> None:
    for path in folder.parent.glob(f".{folder.name}.*.tmp"):
        number = path.name.removesuffix(".tmp").rpartition(".")[2]
        if number.isdecimal() and not _lives(int(number)):
            remove(path)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
