"""A batch explanation on a cluster: nodes explain parts of the test triples, we keep the results.

A part is some groups, the same as without a cluster. A node works in a folder of its own, whose
files come here: one process writes the output folder, each test triple once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clew.errors import ClusterError
from clew.files import working_folder
from clew.influence.link_prediction.report import ReportSource
from clew.workflows.clusters.cluster import Cluster
from clew.workflows.explaining.batch_groups import BatchTrace, ids_of
from clew.workflows.explaining.batch_request import BatchRequest
from clew.workflows.explaining.batch_results import Outcome, OutputFolder
from clew.workflows.explaining.given_triples import GivenTriple
from clew.workflows.explaining.trace_output import identity
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.tracin import report_source, settings_of

PARTS_PER_SLOT = 4
"""So that nodes end at about the same time, and little is lost with one that dies."""


@dataclass(frozen=True)
class PartResult:
    """What became of a part's test triples, with the files of those that were explained."""

    outcomes: tuple[Outcome, ...]
    files: Mapping[int, Mapping[str, bytes]]
    """Index of a test triple to its files' names and content."""
    seconds: float


def described_source(
    source: TraceSource, request: BatchRequest, settings: Mapping[str, Any]
) -> tuple[ReportSource, dict[str, Any]]:
    """Return what all results have in common, and what they depend on."""
    labelled = replace(source.task.graph, **request.labels(source.task.graph))
    report = replace(report_source(source, settings), graph=labelled)
    return report, identity(settings, report.model) | request.label_digests()


def explain_part(
    request: BatchRequest, tests: Sequence[GivenTriple], settings: Mapping[str, Any]
) -> PartResult:
    """Explain a part; `settings` are those of the command, for the reports.

    Raises:
        UsageError: the model or the data cannot be used here, or are others than the command's.
    """
    with (
        open_trace_source(request.model, request.overrides, files=request.files) as source,
        working_folder("part") as folder,
    ):
        report, expected = described_source(source, request, settings)
        own = described_source(source, request, settings_of(source, ids_of(tests)))[1]
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
    *,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> list[Outcome]:
    """Return the outcome of every test triple, in order; results are kept as parts end.

    A part that a node refuses, or that is lost with node after node, fails with its test triples.
    """
    outcomes, waiting = batch.look(tests)
    progress(len(outcomes), len(tests))
    for part in _parts([test for test, _ in waiting], batch.group_size, cluster.slots):
        cluster.submit(part, explain_part, replace(request, output_dir=None), part, settings)
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
    """Divide test triples at the borders of groups."""
    num_groups = -(-len(tests) // group_size)
    size = group_size * max(1, -(-num_groups // (slots * PARTS_PER_SLOT)))
    return [tuple(tests[start : start + size]) for start in range(0, len(tests), size)]
