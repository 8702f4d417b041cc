"""The work of a batch explanation: test triples in groups, each result on the disk at once.

Where processes share the entity table, all of them explain every group, and the main one writes.
On a cluster, a part of the work is some groups, the same as without one. A node works in a folder
of its own, whose files come here: one process writes the output folder, each test triple once.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from clew.errors import ClewError, ClusterError, Interrupted, NonFiniteLossError, described
from clew.files import working_folder
from clew.folders import cache_folder
from clew.influence.link_prediction.proximity import Filtering, Neighbourhood
from clew.influence.link_prediction.report import ReportSource
from clew.link_prediction.triples import Triples
from clew.workflows.clusters.cluster import Cluster
from clew.workflows.explaining.batch_request import BatchRequest
from clew.workflows.explaining.batch_results import Outcome, OutputFolder
from clew.workflows.explaining.given_triples import GivenTriple
from clew.workflows.explaining.trace_source import TraceSource, open_trace_source
from clew.workflows.explaining.tracin import Progress, explain, report_source, settings_of

logger = logging.getLogger(__name__)

PARTS_PER_SLOT = 4
"""So that nodes end at about the same time, and little is lost with one that dies."""
Waiting = list[tuple[GivenTriple, np.ndarray]]
"""Test triples to explain, with their candidates."""


class BatchTrace:
    """Works through test triples in groups."""

    def __init__(
        self,
        source: TraceSource,
        report: ReportSource,
        output: OutputFolder,
    ) -> None:
        self.source, self.report, self.output = source, report, output
        self._neighbourhood = Neighbourhood.cached(report.graph, cache_folder("neighbourhoods"))
        self._filtering = Filtering.from_config(source.model.config.influence)
        self.seconds = 0.0

    @property
    def group_size(self) -> int:
        """Test triples that are computed together."""
        return self.source.model.config.influence.tests_per_group

    def run(self, tests: Sequence[GivenTriple], progress: Progress) -> list[Outcome]:
        """Return the outcome of every test triple, in order."""
        outcomes, waiting = self._look_together(tests)
        progress(len(outcomes), len(tests))
        for start in range(0, len(waiting), self.group_size):
            for outcome in self._group(waiting[start : start + self.group_size]):
                outcomes[outcome.index] = outcome
            progress(len(outcomes), len(tests))
        return [outcomes[index] for index in sorted(outcomes)]

    def _look_together(self, tests: Sequence[GivenTriple]) -> tuple[dict[int, Outcome], Waiting]:
        """Return what `look` does in the main process; the others learn from it what waits."""
        world = self.source.world
        known, waiting = self.look(tests if world.is_main else [])
        indices = json.dumps([test.index for test, _ in waiting])
        chosen = set(json.loads(world.broadcast_text(indices, torch.device("cpu"))))
        if not world.is_main:
            waiting = [(t, self._candidates(t.ids)) for t in tests if t.ids and t.index in chosen]
        return known, waiting

    def look(self, tests: Sequence[GivenTriple]) -> tuple[dict[int, Outcome], Waiting]:
        """Return what is known before any computing, by index; and the rest, with candidates."""
        known: dict[int, Outcome] = {}
        waiting: Waiting = []
        for test in tests:
            outcome, candidates = self._look(test)
            if outcome is not None:
                known[test.index] = outcome
            else:
                waiting.append((test, candidates))
        return known, waiting

    def _look(self, test: GivenTriple) -> tuple[Outcome | None, np.ndarray]:
        """Return what is known of a test triple before any computing, and its candidates."""
        nothing = np.empty(0, np.int64)
        if test.ids is None:
            return unusable(test), nothing
        folder = self.output.finished(test.index, test.text)
        if folder is not None:
            return self.output.kept(test.index, test.text, folder), nothing
        candidates = self._candidates(test.ids)
        if not len(candidates):
            f = self._filtering
            message = (
                f"no candidates within n_hops={f.n_hops} (min_degree={f.min_degree}, "
                f"strict_path_filtering={str(f.strict_paths).lower()}); widen the filter"
            )
            return Outcome(test.index, test.text, "failed", message), candidates
        return None, candidates

    def _candidates(self, ids: tuple[int, int, int]) -> np.ndarray:
        return self._neighbourhood.candidates(ids[0], ids[2], self._filtering)

    def _group(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        """Explain a group together; if that fails, one by one, to find out which fails.

        Only what fails in all processes alike can be tried again: scores that are not finite.
        """
        try:
            return self._explain(group)
        except (Interrupted, KeyboardInterrupt):
            raise
        except (ClewError, RuntimeError, MemoryError) as error:
            if self.source.world.size > 1 and not isinstance(error, NonFiniteLossError):
                raise
            if len(group) > 1:
                return [outcome for item in group for outcome in self._group([item])]
            test = group[0][0]
            logger.warning("line %d (%s): %s", test.index + 1, test.text, error)
            return [Outcome(test.index, test.text, "failed", described(error))]

    def _explain(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        mask = np.zeros((len(group), len(self.source.task.graph.train)), bool)
        for row, (_, candidates) in enumerate(group):
            mask[row, candidates] = True
        findings = explain(self.source, ids_of([test for test, _ in group]), candidates=mask)
        outcomes = []
        for row, (test, _) in enumerate(group):
            if self.source.world.is_main:
                self.output.write(test.index, test.text, self.report, findings.only(row))
            numbers = (
                int(findings.candidates[row]),
                float(findings.scores[row]),
                float(findings.ranks[row]),
            )
            outcomes.append(Outcome(test.index, test.text, "done", "", *numbers))
        self.seconds += findings.seconds
        return outcomes


def unusable(test: GivenTriple) -> Outcome:
    """Return the outcome of a line that is no triple of the graph."""
    return Outcome(test.index, test.text, "failed", test.problem)


def ids_of(tests: Sequence[GivenTriple]) -> Triples:
    """Return the ids of the usable triples."""
    return np.array([t.ids for t in tests if t.ids is not None], np.int32).reshape(-1, 3)


@dataclass(frozen=True)
class PartResult:
    """What became of a part's test triples, with the files of those that were explained."""

    outcomes: tuple[Outcome, ...]
    files: Mapping[int, Mapping[str, bytes]]
    """Index of a test triple to its files' names and content."""
    seconds: float


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

    A part that a node refuses, or that is lost with node after node, fails with its test triples.
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
    """Divide test triples at the borders of groups."""
    num_groups = -(-len(tests) // group_size)
    size = group_size * max(1, -(-num_groups // (slots * PARTS_PER_SLOT)))
    return [tuple(tests[start : start + size]) for start in range(0, len(tests), size)]
