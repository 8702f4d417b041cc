"""The influence report: JSON for people and the dashboard, CSV and Parquet for programs.

Names are joined once per training triple, not once per pair. So three million rows (100 tests with
30,000 triples) are written in seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew import names
from clew.files import replacing
from clew.influence.link_prediction.paths import MAX_PATHS, MAX_STEPS, EntityPath
from clew.influence.scores import Explanation, Scored, side_by_side
from clew.link_prediction.leakage import COUNTERPARTS, RelationPair, marks
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs import influence_forms as forms
from clew.runs.influence_report import (
    CheckpointWeight,
    ExplainedTriple,
    FoundPaths,
    InfluenceEntry,
    InfluenceReport,
    PathRecord,
    PathStep,
    ReportModel,
    Term,
    TripleRecord,
    write_influence_json,
)
from clew.runs.validation_record import ValidationSummary
from clew.spreadsheets import changed, disarmed
from clew.training.manifest import CheckpointRecord

ROW_GROUP = 500_000
JSON_ENTRIES = 100_000
"""Largest number of entries in the JSON file, which holds the strongest if all were kept."""
SIGNIFICANT_DIGITS = 7
MAX_FACTS_PER_STEP = 20
"""Largest number of facts that are kept between two neighbours on a path, the strongest first.

UMLS has at most 17, FB15k-237 at most 13. A graph with thousands between two entities would make
files of gigabytes.
"""


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

    def kept(self, test: int) -> np.ndarray:
        return np.flatnonzero(self.scored.train[test] >= 0)


class NameTable:
    """Names of a graph's triples, in the forms that the two files need."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        entities, relations = graph.entities, graph.relations
        self._kinds = {HEAD: entities.kind, RELATION: relations.kind, TAIL: entities.kind}
        self._texts: dict[str, tuple[pa.Array, ...]] = {
            each.kind: (each.name_array, _labels(each)) for each in (entities, relations)
        }

    def columns(self, triples: Triples) -> list[pa.Array]:
        """Return head, head label, relation, ... of triples, dictionary-encoded."""
        return self._each(triples, self._texts, pa.DictionaryArray.from_arrays)

    def csv_fragments(self, triples: Triples) -> pa.Array:
        """Return `head,head_label,relation,...` of triples, ready to be joined into lines."""
        cells = self._each(triples, self._csv_cells, lambda index, texts: texts.take(index))
        return pc.binary_join_element_wise(*cells, ",")

    def _each(
        self,
        triples: Triples,
        texts: Mapping[str, tuple[pa.Array, ...]],
        make: Callable[[pa.Array, pa.Array], pa.Array],
    ) -> list[pa.Array]:
        return [
            make(pa.array(triples[:, column]), each)
            for column, kind in self._kinds.items()
            for each in texts[kind]
        ]

    @cached_property
    def _csv_cells(self) -> dict[str, tuple[pa.Array, ...]]:
        """Return names and labels of each vocabulary as CSV cells that no spreadsheet runs."""
        return {
            kind: tuple(_cells(changed(each, disarmed)) for each in texts)
            for kind, texts in self._texts.items()
        }


def write_csv(path: Path, graph: KnowledgeGraph, rows: Sequence[PairRows]) -> None:
    """Write the pairs and a header, in descending order of score within each test."""
    names = NameTable(graph)
    fragments = names.csv_fragments(graph.train)
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
                if has_marks:
                    numbers.append(pa.array(COUNTERPARTS).take(pa.array(group[test])))
                lines = pc.binary_join_element_wise(prefixes[test], train, *numbers, ",")
                file.write(_joined_lines(lines))


def write_values_csv(
    path: Path, graph: KnowledgeGraph, values: np.ndarray, further: Mapping[str, np.ndarray]
) -> None:
    """Write all training triples with their values and further columns, best first."""
    order = np.argsort(-values, kind="stable")
    facts = NameTable(graph).csv_fragments(graph.train[order])
    numbers = pc.cast(pa.array(values[order]), pa.string())
    cells = [pa.array(column[order].astype(str)) for column in further.values()]
    index = pa.array(order).cast(pa.string())
    lines = pc.binary_join_element_wise(index, facts, numbers, *cells, ",")
    with path.open("wb") as file:
        file.write((",".join([*forms.VALUES_CSV_COLUMNS, *further]) + "\n").encode())
        file.write(_joined_lines(lines))


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
    train = scored.train[part][test, place]
    test_triples, train_triples = pairs.tests[part][test], graph.train[train]
    each = np.split(train_triples, np.searchsorted(test, np.arange(1, len(pairs.tests[part]))))
    marked = [marks(*its, pairs.pairs) for its in zip(pairs.tests[part], each, strict=True)]
    columns: dict[str, pa.Array | np.ndarray] = {
        forms.TEST_INDEX_COLUMN: (test + part.start + pairs.first_test).astype(np.int32),
        forms.TRAIN_INDEX_COLUMN: train.astype(np.int64),
        forms.COUNTERPART_COLUMN: pa.DictionaryArray.from_arrays(
            np.concatenate(marked), list(COUNTERPARTS)
        ),
        forms.RANK_COLUMN: _ranks(
            test, scored.influence[part][test, place], pairs.candidates[part]
        ),
        forms.SCORE_COLUMN: scored.influence[part][test, place],
    }
    if scored.cosine is not None:
        columns[forms.COSINE_COLUMN] = scored.cosine[part][test, place]
    spread, agreeing = scored.spread, scored.agreeing
    if spread is not None and agreeing is not None:
        columns[forms.SPREAD_COLUMN] = spread[part][test, place]
        columns[forms.AGREEING_COLUMN] = agreeing[part][test, place].astype(np.int32)
    texts = names.columns(test_triples) + names.columns(train_triples)
    columns |= dict(zip(forms.TERM_COLUMNS, texts, strict=True))
    ids = [side[:, column] for side in (test_triples, train_triples) for column in range(3)]
    columns |= dict(zip(forms.ID_COLUMNS, ids, strict=True))
    if len(scored.by_part):
        details = zip(pairs.parts, scored.by_part, strict=True)
        columns |= {forms.PART_PREFIX + name: values[part][test, place] for name, values in details}
    if len(scored.by_checkpoint):
        steps = [f"{forms.CHECKPOINT_PREFIX}{step}" for step in pairs.steps]
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


@dataclass(frozen=True, eq=False)
class ScoredPaths:
    """The paths of one test triple, with the influence of their facts by training index."""

    paths: Sequence[EntityPath]
    influence: Mapping[int, float]
    agreeing: Mapping[int, int] = field(default_factory=dict)
    """Number of runs with the sign of the mean; empty without an ensemble."""


@dataclass(frozen=True, eq=False)
class Findings:
    """The results for test triples, in the order of the triples."""

    tests: Triples
    explanations: Sequence[Explanation]
    """Each explanation covers some consecutive tests."""
    scores: np.ndarray
    ranks: np.ndarray
    candidates: np.ndarray
    """Number of training triples that were scored for each test."""
    seconds: float
    paths: Sequence["ScoredPaths"] = ()
    """The paths of each test; empty if they were not searched."""

    def only(self, test: int) -> "Findings":
        """Return the results for one test triple, with its share of the time."""
        sizes = [len(explanation.self_influence) for explanation in self.explanations]
        place = int(np.searchsorted(np.cumsum(sizes), test, side="right"))
        explanation = self.explanations[place].only(test - sum(sizes[:place]))
        part, share = slice(test, test + 1), self.seconds / len(self.tests)
        every = (self.tests, self.scores, self.ranks, self.candidates)
        tests, scores, ranks, candidates = (values[part] for values in every)
        return Findings(tests, [explanation], scores, ranks, candidates, share, self.paths[part])


@dataclass(frozen=True, eq=False)
class ReportSource:
    """The data that all tests of a report share."""

    graph: KnowledgeGraph
    task: str
    run_id: str
    checkpoints: Sequence[CheckpointRecord]
    settings: Mapping[str, Any]
    device: str
    validation: ValidationSummary | None = None
    runs: tuple[str, ...] = ()
    """All runs of an ensemble; the weights of `checkpoints` are then means over these runs."""
    pairs: Sequence[RelationPair] = ()
    """The pairs of relations that say the same."""
    _terms: dict[tuple[str, int], Term] = field(default_factory=dict)

    @property
    def model(self) -> ReportModel:
        weights = tuple(
            CheckpointWeight(record.epoch, record.step, record.learning_rate_weight)
            for record in self.checkpoints
        )
        return ReportModel(self.run_id, self.task, weights, self.runs)

    def triple(self, triple: np.ndarray) -> TripleRecord:
        entities, relations = self.graph.entities, self.graph.relations
        head, tail = (self._term(entities, int(triple[column])) for column in (HEAD, TAIL))
        return TripleRecord(head, self._term(relations, int(triple[RELATION])), tail)

    def _term(self, vocabulary: Vocabulary, id: int) -> Term:
        key = (vocabulary.kind, id)
        if key not in self._terms:
            self._terms[key] = Term(vocabulary.name(id), vocabulary.label(id))
        return self._terms[key]


def write_report(folder: Path, source: ReportSource, findings: Findings) -> InfluenceReport:
    """Write `influence.json`, `influence.csv` and `influence.parquet` into `folder`."""
    report = build_report(source, findings)
    rows = pair_rows(source, findings)
    write_influence_json(report, folder / names.INFLUENCE_JSON)
    for name, write in ((names.INFLUENCE_CSV, write_csv), (names.INFLUENCE_PARQUET, write_parquet)):
        with replacing(folder / name) as temporary:
            write(temporary, source.graph, rows)
    return report


def build_report(source: ReportSource, findings: Findings) -> InfluenceReport:
    """Turn findings into a report that is readable without any other file."""
    limit = max(1, JSON_ENTRIES // max(1, len(findings.tests)))
    tests = [_test(source, findings.only(test), limit) for test in range(len(findings.tests))]
    return InfluenceReport(
        model=source.model,
        settings=dict(source.settings),
        train_size=len(source.graph.train),
        seconds=findings.seconds,
        device=source.device,
        validation=source.validation,
        tests=tuple(tests),
    )


def pair_rows(source: ReportSource, findings: Findings) -> list[PairRows]:
    """Return all kept pairs, in descending order of score within each test."""
    steps = tuple(record.step for record in source.checkpoints)
    rows, first = [], 0
    for explanation in findings.explanations:
        part = slice(first, first + len(explanation.self_influence))
        scored = explanation.proponents
        if not explanation.complete:
            both = side_by_side(explanation.proponents, explanation.opponents)
            signed = np.where(both.train < 0, -np.inf, both.influence)
            scored = both.take(np.lexsort((both.train, -signed), axis=1))
        of_tests = findings.tests[part], scored, findings.candidates[part]
        rows.append(PairRows(first, *of_tests, explanation.parts, steps, source.pairs))
        first = part.stop
    return rows


def _test(source: ReportSource, found: Findings, limit: int) -> ExplainedTriple:
    """Return the findings of one test triple."""
    (test,), (explanation,) = found.tests, found.explanations
    proponents, opponents = _places(explanation, limit)
    candidates, own = int(found.candidates[0]), float(explanation.self_influence[0])
    entries = partial(_entries, source, test, explanation.parts)
    return ExplainedTriple(
        test=source.triple(test),
        score=float(found.scores[0]),
        rank=float(found.ranks[0]),
        self_influence=None if np.isnan(own) else own,
        candidates=candidates,
        truncated=len(proponents) + len(opponents) < candidates,
        proponents=entries(explanation.proponents, proponents),
        opponents=entries(explanation.opponents, opponents),
        paths=_found_paths(source, test, found.paths[0]) if found.paths else None,
    )


def _found_paths(source: ReportSource, test: np.ndarray, scored: ScoredPaths) -> FoundPaths:
    def step(fact: int) -> PathStep:
        numbers = scored.influence.get(fact), scored.agreeing.get(fact)
        return PathStep(source.triple(source.graph.train[fact]), fact, *numbers)

    def strongest(facts: Sequence[int]) -> tuple[PathStep, ...]:
        order = sorted(facts, key=lambda fact: -abs(scored.influence.get(fact, 0.0)))
        return tuple(map(step, order[:MAX_FACTS_PER_STEP]))

    return FoundPaths(
        MAX_STEPS if test[HEAD] != test[TAIL] else 0,
        MAX_PATHS,
        tuple(
            PathRecord(path.cost, tuple(map(strongest, path.steps)), tuple(map(len, path.steps)))
            for path in scored.paths
        ),
    )


def _places(explanation: Explanation, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a test's proponents and opponents in their lists, strongest first."""
    if not explanation.complete:
        lists = (explanation.proponents, explanation.opponents)
        found = [np.flatnonzero(scored.train[0] >= 0) for scored in lists]
        return found[0], found[1]
    scored = explanation.proponents
    influence = np.where(scored.train[0] < 0, 0.0, scored.influence[0])
    strongest = np.argsort(-np.abs(influence), kind="stable")[:limit]
    listed = np.zeros(len(influence), bool)
    listed[strongest] = True
    return np.flatnonzero(listed & (influence > 0)), np.flatnonzero(listed & (influence < 0))[::-1]


def _entries(
    source: ReportSource,
    test: np.ndarray,
    parts: tuple[str, ...],
    scored: Scored,
    places: np.ndarray,
) -> tuple[InfluenceEntry, ...]:
    listed = scored.take(places[None])
    by_checkpoint, by_part = (
        _rounded(values[:, 0]).T.tolist() for values in (listed.by_checkpoint, listed.by_part)
    )
    shown, none = parts if len(listed.by_part) else (), [None] * len(places)
    cosine, spread = (
        none if values is None else _rounded(values[0]).tolist()
        for values in (listed.cosine, listed.spread)
    )
    agreeing = none if listed.agreeing is None else listed.agreeing[0].tolist()
    train, influence = listed.train[0].tolist(), listed.influence[0].tolist()
    counterpart = marks(test, source.graph.train[train], source.pairs).tolist()
    return tuple(
        InfluenceEntry(
            rank=place + 1,
            train=source.triple(source.graph.train[index]),
            influence=influence[place],
            by_checkpoint=tuple(by_checkpoint[place]) if by_checkpoint else (),
            by_part=dict(zip(shown, by_part[place], strict=True)) if by_part else {},
            cosine=cosine[place],
            train_index=index,
            spread=spread[place],
            runs_agreeing=agreeing[place],
            counterpart=COUNTERPARTS[counterpart[place]] or None,
        )
        for place, index in enumerate(train)
    )


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to the precision of float32, so that JSON shows no rounding noise."""
    values = values.astype(np.float64)
    size = np.abs(values)
    exponent = np.floor(np.log10(np.where(size > 0, size, 1.0)))
    scale = 10.0 ** (SIGNIFICANT_DIGITS - 1 - exponent)
    return np.asarray(np.round(values * scale) / scale)
