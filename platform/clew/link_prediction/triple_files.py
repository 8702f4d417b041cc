"""Reads knowledge graphs from files of triples `head<TAB>relation<TAB>tail`.

Without dictionaries, ids are the positions of the names of all three files in code point order. The
same names therefore get the same ids for any order of the lines. Triples keep the order of their
lines, so that row `i` is line `i + 1`. Duplicates are kept, and count several times in training
rows of one triple.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError
from clew.input_files import line_blocks
from clew.link_prediction.descriptions import read_dictionary, read_edge_map, read_labels
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.tables import TRIPLE, read_coded, stream_coded
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
    _refuse_same_file(paths)
    entities = read_dictionary(files.entity_to_id, "entity") if files.entity_to_id else None
    relations = read_dictionary(files.relation_to_id, "relation") if files.relation_to_id else None
    tables, values = read_coded(paths, TRIPLE) if on_disk is None else _mapped(paths, on_disk)
    entities = entities or _sorted_vocabulary("entity", tables, values)
    relations = relations or _sorted_vocabulary("relation", tables, values)
    _translate(paths, tables, values, (entities, relations))
    _refuse_same_triples(paths, tables)
    entities, relations = labelled(entities, relations, files)
    splits = {split: no_triples() for split in SPLITS} | dict(zip(given, tables, strict=True))
    return KnowledgeGraph(name, entities, relations, **splits)


def _mapped(paths: Sequence[Path], folder: Path) -> tuple[list[np.ndarray], pa.StringArray]:
    """Return what `read_coded` returns, with the codes in files that are mapped into memory."""
    raw = [folder / f"{number}.codes" for number in range(len(paths))]
    for path in raw:
        path.touch()

    def write(number: int, codes: np.ndarray) -> None:
        with raw[number].open("ab") as file:
            file.write(np.ascontiguousarray(codes, np.int32).data)

    values = stream_coded(paths, TRIPLE, write)
    return [np.memmap(path, np.int32, "r+").reshape(-1, 3) for path in raw], values


def labelled(
    entities: Vocabulary, relations: Vocabulary, files: GraphFiles
) -> tuple[Vocabulary, Vocabulary]:
    if files.entity_labels:
        entities = read_labels(files.entity_labels, entities)
    if files.relation_labels:
        is_json = files.relation_labels.suffix == ".json"
        relations = (read_edge_map if is_json else read_labels)(files.relation_labels, relations)
    return entities, relations


def is_plain(path: Path) -> bool:
    """Whether a file seems to hold triples as Clew writes them, judging by its first line."""
    first = next(line_blocks(path)).partition(b"\n")[0]
    return first.count(b"\t") == 2 or first.split() == []


def read_triples(path: Path, entities: Vocabulary, relations: Vocabulary) -> Triples:
    """Read a file of triples over known names; an unknown name is an error."""
    tables, values = read_coded([path], TRIPLE)
    _translate([path], tables, values, (entities, relations))
    return tables[0]


def _sorted_vocabulary(kind: Kind, tables: Sequence[np.ndarray], values: pa.Array) -> Vocabulary:
    names = values.take(pa.array(_used_codes(kind, tables, len(values))))
    return Vocabulary(kind, names.take(pc.sort_indices(names)))


def _used_codes(kind: Kind, tables: Sequence[np.ndarray], num_values: int) -> np.ndarray:
    used = np.zeros(num_values, bool)
    for table in tables:
        for rows in row_blocks(len(table)):
            used[table[rows][:, COLUMNS[kind]]] = True
    return np.flatnonzero(used)


def _translate(
    paths: Sequence[Path],
    tables: Sequence[np.ndarray],
    values: pa.Array,
    vocabularies: Sequence[Vocabulary],
) -> None:
    """Overwrite the codes `(triple, 3)` of values by ids; the first unknown name is an error."""
    ids = {}
    for vocabulary in vocabularies:
        used = _used_codes(vocabulary.kind, tables, len(values))
        ids[vocabulary.kind] = np.full(len(values), -1, np.int32)
        ids[vocabulary.kind][used] = fields_to_ids(values.take(pa.array(used)), vocabulary)
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
                raise _unknown(path, rows.start + row, name, vocabulary)


def _unknown(path: Path, row: int, name: str, vocabulary: Vocabulary) -> DataError:
    message = f"{path}, line {row + 1}: {vocabulary.unknown_name_message(name)}"
    if name.isdecimal() and not vocabulary.fields_may_be_ids:
        message += "; ids need a dictionary in which no name is a whole number"
    return DataError(message)


def _refuse_same_file(paths: Sequence[Path]) -> None:
    for first, second in combinations(paths, 2):
        if first.exists() and second.exists() and first.samefile(second):
            raise DataError(
                f"{second}: is the same file as {first}; expected three different files for "
                "train, valid and test"
            )


def _refuse_same_triples(paths: Sequence[Path], triples: Sequence[Triples]) -> None:
    for (first, rows), (second, others) in combinations(zip(paths, triples, strict=True), 2):
        if np.array_equal(rows, others):
            raise DataError(
                f"{second}: contains the same {len(rows)} triples as {first}; expected different "
                "triples in train, valid and test"
            )
