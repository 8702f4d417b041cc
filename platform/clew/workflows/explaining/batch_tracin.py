"""Explain many predictions by the training triples near them, and continue after a kill.

Test triples are explained in groups. The cost of a group is the rows in the union of its tests'
candidates, which the tests share. The result of each test triple is written before the next group
begins, so a killed command loses at most one group.

On a cluster, a part of the work consists of several groups, the same groups as without a cluster.
A node works in a temporary folder and returns the files. Only this process writes the output
folder, each test triple once.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.errors import ClusterError, ConfigError, DataError
from clew.files import working_folder
from clew.influence.link_prediction.report import Findings, build_report
from clew.runs.base import Tracker
from clew.training.peers import require_same
from clew.workflows.cluster import Cluster, ClusterRequest, opened_cluster
from clew.workflows.explaining.batch_results import Outcome, OutputFolder
from clew.workflows.explaining.batch_work import BatchRequest, BatchTrace, ids_of, unusable
from clew.workflows.explaining.given_triples import GivenTriple, read_test_triples
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
"""What to tell the user when a process is lost."""
PARTS_PER_SLOT = 4
"""Several parts, so that nodes end at about the same time and a dead node loses little work."""


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
        lines += [
            f"  line {outcome.index + 1}: {outcome.message}"
            for outcome in self.outcomes
            if outcome.status == "failed"
        ]
        return "\n".join([*lines, *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """Return the run, the output folder, the counts and the seconds as JSON values."""
        counts = {status: self.count(status) for status in ("done", "kept", "failed")}
        where = {"run_id": self.run_id, "output": str(self.output_dir)}
        return {**where, **counts, "seconds": self.seconds}


def batch_tracin(
    request: BatchRequest,
    *,
    cluster: ClusterRequest | None = None,
    progress: Progress = lambda done, total: None,
) -> BatchResult:
    """Explain test triples from a file by their candidates, and record a run of kind `trace`.

    Processes that torchrun started explain together, each with its own rows of the entity table.
    The main process records and writes.

    Args:
        request: What to explain, and where the results go.
        cluster: The cluster to work on; None: work in this process.
        progress: Called with the number of finished test triples and the total.

    Raises:
        UsageError: The model, the data, the test triples, the output folder or the cluster cannot
            be used, or no test triple could be explained.
    """
    check_folder("--output-dir", request.output_dir)
    with ExitStack() as stack:
        world = stack.enter_context(sharing_the_table(KEPT))
        if cluster and world.size > 1:
            raise ConfigError(
                f"--cluster is given, but torchrun started {world.size} processes; use only one "
                "of the two"
            )
        source = stack.enter_context(
            open_trace_source(request.model, request.overrides, files=request.files, world=world)
        )
        if source.tracer.settings.score == "unrolled":
            raise ConfigError(
                "influence.score is unrolled, which repeats the whole training for every group of "
                "tests; explain a few triples with clew tracin, or choose raw or cosine"
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
    """Join the results, and record them with the run.

    Raises:
        DataError: No test triple was explained.
    """
    batch.output.summarise(outcomes)
    if all(outcome.status == "failed" for outcome in outcomes):
        raise DataError(_none_explained(request, outcomes))
    nothing = Findings(np.empty((0, 3), np.int32), [], *(np.empty(0),) * 3, batch.seconds)
    tracker.artifact(batch.output.join(build_report(batch.report, nothing)))
    tracker.artifact(batch.output.root / "summary.json", "influence")
    done = np.array([outcome.candidates for outcome in outcomes if outcome.status == "done"])
    if len(done):  # on a cluster, the seconds are summed over nodes
        measured = speed(done, batch.seconds) | deviation(batch.report.settings)
        tracker.metrics(measured, batch.source.model.manifest.step)


def _none_explained(request: BatchRequest, outcomes: Sequence[Outcome]) -> str:
    reasons = "; ".join(f"line {o.index + 1}: {o.message}" for o in outcomes[:3])
    return f"{request.test_triples}: no triple could be explained ({reasons})"


@dataclass(frozen=True)
class PartResult:
    """The outcomes of a part's test triples, with the files of those that were explained."""

    outcomes: tuple[Outcome, ...]
    files: Mapping[int, Mapping[str, bytes]]
    """Index of a test triple to the names and content of its files."""
    seconds: float


def explain_part(
    request: BatchRequest, tests: Sequence[GivenTriple], settings: Mapping[str, Any]
) -> PartResult:
    """Explain a part of the test triples on a node; `settings` are the command's, for the reports.

    Raises:
        UsageError: The model or the data cannot be used here, or differ from the command's.
    """
    with (
        open_trace_source(request.model, request.overrides, files=request.files) as source,
        working_folder("part") as folder,
    ):
        graph = request.labelled(source.task.graph)
        report = replace(report_source(source, settings), graph=graph)
        expected = request.identity(report)
        own = request.identity(replace(report, settings=settings_of(source, ids_of(tests))))
        for key in expected:
            if own.get(key) != expected[key]:
                raise ClusterError(
                    f"{key} is {own.get(key)!r} on a node, {expected[key]!r} for the command; give "
                    "all nodes the same data and tracking store"
                )
        output = OutputFolder(folder / "output")
        output.prepare(expected)
        batch = BatchTrace(source, report, output)
        outcomes = batch.run(tests, lambda done, total: None)
        return PartResult(tuple(outcomes), output.files(), batch.seconds)


def run_on_cluster(
    cluster: Cluster,
    request: BatchRequest,
    batch: BatchTrace,
    tests: Sequence[GivenTriple],
    progress: Progress,
) -> list[Outcome]:
    """Return the outcome of every test triple, in order; results are kept as parts end.

    If a node refuses a part, or every node that tries it dies, all its test triples fail.
    """
    outcomes, waiting = batch.look(tests)
    progress(len(outcomes), len(tests))
    for part in _parts([test for test, _ in waiting], batch.group_size, cluster.slots):
        cluster.submit(part, explain_part, request, part, batch.report.settings)
    for part, ended in cluster.finished():
        result: PartResult | None = ended.result
        if result is None:
            failed = (Outcome(t.index, t.text, "failed", str(ended.error)) for t in part)
            outcomes |= {outcome.index: outcome for outcome in failed}
        else:
            for outcome in result.outcomes:
                if outcome.index in result.files:
                    batch.output.receive(outcome.index, result.files[outcome.index])
                outcomes[outcome.index] = outcome
            batch.seconds += result.seconds
        progress(len(outcomes), len(tests))
    return [outcomes[test.index] for test in tests]


def _parts(
    tests: Sequence[GivenTriple], group_size: int, slots: int
) -> list[tuple[GivenTriple, ...]]:
    num_groups = -(-len(tests) // group_size)
    size = group_size * max(1, -(-num_groups // (slots * PARTS_PER_SLOT)))
    return [tuple(tests[start : start + size]) for start in range(0, len(tests), size)]
