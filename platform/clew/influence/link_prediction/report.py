"""The influence report: JSON for people and the dashboard, and the tables beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew import names
from clew.files import replacing
from clew.influence.link_prediction.paths import MAX_PATHS, MAX_STEPS, EntityPath, PathFinder
from clew.influence.link_prediction.report_tables import PairRows, write_csv, write_parquet
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.scores import Explanation, Scored
from clew.link_prediction.leakage import COUNTERPARTS, RelationPair, marks
from clew.link_prediction.triples import HEAD, TAIL, KnowledgeGraph, Triples
from clew.runs import influence_report as records
from clew.runs.validation_record import ValidationSummary
from clew.training.manifest import CheckpointRecord

JSON_ENTRIES = 100_000
"""Largest number of entries in the JSON file, which holds the strongest if all were kept."""
SIGNIFICANT_DIGITS = 7
MAX_FACTS_PER_STEP = 20
"""Largest number of facts that are kept between two neighbours on a path, the strongest first.
UMLS has at most 17; thousands in a graph would make files of gigabytes."""
TESTS_PER_PASS = 16
FACTS_PER_PASS = 2**14


@dataclass(frozen=True, eq=False)
class ScoredPaths:
    """The paths of one test triple, with the influence of their facts by training index."""

    paths: Sequence[EntityPath]
    influence: Mapping[int, float]
    agreeing: Mapping[int, int] = field(default_factory=dict)
    """Number of runs with the sign of the mean; empty without an ensemble."""


def scored_paths(
    tracer: Tracer, finder: PathFinder, tests: Triples, explanations: Sequence[Explanation]
) -> list[ScoredPaths]:
    """Find the paths of each test, and score their facts in groups of a few tests.

    Scores through training steps come from one pass for all facts: only those that the explanations
    list are known.
    """
    found = [finder.find(test) for test in tests]
    scored: list[ScoredPaths] = []
    if tracer.settings.goes_through_steps:
        for listed in (explanation.listed for explanation in explanations):
            for row in zip(listed.train.tolist(), listed.influence.tolist(), strict=True):
                known = {fact: score for fact, score in zip(*row, strict=True) if fact >= 0}
                scored.append(ScoredPaths(found[len(scored)], known))
        return scored
    for start in range(0, len(tests), TESTS_PER_PASS):
        group = found[start : start + TESTS_PER_PASS]
        facts = [{f for path in paths for step in path.steps for f in step} for paths in group]
        every = sorted(set().union(*facts))
        if not every:
            scored += [ScoredPaths(paths, {}) for paths in group]
            continue
        summation = tracer.summation(tests[start : start + TESTS_PER_PASS])
        blocks = np.array_split(np.array(every, np.int64), -(-len(every) // FACTS_PER_PASS))
        tiles = [summation.tile(block) for block in blocks]
        agreeing = [
            (tile.by_run.sign() == tile.influence.sign()).sum(0)
            for tile in tiles
            if tile.by_run is not None
        ]
        counts = torch.cat(agreeing, 1).tolist() if agreeing else [()] * len(group)
        influence = torch.cat([tile.influence for tile in tiles], 1).tolist()
        for paths, own, *rows in zip(group, facts, influence, counts, strict=True):
            scores, agree = (
                {fact: value for fact, value in zip(every, row, strict=False) if fact in own}
                for row in rows
            )
            scored.append(ScoredPaths(paths, scores, agree))
    return scored


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
    paths: Sequence[ScoredPaths] = ()
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

    @property
    def model(self) -> records.ReportModel:
        weights = tuple(
            records.CheckpointWeight(record.epoch, record.step, record.learning_rate_weight)
            for record in self.checkpoints
        )
        return records.ReportModel(self.run_id, self.task, weights, self.runs)

    def triple(self, triple: np.ndarray) -> records.TripleRecord:
        entities, relations = self.graph.entities, self.graph.relations
        pairs = zip((entities, relations, entities), triple.tolist(), strict=True)
        terms = (records.Term(each.name(id), each.label(id)) for each, id in pairs)
        return records.TripleRecord(*terms)


def write_report(folder: Path, source: ReportSource, findings: Findings) -> records.InfluenceReport:
    """Write `influence.json`, `influence.csv` and `influence.parquet` into `folder`."""
    report = build_report(source, findings)
    steps, rows, first = tuple(record.step for record in source.checkpoints), [], 0
    for explanation in findings.explanations:
        part = slice(first, first + len(explanation.self_influence))
        of_tests = findings.tests[part], explanation.listed, findings.candidates[part]
        rows.append(PairRows(first, *of_tests, explanation.parts, steps, source.pairs))
        first = part.stop
    records.write_influence_json(report, folder / names.INFLUENCE_JSON)
    for name, write in ((names.INFLUENCE_CSV, write_csv), (names.INFLUENCE_PARQUET, write_parquet)):
        with replacing(folder / name) as temporary:
            write(temporary, source.graph, rows)
    return report


def build_report(source: ReportSource, findings: Findings) -> records.InfluenceReport:
    """Turn findings into a report that is readable without any other file."""
    limit = max(1, JSON_ENTRIES // max(1, len(findings.tests)))
    tests = [_test(source, findings.only(test), limit) for test in range(len(findings.tests))]
    return records.InfluenceReport(
        model=source.model,
        settings=dict(source.settings),
        train_size=len(source.graph.train),
        seconds=findings.seconds,
        device=source.device,
        validation=source.validation,
        tests=tuple(tests),
    )


def _test(source: ReportSource, found: Findings, limit: int) -> records.ExplainedTriple:
    """Return the findings of one test triple."""
    (test,), (explanation,) = found.tests, found.explanations
    proponents, opponents = _places(explanation, limit)
    candidates, own = int(found.candidates[0]), float(explanation.self_influence[0])
    entries = partial(_entries, source, test, explanation.parts)
    record, ends = source.triple(test), source.graph.train[:, [HEAD, TAIL]]
    sides = ((record.head.label, test[HEAD]), (record.tail.label, test[TAIL]))
    untrained = tuple(label for label, entity in sides if not (ends == entity).any())
    return records.ExplainedTriple(
        test=record,
        score=float(found.scores[0]),
        rank=float(found.ranks[0]),
        self_influence=None if np.isnan(own) else own,
        candidates=candidates,
        truncated=len(proponents) + len(opponents) < candidates,
        untrained=untrained or None,
        proponents=entries(explanation.proponents, proponents),
        opponents=entries(explanation.opponents, opponents),
        paths=_found_paths(source, test, found.paths[0]) if found.paths else None,
    )


def _found_paths(source: ReportSource, test: np.ndarray, scored: ScoredPaths) -> records.FoundPaths:
    def step(fact: int) -> records.PathStep:
        numbers = scored.influence.get(fact), scored.agreeing.get(fact)
        return records.PathStep(source.triple(source.graph.train[fact]), fact, *numbers)

    def strongest(facts: Sequence[int]) -> tuple[records.PathStep, ...]:
        order = sorted(facts, key=lambda fact: -abs(scored.influence.get(fact, 0.0)))
        return tuple(map(step, order[:MAX_FACTS_PER_STEP]))

    return records.FoundPaths(
        MAX_STEPS if test[HEAD] != test[TAIL] else 0,
        MAX_PATHS,
        tuple(
            records.PathRecord(
                path.cost, tuple(map(strongest, path.steps)), tuple(map(len, path.steps))
            )
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
) -> tuple[records.InfluenceEntry, ...]:
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
        records.InfluenceEntry(
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
