"""A packed data set: one Arrow file, whose triples are read from the disk when they are needed.

The file has one row. The columns `train`, `valid` and `test` hold a list of triples, three int32
each; `entities` and `relations` hold a list of names with their labels, in the order of their ids.
The metadata hold the format, the data set's name and its fingerprint.

Packing needs memory for the names and for some blocks of lines, for any number of triples. Ids,
order and fingerprint are the same as without packing.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from clew.errors import ConfigError, DataError, quoted, refusing
from clew.files import remove
from clew.input_files import check_is_file
from clew.link_prediction.triple_files import GraphFiles, read_graph
from clew.link_prediction.triples import SPLITS, KnowledgeGraph, row_blocks
from clew.link_prediction.vocabulary import Kind, Vocabulary

KEY, FORMAT = b"clew.packed", 2
TRIPLES = pa.large_list(pa.list_(pa.int32(), 3))
TEXTS = ("name", "label", "category", "synonyms")
NAMES = pa.large_list(pa.struct([(text, pa.string()) for text in TEXTS]))
KINDS: dict[str, Kind] = {"entities": "entity", "relations": "relation"}
SCHEMA = pa.schema([*((split, TRIPLES) for split in SPLITS), *((name, NAMES) for name in KINDS)])


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
        _write(scratch / "whole", read_graph(name, files, on_disk=scratch))
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
        said = Packed.model_validate_json((reader.schema.metadata or {})[KEY])
        if said.format != FORMAT:
            raise ValueError(f"it has format {quoted(said.format)}, expected {FORMAT}")
        if reader.schema.remove_metadata() != SCHEMA or reader.num_record_batches != 1:
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
    for names in vocabularies.values():
        given = names.name_array, names.label_array, names.category_array, names.synonym_array
        texts = [pa.nulls(len(names), pa.string()) if text is None else text for text in given]
        columns.append(_one_list(pa.StructArray.from_arrays(texts, fields=list(NAMES.value_type))))
    said = Packed(
        format=FORMAT,
        name=graph.name,
        fingerprint=graph.fingerprint,
        fields_may_be_ids={key: names.fields_may_be_ids for key, names in vocabularies.items()},
    )
    schema = SCHEMA.with_metadata({KEY: said.model_dump_json()})
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
