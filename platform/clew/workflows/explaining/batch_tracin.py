"""Explain many predictions by the training triples near them, and continue after a kill.

Test triples are explained in groups. The cost of a group is the rows in the union of its tests'
candidates, which the tests share. The result of each test triple is written before the next group
begins, so a killed command loses at most one group.

On a cluster, a part of the work consists of several groups, the same groups as without a cluster.
A node returns what it found. Only this process writes the output folder, each test triple once.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.config.services import ClusterRequest
from clew.errors import ClewError, ClusterError, ConfigError, DataError, Interrupted, described
from clew.influence.link_prediction.paths import Neighbourhood
from clew.influence.link_prediction.report import Findings, ReportSource, build_report
from clew.link_prediction.descriptions import read_edge_map, read_labels
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.runs.base import Tracker
from clew.runs.validation_record import label_of
from clew.workflows.cluster import Cluster, opened_cluster
from clew.workflows.explaining import tracin
from clew.workflows.explaining.members import Progress, open_with_members
from clew.workflows.explaining.result_files import Outcome, OutputFolder, identity_of
from clew.workflows.explaining.trace_source import (
    GivenFiles,
    GivenTriple,
    TraceSource,
    open_trace_source,
    read_test_triples,
)
from clew.workflows.explaining.tracin import explain
from clew.workflows.outputs import check_folder

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = Path("runs/batch_tracin")
Waiting = list[tuple[GivenTriple, np.ndarray]]
"""Test triples to explain, with their candidates."""
Explained = tuple[Outcome, Findings | None]
"""The outcome of a test triple, and its results if it was explained."""
PARTS_PER_SLOT = 4
"""Several parts, so that nodes end at about the same time and a dead node loses little work."""


@dataclass(frozen=True)
class BatchRequest:
    """What to explain, and where the results go."""

    model: str
    test_triples: str
    output_dir: Path | None = None
    """None: a separate folder for each model, file of test triples, and settings."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    files: GivenFiles | None = None
    start_index: int = 0
    max_triples: int | None = None
    edge_map: str = ""
    node_name_dict: str = ""

    def chosen(self, graph: KnowledgeGraph) -> list[GivenTriple]:
        """Read at most `max_triples` test triples, starting at `start_index`."""
        tests = read_test_triples(self.test_triples, graph)
        if self.start_index >= len(tests):
            raise ConfigError(
                f"start_index is {self.start_index}, but {self.test_triples} has {len(tests)} lines"
            )
        stop = None if self.max_triples is None else self.start_index + self.max_triples
        return tests[self.start_index : stop]

    def folder(self, identity: Mapping[str, Any]) -> Path:
        if self.output_dir is not None:
            return self.output_dir
        content = [identity, str(Path(self.test_triples).resolve())]
        text = json.dumps(content, sort_keys=True, default=str)
        return DEFAULT_FOLDER / hashlib.sha256(text.encode()).hexdigest()[:12]

    def labelled(self, graph: KnowledgeGraph) -> KnowledgeGraph:
        """Return the graph with labels from `node_name_dict` and `edge_map`, if they are given."""
        changed: dict[str, Any] = {}
        if self.node_name_dict:
            changed["entities"] = read_labels(Path(self.node_name_dict), graph.entities)
        if self.edge_map:
            path = Path(self.edge_map)
            read = read_edge_map if path.suffix == ".json" else read_labels
            changed["relations"] = read(path, graph.relations)
        return replace(graph, **changed)

    def identity(self, report: ReportSource) -> dict[str, Any]:
        """Return what the results depend on: `identity_of` the report, and the files of labels."""
        files = {"edge_map": self.edge_map, "node_name_dict": self.node_name_dict}
        return identity_of(report) | {
            f"{name}_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            for name, path in files.items()
            if path
        }


@dataclass
class BatchTrace:
    """The output of a request, and what has become of its test triples."""

    source: TraceSource
    report: ReportSource
    output: OutputFolder
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    """Time of all explanations; on a cluster, summed over nodes."""

    def look(self, tests: Sequence[GivenTriple]) -> Waiting:
        """Note the outcomes that are known already, and return the triples to explain."""
        graph, waiting = self.report.graph, Waiting()
        near = Neighbourhood(graph.train, graph.num_entities)
        settings = self.source.model.config.influence
        for test in tests:
            if test.ids is None:
                self.outcomes[test.index] = failed(test, test.problem)
            elif (kept := self.output.kept(test.index, test.text)) is not None:
                self.outcomes[test.index] = kept
            elif len(candidates := near.candidates(test.ids[0], test.ids[2], settings)):
                waiting.append((test, candidates))
            else:
                strict = str(settings.strict_path_filtering).lower()
                message = (
                    f"no candidates within n_hops={settings.n_hops} (min_degree="
                    f"{settings.min_degree}, strict_path_filtering={strict}); widen the filter"
                )
                self.outcomes[test.index] = failed(test, message)
        return waiting

    def keep(self, explained: Iterable[Explained]) -> None:
        """Write the results of test triples, each all or nothing."""
        for outcome, findings in explained:
            self.outcomes[outcome.index] = outcome
            if findings is not None:
                self.seconds += findings.seconds
                try:
                    self.output.write(outcome, self.report, findings)
                except (ClewError, RuntimeError, MemoryError) as error:
                    if isinstance(error, Interrupted):
                        raise
                    self.outcomes[outcome.index] = _refused(outcome.index, outcome.text, error)


def explain_groups(source: TraceSource, waiting: Waiting) -> Iterator[list[Explained]]:
    size = source.model.config.influence.tests_per_group
    for start in range(0, len(waiting), size):
        yield explain_group(source, waiting[start : start + size])


def explain_group(source: TraceSource, group: Waiting) -> list[Explained]:
    """Explain a group together; if that fails, explain its triples one by one."""
    tests = [test for test, _ in group]
    try:
        mask = np.zeros((len(group), len(source.task.graph.train)), bool)
        for row, (_, candidates) in zip(mask, group, strict=True):
            row[candidates] = True
        findings = explain(source, ids_of(tests), candidates=mask)
    except Interrupted:
        raise
    except (ClewError, RuntimeError, MemoryError) as error:
        if len(group) > 1:
            return [found for item in group for found in explain_group(source, [item])]
        return [(_refused(tests[0].index, tests[0].text, error), None)]
    return [_done(test, findings.only(row)) for row, test in enumerate(tests)]


def _done(test: GivenTriple, findings: Findings) -> Explained:
    numbers = (findings.candidates, findings.scores, findings.ranks)
    candidates, score, rank = (values[0].item() for values in numbers)
    return Outcome(test.index, test.text, "done", "", candidates, score, rank), findings


def _refused(index: int, text: str, error: Exception) -> Outcome:
    logger.warning("line %d (%s): %s", index + 1, text, error)
    return Outcome(index, text, "failed", described(error))


def failed(test: GivenTriple, message: str) -> Outcome:
    return Outcome(test.index, test.text, "failed", message)


def ids_of(tests: Sequence[GivenTriple]) -> Triples:
    return np.array([t.ids for t in tests if t.ids is not None], np.int32).reshape(-1, 3)


@dataclass(frozen=True)
class BatchResult:
    """The outcome of every test triple."""

    outcomes: tuple[Outcome, ...]
    run_id: str | None
    output_dir: Path
    seconds: float
    notes: tuple[str, ...] = ()
    """Notes that apply to all scores."""

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    def table(self) -> str:
        """Return the counts, and the failed triples with their reasons."""
        lines = [
            f"run {self.run_id or '(not recorded)'}",
            f"{self.count('done')} explained, {self.count('kept')} kept from before, "
            f"{self.count('failed')} failed; results in {self.output_dir}",
        ]
        failures = (outcome for outcome in self.outcomes if outcome.status == "failed")
        lines += [f"  line {outcome.index + 1}: {outcome.message}" for outcome in failures]
        return "\n".join([*lines, *self.notes])

    def as_dict(self) -> dict[str, Any]:
        counts = {status: self.count(status) for status in ("done", "kept", "failed")}
        where = {"run_id": self.run_id, "output": str(self.output_dir)}
        return {**where, **counts, "seconds": self.seconds}


def batch_tracin(
    request: BatchRequest,
    *,
    cluster: ClusterRequest | None = None,
    progress: Progress = lambda done, total: None,
    trained: Progress = lambda done, total: None,
) -> BatchResult:
    """Explain test triples from a file by their candidates, and record a run of kind `trace`.

    Runs with other seeds are trained first if `influence.seeds` needs them, see `tracin`.
    """
    check_folder("--output-dir", request.output_dir)
    with ExitStack() as stack:
        opened = open_with_members(
            request.model,
            request.overrides,
            files=request.files,
            check=lambda source: request.chosen(source.task.graph),
            progress=trained,
        )
        source = stack.enter_context(opened)
        of_nodes = replace(request, model=",".join(source.runs) or request.model)
        if source.tracer.settings.score == "unrolled":
            raise ConfigError(
                "influence.score is unrolled, which repeats the whole run for every group of "
                "tests; explain a few triples with clew tracin, or choose raw or cosine"
            )
        graph = request.labelled(source.task.graph)
        tests = request.chosen(graph)
        if not len(ids := ids_of(tests)):
            problems = [failed(test, test.problem) for test in tests]
            raise DataError(_none_explained(request, problems))
        settings = tracin.settings_of(source, ids)
        report = replace(tracin.report_source(source, settings), graph=graph)
        identity = request.identity(report)
        nodes = stack.enter_context(opened_cluster(cluster))
        output = OutputFolder(request.folder(identity))
        output.prepare(identity)
        batch, name = BatchTrace(source, report, output), f"batch_tracin {source.task.dataset}"
        tracker = stack.enter_context(tracin.open_trace_run(source, name))
        waiting = batch.look(tests)
        progress(len(batch.outcomes), len(tests))
        explained = explain_groups(source, waiting)
        if nodes is not None:
            group = source.model.config.influence.tests_per_group
            explained = explain_on_cluster(nodes, of_nodes, waiting, group, identity)
        for found in explained:
            batch.keep(found)
            progress(len(batch.outcomes), len(tests))
        outcomes = [batch.outcomes[test.index] for test in tests]
        _record(tracker, request, batch, outcomes)
        label = label_of(report.validation, settings, report.model.reference)
        notes = (*names.model_notes(settings), label.sentence)
        return BatchResult(tuple(outcomes), tracker.run_id, output.root, batch.seconds, notes)


def _record(
    tracker: Tracker, request: BatchRequest, batch: BatchTrace, outcomes: Sequence[Outcome]
) -> None:
    """Join the results, and record them with the run."""
    batch.output.summarise(outcomes)
    if all(outcome.status == "failed" for outcome in outcomes):
        raise DataError(_none_explained(request, outcomes))
    nothing = Findings(np.empty((0, 3), np.int32), [], *(np.empty(0),) * 3, batch.seconds)
    tracker.artifact(batch.output.join(build_report(batch.report, nothing)))
    tracker.artifact(batch.output.root / "summary.json", "influence")
    if done := [outcome.candidates for outcome in outcomes if outcome.status == "done"]:
        measured = tracin.metrics_of(len(done), sum(done), batch.seconds, batch.report.settings)
        tracker.metrics(measured, batch.source.model.manifest.step)


def _none_explained(request: BatchRequest, outcomes: Sequence[Outcome]) -> str:
    reasons = "; ".join(f"line {o.index + 1}: {o.message}" for o in outcomes[:3])
    return f"{request.test_triples}: no triple could be explained ({reasons})"


def explain_part(
    request: BatchRequest, waiting: Waiting, expected: Mapping[str, Any]
) -> list[Explained]:
    """Explain a part of the test triples on a node; `expected` is what the results depend on."""
    with open_trace_source(request.model, request.overrides, files=request.files) as source:
        settings = tracin.settings_of(source, ids_of([test for test, _ in waiting]))
        own = request.identity(tracin.report_source(source, settings))
        for key in expected:
            if own.get(key) != expected[key]:
                raise ClusterError(
                    f"{key} is {own.get(key)!r} on a node, {expected[key]!r} for the command; give "
                    "all nodes the same data and tracking store"
                )
        return [found for group in explain_groups(source, waiting) for found in group]


def explain_on_cluster(
    cluster: Cluster, request: BatchRequest, waiting: Waiting, group: int, identity: dict[str, Any]
) -> Iterator[list[Explained]]:
    """Yield explained test triples as parts end, each of several groups of `group` triples.

    If a node refuses a part, or every node that tries it dies, all its test triples fail.
    """
    num_groups = -(-len(waiting) // group)
    size = group * max(1, -(-num_groups // (cluster.slots * PARTS_PER_SLOT)))
    for start in range(0, len(waiting), size):
        cluster.submit(start, explain_part, request, waiting[start : start + size], identity)
    for start, ended in cluster.finished():
        lost = ((failed(test, str(ended.error)), None) for test, _ in waiting[start : start + size])
        yield ended.result or [*lost]
