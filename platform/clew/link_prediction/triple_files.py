"""Reads knowledge graphs from files of triples `head<TAB>relation<TAB>tail`.

Without dictionaries, ids are the positions of the names of all three files in code point order. The
same names therefore get the same ids for any order of the lines. Triples keep the order of their
lines, so that row `i` is line `i + 1`. Duplicates are kept, and count several times in training
rows of one triple.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError
from clew.input_files import line_blocks
from clew.link_prediction.column_names import is_fact, roles_of
from clew.link_prediction.descriptions import read_dictionary, read_edge_map, read_labels
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.tables import TRIPLE, read_coded
from clew.link_prediction.triples import (
    HEAD,
    RELATION,
    SPLITS,
    TAIL,
    KnowledgeGraph,
    Triples,
    no_triples,
    row_blocks,
)
from clew.link_prediction.vocabulary import Kind, Vocabulary

COLUMNS: dict[Kind, list[int]] = {"entity": [HEAD, TAIL], "relation": [RELATION]}


@dataclass(frozen=True)
class GraphFiles:
    """The paths of a graph's triples, dictionaries and labels."""

    train: Path
    valid: Path | None = None
    test: Path | None = None
    entity_to_id: Path | None = None
    relation_to_id: Path | None = None
    entity_labels: Path | None = None
    relation_labels: Path | None = None


def read_graph(name: str, files: GraphFiles, *, on_disk: Path | None = None) -> KnowledgeGraph:
    """Read a graph; entities that occur only in validation or test triples are allowed.

    Args:
        name: Name of the data set.
        files: Its files.
        on_disk: A folder for files of the triples, which are then mapped into memory. If None,
            the triples are in memory.
    """
    given = {s: p for s in SPLITS if (p := getattr(files, s)) is not None}
    paths = list(given.values())
    entities = read_dictionary(files.entity_to_id, "entity") if files.entity_to_id else None
    relations = read_dictionary(files.relation_to_id, "relation") if files.relation_to_id else None
    tables, values = read_coded(paths, TRIPLE, on_disk=on_disk)
    entities = entities or _sorted_vocabulary("entity", tables, values)
    relations = relations or _sorted_vocabulary("relation", tables, values)
    _translate(paths, tables, values, (entities, relations))
    _refuse_same_triples(paths, tables)
    splits = {split: no_triples() for split in SPLITS} | dict(zip(given, tables, strict=True))
    return labelled(KnowledgeGraph(name, entities, relations, **splits), files)


def labelled(graph: KnowledgeGraph, files: GraphFiles) -> KnowledgeGraph:
    """Return a graph with the labels of files."""
    entities, relations = graph.entities, graph.relations
    if files.entity_labels:
        entities = read_labels(files.entity_labels, entities)
    if files.relation_labels:
        is_json = files.relation_labels.suffix == ".json"
        relations = (read_edge_map if is_json else read_labels)(files.relation_labels, relations)
    return replace(graph, entities=entities, relations=relations)


def is_plain(path: Path) -> bool:
    """Whether a file seems to hold triples as Clew writes them, judging by its first lines."""
    first, *rest = next(line_blocks(path)).decode("utf-8", "replace").split("\n")
    fields = first.split("\t")
    is_triple = len(fields) == 3 and not roles_of(fields)
    return is_triple or not first.strip() or is_fact(fields, (line.split("\t") for line in rest))


def read_triples(path: Path, entities: Vocabulary, relations: Vocabulary) -> Triples:
    """Read a file of triples over known names; an unknown name is an error."""
    tables, values = read_coded([path], TRIPLE)
    _translate([path], tables, values, (entities, relations))
    return tables[0]


def _sorted_vocabulary(kind: Kind, tables: Sequence[np.ndarray], values: pa.Array) -> Vocabulary:
    used = np.zeros(len(values), bool)
    for table in tables:
        for rows in row_blocks(len(table)):
            used[table[rows][:, COLUMNS[kind]]] = True
    names = values.filter(pa.array(used))
    return Vocabulary(kind, names.take(pc.sort_indices(names)))


def _translate(
    paths: Sequence[Path],
    tables: Sequence[np.ndarray],
    values: pa.Array,
    vocabularies: Sequence[Vocabulary],
) -> None:
    """Overwrite the codes `(triple, 3)` of values by ids; the first unknown name is an error."""
    ids = {vocabulary.kind: fields_to_ids(values, vocabulary) for vocabulary in vocabularies}
    for path, triples in zip(paths, tables, strict=True):
        for rows in row_blocks(len(triples)):
            codes = np.array(triples[rows])
            for kind, columns in COLUMNS.items():
                triples[rows, columns] = ids[kind][codes[:, columns]]
            unknown = np.argwhere(triples[rows] < 0)
            if len(unknown):
                row, column = map(int, unknown[0])
                vocabulary = vocabularies[1 if column == RELATION else 0]
                name = values[int(codes[row, column])].as_py()
                said = vocabulary.unknown_name_message(name)
                if name.isdecimal() and not vocabulary.fields_may_be_ids:
                    said += "; ids need a dictionary in which no name is a whole number"
                raise DataError(f"{path}, line {rows.start + row + 1}: {said}")


def _refuse_same_triples(paths: Sequence[Path], triples: Sequence[Triples]) -> None:
    for (first, rows), (second, others) in combinations(zip(paths, triples, strict=True), 2):
        if np.array_equal(rows, others):
            raise DataError(
                f"{second}: contains the same {len(rows)} triples as {first}; expected different "
                "triples in train, valid and test"
            )
