"""Explain many predictions by the training triples near them, and continue after a kill.

Test triples are computed together, a group at a time: the rows of their candidates' union are the
work, and they are shared. Each test triple has its own result on the disk before the next group
begins, so a killed run loses at most a group.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.errors import ConfigError, DataError
from clew.influence.link_prediction.report import Findings, ReportSource, build_report
from clew.runs.base import Tracker
from clew.runs.influence_report import InfluenceReport
from clew.training.peers import require_same
from clew.workflows.clusters.cluster import opened_cluster
from clew.workflows.clusters.nodes import ClusterRequest
from clew.workflows.explaining.batch_request import BatchRequest
from clew.workflows.explaining.batch_results import Outcome, OutputFolder
from clew.workflows.explaining.batch_work import BatchTrace, ids_of, run_on_cluster, unusable
from clew.workflows.explaining.given_triples import read_test_triples
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.tracin import (
    Progress,
    deviation,
    open_trace_run,
    report_source,
    settings_of,
    speed,
)
from clew.workflows.outputs import check_folder
from clew.workflows.shared_table import digest, sharing_the_table

KEPT = "finished test triples are kept: start again to add the others"
"""What is left when a process is lost."""


@dataclass(frozen=True)
class BatchResult:
    """What became of every test triple."""

    outcomes: tuple[Outcome, ...]
    run_id: str | None
    output_dir: Path
    seconds: float
    notes: tuple[str, ...] = ()
    """What is to be said of all scores."""

    def count(self, status: str) -> int:
        """Return how many test triples have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def table(self) -> str:
        """Return the counts, and the failed triples with their reasons."""
        lines = [
            f"run {self.run_id or '(not recorded)'}",
            f"{self.count('done')} explained, {self.count('kept')} kept from before, "
            f"{self.count('failed')} failed; results in {self.output_dir}",
        ]
        lines += [
            f"  line {outcome.index + 1}: {outcome.message}"
            for outcome in self.outcomes
            if outcome.status == "failed"
        ]
        return "\n".join([*lines, *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        counts = {status: self.count(status) for status in ("done", "kept", "failed")}
        where = {"run_id": self.run_id, "output": str(self.output_dir)}
        return {**where, **counts, "seconds": self.seconds}


def batch_tracin(
    request: BatchRequest,
    *,
    cluster: ClusterRequest | None = None,
    progress: Progress = lambda done, total: None,
) -> BatchResult:
    """Explain test triples from a file, each by its candidates; record it as a run of kind `trace`.

    The processes that torchrun started explain together, each with its own rows of the entities;
    the main one records and writes.

    Args:
        request: What to explain, and where results go.
        cluster: Where to work; None: in this process.
        progress: Called with the number of test triples done and in total.

    Raises:
        UsageError: the model, the data, the test triples, the output folder or the cluster cannot
            be used, or no test triple could be explained.
    """
    check_folder("--output-dir", request.output_dir)
    with ExitStack() as stack:
        world = stack.enter_context(sharing_the_table(KEPT))
        if cluster and world.size > 1:
            raise ConfigError(
                f"--cluster is given, but torchrun started {world.size} processes; leave one of "
                "them out"
            )
        source = stack.enter_context(
            open_trace_source(request.model, request.overrides, files=request.files, world=world)
        )
        if source.tracer.settings.score == "unrolled":
            raise ConfigError(
                "influence.score is unrolled, which goes through the whole training for every "
                "group of tests; explain a few triples with clew tracin, or choose raw or cosine"
            )
        graph = request.labelled(source.task.graph)
        tests = request.chosen(read_test_triples(request.test_triples, graph))
        if not len(ids_of(tests)):
            raise DataError(_none_explained(request, [unusable(test) for test in tests]))
        require_same(world, {"test triples": digest([[t.text, t.ids] for t in tests])})
        settings = settings_of(source, ids_of(tests))
        report = replace(report_source(source, settings), graph=graph)
        identity = request.identity(report)
        nodes = stack.enter_context(opened_cluster(cluster)) if cluster else None
        output = OutputFolder(request.folder(identity))
        if world.is_main:
            output.prepare(identity)
        batch = BatchTrace(source, report, output)
        tracker = stack.enter_context(open_trace_run(source, f"batch_tracin {source.task.dataset}"))
        if nodes is None:
            outcomes = batch.run(tests, progress)
        else:
            outcomes = run_on_cluster(nodes, request, batch, tests, progress)
        if not world.is_main:
            return BatchResult(tuple(outcomes), None, output.root, batch.seconds)
        _record(tracker, request, batch, outcomes)
        notes = tuple(names.average_notes(settings))
        return BatchResult(tuple(outcomes), tracker.run_id, output.root, batch.seconds, notes)


def _record(
    tracker: Tracker,
    request: BatchRequest,
    batch: BatchTrace,
    outcomes: Sequence[Outcome],
) -> None:
    """Join what was explained, and record it.

    Raises:
        DataError: nothing was.
    """
    batch.output.summarise(outcomes)
    if all(outcome.status == "failed" for outcome in outcomes):
        raise DataError(_none_explained(request, outcomes))
    tracker.artifact(batch.output.join(_frame(batch.report, batch.seconds)))
    tracker.artifact(batch.output.root / "summary.json", "influence")
    if any(outcome.status == "done" for outcome in outcomes):
        measured = _speed(outcomes, batch.seconds) | deviation(batch.report.settings)
        tracker.metrics(measured, batch.source.model.manifest.step)


def _frame(report: ReportSource, seconds: float) -> InfluenceReport:
    """Return the head of the joined report."""
    none = Findings(np.empty((0, 3), np.int32), [], *(np.empty(0),) * 3, seconds)
    return build_report(report, none)


def _speed(outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    """Return the metrics of speed over everything that was computed; of nodes, their sum."""
    candidates = np.array([o.candidates for o in outcomes if o.status == "done"])
    tests, empty = np.empty((len(candidates), 3), np.int32), np.empty(0)
    return speed(Findings(tests, [], empty, empty, candidates, seconds))


def _none_explained(request: BatchRequest, outcomes: Sequence[Outcome]) -> str:
    reasons = "; ".join(f"line {o.index + 1}: {o.message}" for o in outcomes[:3])
    return f"{request.test_triples}: no triple could be explained ({reasons})"
