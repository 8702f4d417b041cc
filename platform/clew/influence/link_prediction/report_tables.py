"""The tables of an influence report: CSV for spreadsheets and scripts, Parquet for programs.

Names are joined once per training triple, not once per pair. So three million rows (100 tests with
30,000 triples) are written in seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.influence.scores import Scored
from clew.link_prediction.leakage import COUNTERPARTS, RelationPair, marks
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs import influence_forms as forms
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
    pairs: Sequence[RelationPair]


class NameTable:
    """Names and labels of a graph's triples; `change` is made once, to each vocabulary."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        change: Callable[[pa.StringArray], pa.StringArray] = lambda texts: texts,
    ) -> None:
        entity, relation = (
            [change(texts) for texts in (each.name_array, _labels(each))]
            for each in (graph.entities, graph.relations)
        )
        self._texts = (entity, relation, entity)

    def columns(self, triples: Triples) -> list[pa.DictionaryArray]:
        """Return head, head label, relation, ... of triples."""
        return [
            pa.DictionaryArray.from_arrays(pa.array(triples[:, column]), texts)
            for column, both in enumerate(self._texts)
            for texts in both
        ]

    def fragments(self, triples: Triples) -> pa.StringArray:
        """Return `head,head_label,relation,...` of triples, ready to be joined into lines."""
        cells = (column.dictionary_decode() for column in self.columns(triples))
        return pc.binary_join_element_wise(*cells, ",")


def write_csv(path: Path, graph: KnowledgeGraph, rows: Sequence[PairRows]) -> None:
    """Write the pairs and a header, in descending order of score within each test."""
    names = NameTable(graph, _cells)
    fragments = names.fragments(graph.train)
    ensemble = any(pairs.scored.by_run is not None for pairs in rows)
    header = forms.ENSEMBLE_CSV_COLUMNS if ensemble else forms.CSV_COLUMNS
    marked = [
        [
            marks(test, graph.train[found[found >= 0]], pairs.pairs)
            for test, found in zip(pairs.tests, pairs.scored.train, strict=True)
        ]
        for pairs in rows
    ]
    has_marks = any(mark.any() for group in marked for mark in group)
    with path.open("wb") as file:
        file.write((",".join([*header, *[forms.CSV_COUNTERPART] * has_marks]) + "\n").encode())
        for pairs, group in zip(rows, marked, strict=True):
            scored = pairs.scored
            for test, prefix in enumerate(names.fragments(pairs.tests)):
                kept = np.flatnonzero(scored.train[test] >= 0)
                if not len(kept):
                    continue
                train = fragments.take(pa.array(scored.train[test, kept]))
                numbers = [
                    pc.cast(pa.array(values[test, kept]), pa.string())
                    for values in (scored.influence, scored.spread, scored.agreeing)
                    if values is not None
                ]
                if has_marks:
                    numbers.append(pa.array(COUNTERPARTS).take(pa.array(group[test])))
                file.write(_joined_lines(prefix, train, *numbers))


def write_values_csv(
    path: Path, graph: KnowledgeGraph, values: np.ndarray, further: Mapping[str, np.ndarray]
) -> None:
    """Write all training triples with their values and further columns, best first."""
    order = np.argsort(-values, kind="stable")
    facts = NameTable(graph, _cells).fragments(graph.train[order])
    numbers = pc.cast(pa.array(values[order]), pa.string())
    cells = [pa.array(column[order].astype(str)) for column in further.values()]
    index = pa.array(order).cast(pa.string())
    with path.open("wb") as file:
        file.write((",".join([*forms.VALUES_CSV_COLUMNS, *further]) + "\n").encode())
        file.write(_joined_lines(index, facts, numbers, *cells))


def write_parquet(path: Path, graph: KnowledgeGraph, rows: Sequence[PairRows]) -> None:
    """Write the pairs with ids, ranks and contributions."""
    writer: pq.ParquetWriter | None = None
    # Names repeat and are dictionary-encoded; numbers hardly repeat and are not.
    repeated = [*forms.TERM_COLUMNS, *forms.ID_COLUMNS, forms.TEST_INDEX_COLUMN]
    names = NameTable(graph)
    try:
        for pairs in rows:
            step = max(1, ROW_GROUP // max(1, pairs.scored.train.shape[1]))
            for start in range(0, len(pairs.tests), step):
                table = _table(names, graph, pairs, slice(start, start + step))
                writer = writer or pq.ParquetWriter(
                    path, table.schema, compression="lz4", use_dictionary=repeated
                )
                writer.write_table(table, row_group_size=ROW_GROUP)
    finally:
        if writer is not None:
            writer.close()


def _table(names: NameTable, graph: KnowledgeGraph, pairs: PairRows, part: slice) -> pa.Table:
    scored = pairs.scored
    test, place = np.nonzero(scored.train[part] >= 0)

    def kept(values: np.ndarray) -> np.ndarray:
        return values[..., part, :][..., test, place]

    train, influence = kept(scored.train), kept(scored.influence)
    test_triples, train_triples = pairs.tests[part][test], graph.train[train]
    each = np.split(train_triples, np.searchsorted(test, np.arange(1, len(pairs.tests[part]))))
    marked = [marks(*its, pairs.pairs) for its in zip(pairs.tests[part], each, strict=True)]
    columns: dict[str, pa.Array | np.ndarray] = {
        forms.TEST_INDEX_COLUMN: (test + part.start + pairs.first_test).astype(np.int32),
        forms.TRAIN_INDEX_COLUMN: train.astype(np.int64),
        forms.COUNTERPART_COLUMN: pa.DictionaryArray.from_arrays(
            np.concatenate(marked), list(COUNTERPARTS)
        ),
        forms.RANK_COLUMN: _ranks(test, influence, pairs.candidates[part]),
        forms.SCORE_COLUMN: influence,
    }
    if scored.cosine is not None:
        columns[forms.COSINE_COLUMN] = kept(scored.cosine)
    if scored.spread is not None and scored.agreeing is not None:
        columns[forms.SPREAD_COLUMN] = kept(scored.spread)
        columns[forms.AGREEING_COLUMN] = kept(scored.agreeing).astype(np.int32)
    texts = names.columns(test_triples) + names.columns(train_triples)
    columns |= dict(zip(forms.TERM_COLUMNS, texts, strict=True))
    ids = [side[:, column] for side in (test_triples, train_triples) for column in range(3)]
    columns |= dict(zip(forms.ID_COLUMNS, ids, strict=True))
    shares = [(forms.PART_PREFIX, pairs.parts, scored.by_part)]
    shares.append((forms.CHECKPOINT_PREFIX, tuple(map(str, pairs.steps)), scored.by_checkpoint))
    for prefix, of, values in shares:
        if len(values):
            found = zip(of, kept(values), strict=True)
            columns |= {prefix + name: share for name, share in found}
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
    """Return cells that no spreadsheet runs, quoted where CSV (RFC 4180) requires it."""
    texts = changed(texts, disarmed)
    special = pc.match_substring_regex(texts, '[",\r\n]')
    doubled = pc.replace_substring(texts, '"', '""')
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    return pc.if_else(special, quoted, texts)


def _joined_lines(*cells: pa.Array | pa.Scalar) -> bytes:
    ended = pc.binary_join_element_wise(pc.binary_join_element_wise(*cells, ","), "\n", "")
    offsets = np.frombuffer(ended.buffers()[1], np.int32)[ended.offset :]
    return bytes(memoryview(ended.buffers()[2])[offsets[0] : offsets[len(ended)]])
