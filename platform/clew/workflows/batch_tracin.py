"""Explain many predictions by the training triples near them, and continue after a kill.

Test triples are computed together, a group at a time: the rows of their candidates' union are the
work, and they are shared. Each test triple has its own result on the disk before the next group
begins, so a killed run loses at most a group.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.errors import ClewError, ConfigError, DataError, Interrupted, described
from clew.folders import cache_folder
from clew.influence.link_prediction.proximity import Filtering, Neighbourhood
from clew.influence.link_prediction.report import Findings, ReportSource, build_report
from clew.link_prediction.triples import Triples
from clew.runs.influence_report import InfluenceReport
from clew.workflows.batch_request import BatchRequest
from clew.workflows.batch_results import Outcome, OutputFolder
from clew.workflows.given_triples import GivenTriple, read_test_triples
from clew.workflows.outputs import check_folder
from clew.workflows.trace_output import identity
from clew.workflows.trace_source import TraceSource, open_trace_source
from clew.workflows.tracin import (
    deviation,
    explain,
    open_trace_run,
    report_source,
    settings_of,
    speed,
)

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


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
    request: BatchRequest, *, progress: Progress = lambda done, total: None
) -> BatchResult:
    """Explain test triples from a file, each by its candidates; record it as a run of kind `trace`.

    Raises:
        UsageError: the model, the data, the test triples or the output folder cannot be used, or
            no test triple could be explained.
    """
    check_folder("--output-dir", request.output_dir)
    with open_trace_source(request.model, request.overrides, files=request.files) as source:
        if source.tracer.settings.score == "unrolled":
            raise ConfigError(
                "influence.score is unrolled, which goes through the whole training for every "
                "group of tests; explain a few triples with clew tracin, or choose raw or cosine"
            )
        labelled = replace(source.task.graph, **request.labels(source.task.graph))
        tests = request.chosen(read_test_triples(request.test_triples, labelled))
        if not len(_ids(tests)):
            raise DataError(_none_explained(request, [_unusable(test) for test in tests]))
        settings = settings_of(source, _ids(tests))
        report = replace(report_source(source, settings), graph=labelled)
        scores_depend_on = identity(settings, report.model) | request.label_digests()
        output = OutputFolder(request.folder(scores_depend_on))
        output.prepare(scores_depend_on)
        batch = _Batch(
            source,
            report,
            output,
            Neighbourhood.cached(labelled, cache_folder("neighbourhoods")),
        )
        with open_trace_run(source, f"batch_tracin {source.task.dataset}") as tracker:
            outcomes = batch.run(tests, progress)
            output.summarise(outcomes)
            if all(outcome.status == "failed" for outcome in outcomes):
                raise DataError(_none_explained(request, outcomes))
            folder = output.join(batch.frame())
            tracker.artifact(folder)
            tracker.artifact(output.root / "summary.json", "influence")
            if batch.computed:
                tracker.metrics(batch.speed() | deviation(settings), source.model.manifest.step)
        return BatchResult(
            tuple(outcomes),
            tracker.run_id,
            output.root,
            batch.seconds,
            tuple(names.average_notes(settings)),
        )


class _Batch:
    """Works through test triples in groups."""

    def __init__(
        self,
        source: TraceSource,
        report: ReportSource,
        output: OutputFolder,
        neighbourhood: Neighbourhood,
    ) -> None:
        self._source, self._report = source, report
        self._output, self._neighbourhood = output, neighbourhood
        self._filtering = Filtering.from_config(source.model.config.influence)
        self.computed: list[Findings] = []
        self.seconds = 0.0

    def run(self, tests: Sequence[GivenTriple], progress: Progress) -> list[Outcome]:
        """Return the outcome of every test triple, in order."""
        outcomes: dict[int, Outcome] = {}
        waiting: list[tuple[GivenTriple, np.ndarray]] = []
        for test in tests:
            outcome, candidates = self._look(test)
            if outcome is not None:
                outcomes[test.index] = outcome
            else:
                waiting.append((test, candidates))
        size = self._source.model.config.influence.tests_per_group
        progress(len(outcomes), len(tests))
        for start in range(0, len(waiting), size):
            for outcome in self._group(waiting[start : start + size]):
                outcomes[outcome.index] = outcome
            progress(len(outcomes), len(tests))
        return [outcomes[test.index] for test in tests]

    def frame(self) -> InfluenceReport:
        """Return the head of the joined report."""
        none = Findings(np.empty((0, 3), np.int32), [], *(np.empty(0),) * 3, self.seconds)
        return build_report(self._report, none)

    def speed(self) -> dict[str, float]:
        """Return the metrics of speed over everything that was computed."""
        candidates = np.concatenate([findings.candidates for findings in self.computed])
        tests = np.concatenate([findings.tests for findings in self.computed])
        empty = np.empty(0)
        return speed(Findings(tests, [], empty, empty, candidates, self.seconds))

    def _look(self, test: GivenTriple) -> tuple[Outcome | None, np.ndarray]:
        """Return what is known of a test triple before any computing, and its candidates."""
        nothing = np.empty(0, np.int64)
        if test.ids is None:
            return _unusable(test), nothing
        folder = self._output.finished(test.index, test.text)
        if folder is not None:
            return self._output.kept(test.index, test.text, folder), nothing
        head, _, tail = test.ids
        candidates = self._neighbourhood.candidates(head, tail, self._filtering)
        if not len(candidates):
            f = self._filtering
            message = (
                f"no candidates within n_hops={f.n_hops} (min_degree={f.min_degree}, "
                f"strict_path_filtering={str(f.strict_paths).lower()}); widen the filter"
            )
            return Outcome(test.index, test.text, "failed", message), candidates
        return None, candidates

    def _group(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        """Explain a group together; if that fails, one by one, to find out which fails."""
        try:
            return self._explain(group)
        except (Interrupted, KeyboardInterrupt):
            raise
        except (ClewError, RuntimeError, MemoryError) as error:
            if len(group) > 1:
                return [outcome for item in group for outcome in self._group([item])]
            test = group[0][0]
            logger.warning("line %d (%s): %s", test.index + 1, test.text, error)
            return [Outcome(test.index, test.text, "failed", described(error))]

    def _explain(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        mask = np.zeros((len(group), len(self._source.task.graph.train)), bool)
        for row, (_, candidates) in enumerate(group):
            mask[row, candidates] = True
        findings = explain(self._source, _ids([test for test, _ in group]), candidates=mask)
        outcomes = []
        for row, (test, _) in enumerate(group):
            self._output.write(test.index, test.text, self._report, findings.only(row))
            numbers = (
                int(findings.candidates[row]),
                float(findings.scores[row]),
                float(findings.ranks[row]),
            )
            outcomes.append(Outcome(test.index, test.text, "done", "", *numbers))
        self.computed.append(findings)
        self.seconds += findings.seconds
        return outcomes


def _unusable(test: GivenTriple) -> Outcome:
    return Outcome(test.index, test.text, "failed", test.problem)


def _none_explained(request: BatchRequest, outcomes: Sequence[Outcome]) -> str:
    reasons = "; ".join(f"line {o.index + 1}: {o.message}" for o in outcomes[:3])
    return f"{request.test_triples}: no triple could be explained ({reasons})"


def _ids(tests: Sequence[GivenTriple]) -> Triples:
    """Return the ids of the usable triples."""
    return np.array([t.ids for t in tests if t.ids is not None], np.int32).reshape(-1, 3)
