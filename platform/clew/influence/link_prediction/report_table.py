"""Write pairs of test and training triples as rows of a CSV and a Parquet file.

Names are joined once per training triple, not once per pair. So three million rows (100 tests with
30,000 triples) are written in seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.influence.scores import Scored
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_columns import (
    AGREEING_COLUMN,
    CHECKPOINT_PREFIX,
    COSINE_COLUMN,
    CSV_COLUMNS,
    ENSEMBLE_CSV_COLUMNS,
    ID_COLUMNS,
    RANK_COLUMN,
    SCORE_COLUMN,
    SPREAD_COLUMN,
    TERM_COLUMNS,
    TEST_INDEX_COLUMN,
    TRAIN_INDEX_COLUMN,
    VALUES_CSV_COLUMNS,
    part_columns,
)
from clew.spreadsheets import changed, disarmed

ROW_GROUP = 500_000


@dataclass(frozen=True, eq=False)
class PairRows:
    """The pairs of some test triples, in descending order of score within each test."""

    first_test: int
    """Index of the first test triple in the report."""
    tests: Triples
    scored: Scored
    candidates: np.ndarray
    """Number of training triples that were scored for each test."""
    parts: tuple[str, ...]
    steps: tuple[int, ...]
    """Step of each checkpoint."""

    def kept(self, test: int) -> np.ndarray:
        """Return the positions of a test's entries, without padding."""
        return np.flatnonzero(self.scored.train[test] >= 0)


class NameTable:
    """Names of a graph's triples, in the forms that the two files need."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph
        self._labels = {
            vocabulary.kind: _labels(vocabulary) for vocabulary in (graph.entities, graph.relations)
        }

    def columns(self, triples: Triples) -> list[pa.Array]:
        """Return head, head label, relation, ... of triples, dictionary-encoded."""
        columns = []
        for column in (HEAD, RELATION, TAIL):
            vocabulary = self._vocabulary(column)
            index = pa.array(triples[:, column])
            for texts in (vocabulary.name_array, self._labels[vocabulary.kind]):
                columns.append(pa.DictionaryArray.from_arrays(index, texts))
        return columns

    def csv_fragments(self, triples: Triples) -> pa.Array:
        """Return `head,head_label,relation,...` of triples, ready to be joined into lines."""
        pieces = []
        for column in (HEAD, RELATION, TAIL):
            names, labels = self._csv_cells[self._vocabulary(column).kind]
            index = pa.array(triples[:, column])
            pieces += [names.take(index), labels.take(index)]
        return pc.binary_join_element_wise(*pieces, ",")

    def _vocabulary(self, column: int) -> Vocabulary:
        return self._graph.relations if column == RELATION else self._graph.entities

    @cached_property
    def _csv_cells(self) -> dict[str, tuple[pa.Array, pa.Array]]:
        """Return names and labels of each vocabulary as CSV cells that no spreadsheet runs."""
        return {
            vocabulary.kind: (
                _cells(changed(vocabulary.name_array, disarmed)),
                _cells(changed(self._labels[vocabulary.kind], disarmed)),
            )
            for vocabulary in (self._graph.entities, self._graph.relations)
        }


def write_csv(path: Path, graph: KnowledgeGraph, rows: Sequence[PairRows]) -> None:
    """Write the pairs and a header, in descending order of score within each test."""
    names = NameTable(graph)
    fragments = names.csv_fragments(graph.train)
    ensemble = any(pairs.scored.by_run is not None for pairs in rows)
    header = ENSEMBLE_CSV_COLUMNS if ensemble else CSV_COLUMNS
    with path.open("wb") as file:
        file.write((",".join(header) + "\n").encode())
        for pairs in rows:
            prefixes = names.csv_fragments(pairs.tests)
            for test in range(len(pairs.tests)):
                kept = pairs.kept(test)
                if not len(kept):
                    continue
                train = fragments.take(pa.array(pairs.scored.train[test, kept]))
                scored = pairs.scored
                numbers = [
                    pc.cast(pa.array(values[test, kept]), pa.string())
                    for values in (scored.influence, scored.spread, scored.agreeing)
                    if values is not None
                ]
                lines = pc.binary_join_element_wise(prefixes[test], train, *numbers, ",")
                file.write(_joined_lines(lines))


def write_values_csv(path: Path, graph: KnowledgeGraph, values: np.ndarray) -> None:
    """Write all training triples with their values, `(train,)`, in descending order."""
    order = np.argsort(-values, kind="stable")
    facts = NameTable(graph).csv_fragments(graph.train[order])
    numbers = pc.cast(pa.array(values[order]), pa.string())
    lines = pc.binary_join_element_wise(pa.array(order).cast(pa.string()), facts, numbers, ",")
    with path.open("wb") as file:
        file.write((",".join(VALUES_CSV_COLUMNS) + "\n").encode())
        file.write(_joined_lines(lines))


def write_parquet(path: Path, graph: KnowledgeGraph, rows: Sequence[PairRows]) -> None:
    """Write the pairs with ids, ranks and contributions."""
    writer: pq.ParquetWriter | None = None
    # Names repeat and are dictionary-encoded; numbers hardly repeat and are not.
    repeated = [*TERM_COLUMNS, *ID_COLUMNS, TEST_INDEX_COLUMN]
    names = NameTable(graph)
    try:
        for pairs in rows:
            for table in _tables(names, graph, pairs):
                writer = writer or pq.ParquetWriter(
                    path, table.schema, compression="lz4", use_dictionary=repeated
                )
                writer.write_table(table, row_group_size=ROW_GROUP)
    finally:
        if writer is not None:
            writer.close()


def _tables(names: NameTable, graph: KnowledgeGraph, pairs: PairRows) -> Iterator[pa.Table]:
    width = max(1, pairs.scored.train.shape[1])
    step = max(1, ROW_GROUP // width)
    for start in range(0, len(pairs.tests), step):
        yield _table(names, graph, pairs, slice(start, start + step))


def _table(names: NameTable, graph: KnowledgeGraph, pairs: PairRows, part: slice) -> pa.Table:
    scored = pairs.scored
    test, place = np.nonzero(scored.train[part] >= 0)
    train = scored.train[part][test, place]
    test_triples, train_triples = pairs.tests[part][test], graph.train[train]
    columns: dict[str, pa.Array | np.ndarray] = {
        TEST_INDEX_COLUMN: (test + part.start + pairs.first_test).astype(np.int32),
        TRAIN_INDEX_COLUMN: train.astype(np.int64),
        RANK_COLUMN: _ranks(test, scored.influence[part][test, place], pairs.candidates[part]),
        SCORE_COLUMN: scored.influence[part][test, place],
    }
    if scored.cosine is not None:
        columns[COSINE_COLUMN] = scored.cosine[part][test, place]
    spread, agreeing = scored.spread, scored.agreeing
    if spread is not None and agreeing is not None:
        columns[SPREAD_COLUMN] = spread[part][test, place]
        columns[AGREEING_COLUMN] = agreeing[part][test, place].astype(np.int32)
    texts = names.columns(test_triples) + names.columns(train_triples)
    columns |= dict(zip(TERM_COLUMNS, texts, strict=True))
    ids = [side[:, column] for side in (test_triples, train_triples) for column in range(3)]
    columns |= dict(zip(ID_COLUMNS, ids, strict=True))
    if len(scored.by_part):
        details = zip(part_columns(pairs.parts), scored.by_part, strict=True)
        columns |= {name: values[part][test, place] for name, values in details}
    if len(scored.by_checkpoint):
        steps = [f"{CHECKPOINT_PREFIX}{step}" for step in pairs.steps]
        by_step = zip(steps, scored.by_checkpoint, strict=True)
        columns |= {name: values[part][test, place] for name, values in by_step}
    return pa.table(columns)


def _ranks(test: np.ndarray, influence: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return ranks among all candidates; opponents have the last ranks."""
    first = np.searchsorted(test, test, side="left")
    behind = np.searchsorted(test, test, side="right") - np.arange(len(test))
    from_front = np.arange(len(test)) - first + 1
    from_end = candidates[test] - behind + 1
    return np.where(influence > 0, from_front, from_end).astype(np.int32)


def _labels(vocabulary: Vocabulary) -> pa.StringArray:
    """Return the label of each item, or its name if it has no label."""
    labels = vocabulary.label_array
    if labels is None:
        return vocabulary.name_array
    empty = pc.or_kleene(pc.is_null(labels), pc.equal(labels, ""))
    return pc.if_else(empty, vocabulary.name_array, labels)


def _cells(texts: pa.StringArray) -> pa.StringArray:
    """Quote the cells that CSV (RFC 4180) requires to be quoted."""
    special = pc.match_substring_regex(texts, '[",\r\n]')
    doubled = pc.replace_substring(texts, '"', '""')
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    return pc.if_else(special, quoted, texts)


def _joined_lines(lines: pa.StringArray) -> bytes:
    ended = pc.binary_join_element_wise(lines, "\n", "")
    offsets = np.frombuffer(ended.buffers()[1], np.int32)[ended.offset :]
    return bytes(memoryview(ended.buffers()[2])[offsets[0] : offsets[len(ended)]])
