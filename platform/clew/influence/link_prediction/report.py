"""The influence report: JSON for people and the dashboard, CSV and Parquet for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.files import replacing
from clew.influence.link_prediction.report_table import PairRows, write_csv, write_parquet
from clew.influence.scores import Explanation, Scored, side_by_side
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph, Triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_report import (
    CheckpointWeight,
    ExplainedTriple,
    InfluenceEntry,
    InfluenceReport,
    ReportModel,
    Term,
    TripleRecord,
    write_influence_json,
)
from clew.runs.validation_record import ValidationSummary
from clew.training.manifest import CheckpointRecord

JSON_ENTRIES = 100_000
"""Largest number of entries in the JSON file, which holds the strongest if all were kept."""
SIGNIFICANT_DIGITS = 7


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

    def only(self, test: int) -> "Findings":
        """Return the results for one test triple, with its share of the time."""
        first = 0
        for explanation in self.explanations:
            size = len(explanation.self_influence)
            if test < first + size:
                part = slice(test, test + 1)
                return Findings(
                    self.tests[part],
                    [explanation.only(test - first)],
                    self.scores[part],
                    self.ranks[part],
                    self.candidates[part],
                    self.seconds / len(self.tests),
                )
            first += size
        raise IndexError(f"test {test} given, but there are only {first}")


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
    _terms: dict[tuple[str, int], Term] = field(default_factory=dict)

    @property
    def model(self) -> ReportModel:
        """The explained model."""
        weights = tuple(
            CheckpointWeight(record.epoch, record.step, record.learning_rate_weight)
            for record in self.checkpoints
        )
        return ReportModel(self.run_id, self.task, weights, self.runs)

    def triple(self, triple: np.ndarray) -> TripleRecord:
        """Return a triple with its names."""
        entities, relations = self.graph.entities, self.graph.relations
        return TripleRecord(
            self._term(entities, int(triple[HEAD])),
            self._term(relations, int(triple[RELATION])),
            self._term(entities, int(triple[TAIL])),
        )

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
    for name, write in (
        (names.INFLUENCE_CSV, write_csv),
        (names.INFLUENCE_PARQUET, write_parquet),
    ):
        with replacing(folder / name) as temporary:
            write(temporary, source.graph, rows)
    return report


def build_report(source: ReportSource, findings: Findings) -> InfluenceReport:
    """Turn findings into a report that is readable without any other file."""
    limit = max(1, JSON_ENTRIES // max(1, len(findings.tests)))
    tests: list[ExplainedTriple] = []
    for explanation in findings.explanations:
        for row in range(len(explanation.self_influence)):
            tests.append(_test(source, findings, explanation, row, len(tests), limit))
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
        rows.append(
            PairRows(
                first,
                findings.tests[part],
                scored,
                findings.candidates[part],
                explanation.parts,
                steps,
            )
        )
        first = part.stop
    return rows


def _test(  # noqa: PLR0917
    source: ReportSource,
    findings: Findings,
    explanation: Explanation,
    row: int,
    index: int,
    limit: int,
) -> ExplainedTriple:
    proponents, opponents = _places(explanation, row, limit)
    candidates = int(findings.candidates[index])
    own = float(explanation.self_influence[row])
    return ExplainedTriple(
        test=source.triple(findings.tests[index]),
        score=float(findings.scores[index]),
        rank=float(findings.ranks[index]),
        self_influence=None if np.isnan(own) else own,
        candidates=candidates,
        truncated=len(proponents) + len(opponents) < candidates,
        proponents=_entries(source, explanation.proponents, explanation.parts, row, proponents),
        opponents=_entries(source, explanation.opponents, explanation.parts, row, opponents),
    )


def _places(explanation: Explanation, row: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a test's proponents and opponents in their lists, strongest first."""
    if not explanation.complete:
        lists = (explanation.proponents, explanation.opponents)
        found = [np.flatnonzero(scored.train[row] >= 0) for scored in lists]
        return found[0], found[1]
    scored = explanation.proponents
    influence = np.where(scored.train[row] < 0, 0.0, scored.influence[row])
    strongest = np.argsort(-np.abs(influence), kind="stable")[:limit]
    listed = np.zeros(len(influence), bool)
    listed[strongest] = True
    return np.flatnonzero(listed & (influence > 0)), np.flatnonzero(listed & (influence < 0))[::-1]


def _entries(
    source: ReportSource, scored: Scored, parts: tuple[str, ...], row: int, places: np.ndarray
) -> tuple[InfluenceEntry, ...]:
    by_checkpoint = _rounded(scored.by_checkpoint[:, row, places]).T.tolist()
    by_part = _rounded(scored.by_part[:, row, places]).T.tolist()
    shown = parts if len(scored.by_part) else ()
    cosine = None if scored.cosine is None else _rounded(scored.cosine[row, places]).tolist()
    spread, agreeing = scored.spread, scored.agreeing
    spreads = None if spread is None else _rounded(spread[row, places]).tolist()
    agree = None if agreeing is None else agreeing[row, places].tolist()
    train = scored.train[row, places].tolist()
    influence = scored.influence[row, places].tolist()
    return tuple(
        InfluenceEntry(
            rank=place + 1,
            train=source.triple(source.graph.train[index]),
            influence=influence[place],
            by_checkpoint=tuple(by_checkpoint[place]) if by_checkpoint else (),
            by_part=dict(zip(shown, by_part[place], strict=True)) if by_part else {},
            cosine=None if cosine is None else cosine[place],
            train_index=index,
            spread=None if spreads is None else spreads[place],
            runs_agreeing=None if agree is None else agree[place],
        )
        for place, index in enumerate(train)
    )


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to the precision of float32, so that JSON shows no rounding noise."""
    values = values.astype(np.float64)
    size = np.abs(values)
    exponent = np.floor(np.log10(np.where(size > 0, size, 1.0)))
    scale = 10.0 ** (SIGNIFICANT_DIGITS - 1 - exponent)
    rounded: np.ndarray = np.round(values * scale) / scale
    return rounded
