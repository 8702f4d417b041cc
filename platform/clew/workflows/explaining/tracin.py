"""Explain test triples by all training triples with TracIn, and record it as a run."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.errors import DataError, counted, printable
from clew.files import working_folder
from clew.influence.link_prediction.report import (
    Findings,
    ReportSource,
    build_report,
    scored_paths,
    write_report,
)
from clew.influence.link_prediction.traced_run import MOMENTS
from clew.influence.outcomes import touching
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.runs.base import Tracker
from clew.runs.influence_report import InfluenceReport, TripleRecord, write_influence_json
from clew.runs.reading.explanation import open_explanation, picture_of
from clew.runs.reading.facts import averaged, rank_text, untrained_sentence
from clew.runs.reading.run_details import find_validation
from clew.runs.verification import Names
from clew.training.precision import PRECISION_NAMES, device_name
from clew.workflows.explaining.members import Progress, open_with_members
from clew.workflows.explaining.result_files import check_output, copy_files, targets_of
from clew.workflows.explaining.trace_source import (
    GivenFiles,
    TraceSource,
    explain_unrolled,
    of_fields,
    read_test_triples,
    unrolled_settings,
    usable,
)
from clew.workflows.model_source import average_setting
from clew.workflows.outputs import check_file, check_folder
from clew.workflows.training_run import trace_run

logger = logging.getLogger(__name__)
SHOWN_PROPONENTS = 3
LARGEST_SHARE = 0.25
"""Largest share of training triples in a first answer; a larger one would delay the full report."""
NUM_PICTURES = 10
"""Largest number of explanations of a run that are drawn for MLflow's pages."""
NAME_CHARACTERS = 120
"""Largest length of a run's name; labels can have any length."""


@dataclass(frozen=True)
class TraceResult:
    """An explanation, the run that records it, and the path of its files, if one was given."""

    report: InfluenceReport
    run_id: str | None
    output: Path | None

    def table(self, grey: Callable[[str], str] = str) -> str:
        """Return the run and, for each test triple, its strongest proponents and opponents.

        `grey` changes the lines of facts on whose sign the runs of an ensemble disagree.
        """
        lines = [f"run {self.run_id or '(not recorded)'}"]
        if self.output is not None:
            lines.append(f"files in {self.output}")
        most = SHOWN_PROPONENTS
        tests = [
            replace(test, proponents=test.proponents[:most], opponents=test.opponents[:most])
            for test in self.report.tests
        ]
        shared = shared_labels(self.report)
        report = replace(self.report, tests=tuple(tests))
        form, fall = report.form, report.label.fall
        expected = " (expected fall of the log-probability without it)" if fall else ""
        runs, is_head = len(report.model.runs), report.settings.get("direction") == "head"
        of = " of the head" * is_head + averaged(report.settings, runs)
        for test in tests:
            score = f"model's score {test.score:.4f}, filtered rank {rank_text(test.rank)}{of}"
            lines += ["", f"{in_words(test.test, shared)}   {score}"]
            if test.untrained:
                lines.append(f"  {untrained_sentence(test.untrained)}")
            strongest = f"the strongest of {test.candidates:,} training facts:"
            lines.append(f"  {form.heading}{expected}, {strongest}")
            for entry in (*test.proponents, *test.opponents):
                line = f"  {'+' if entry.influence > 0 else '-'} {entry.influence:+.4g}"
                line += f" ({entry.influence * fall.mean:+.2g})  " if fall else "  "
                line += in_words(entry.train, shared)
                if entry.spread is not None:
                    line += f"  +- {entry.spread:.2g}, {entry.runs_agreeing} of {runs} runs agree"
                line += f"  [{entry.counterpart} of the triple]" if entry.counterpart else ""
                lines.append(grey(line) if report.is_disputed(entry) else line)
            if test.paths is not None:
                paths = [path.chain(test.test.head, shared) for path in test.paths.paths]
                more = [f"and {len(paths) - most} more, in the report"] * (len(paths) > most)
                lines.append(f"  {test.paths.sentence}")
                lines += [f"    {line}" for line in (*paths[:most], *more)]
        notes = report.notes() + report.agreement
        said = [report.sign, form.sentence, *notes, report.label.sentence]
        if self.run_id:
            said.append(f"next: clew report --explanation {self.run_id} --output why.html")
        return "\n".join([*lines, "", *said])

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the run, the path of the files, the number of tests, the seconds."""
        return {
            "run_id": self.run_id,
            "output": None if self.output is None else str(self.output),
            "tests": len(self.report.tests),
            "seconds": self.report.seconds,
        }


def shared_labels(report: InfluenceReport) -> frozenset[str]:
    """Return the labels that more than one entity of a report has."""
    named: dict[str, set[str]] = defaultdict(set)
    for test in report.tests:
        triples = [test.test, *(one.train for one in (*test.proponents, *test.opponents))]
        for path in test.paths.paths if test.paths else ():
            triples += [fact.train for step in path.steps for fact in step]
        for entity in chain.from_iterable((triple.head, triple.tail) for triple in triples):
            named[entity.label].add(entity.id)
    return frozenset(label for label, ids in named.items() if len(ids) > 1)


def in_words(triple: TripleRecord, shared: Collection[str] = ()) -> str:
    """Return a triple as text for people, with the ids of entities whose label is shared."""
    return f"{triple.head.told(shared)} · {triple.relation.label} · {triple.tail.told(shared)}"


def run_name(graph: KnowledgeGraph, tests: Triples) -> str:
    """Return the name of an explanation's run, which has the triple, or how many there are."""
    if len(tests) > 1:
        return f"tracin {graph.name}, {counted(len(tests), 'triple')}"
    head, relation, tail = tests[0]
    labels = graph.entities.label(head), graph.relations.label(relation), graph.entities.label(tail)
    return printable(f"tracin {' · '.join(labels)}"[:NAME_CHARACTERS])


def tests_of(test: str | Sequence[Names], graph: KnowledgeGraph) -> Triples:
    """Return the ids of triples: of `head,relation,tail`, of a file, or of triples by name."""
    if isinstance(test, str):
        return usable(read_test_triples(test, graph), test)
    found = [of_fields(index, "", [*triple], graph) for index, triple in enumerate(test)]
    for triple in found:
        if triple.ids is None:
            raise DataError(f"triples[{triple.index}]: {triple.problem}")
    return usable(found, "triples")


def tracin(
    model: str,
    test: str | Sequence[Names],
    overrides: Mapping[str, Any],
    *,
    files: GivenFiles | None = None,
    output: Path | None = None,
    first_answer: Path | None = None,
    progress: Progress = lambda done, total: None,
    trained: Progress = lambda done, total: None,
) -> TraceResult:
    """Explain test triples by all training triples, and record it as a run of kind `trace`.

    Runs with other seeds are trained first if `influence.seeds` needs them; `trained` is called
    with how many are done, and of how many.
    """
    check = check_file if targets_of(output) == [output] else check_folder
    check("--output", output)
    with open_with_members(
        model,
        overrides,
        files=files,
        check=lambda source: tests_of(test, source.task.graph),
        progress=trained,
    ) as source:
        tests = tests_of(test, source.task.graph)
        settings = settings_of(source, tests)
        described = report_source(source, settings)
        check_output(output, described, tests)
        if first_answer is not None:
            write_first_answer(first_answer, source, described, tests)
        run = open_trace_run(source, run_name(source.task.graph, tests))
        with run as tracker, working_folder("influence") as temporary:
            folder = temporary / names.ARTIFACT_INFLUENCE
            findings = explain(source, tests, progress=progress)
            report = write_report(folder, described, findings)
            pairs = int(findings.candidates.sum())
            measured = metrics_of(len(tests), pairs, findings.seconds, settings)
            tracker.metrics(measured, source.model.manifest.step)
            _draw(folder, source, len(report.tests))
            tracker.artifact(folder)
            copy_files(folder, output)
        return TraceResult(report, tracker.run_id, output)


def _draw(folder: Path, source: TraceSource, num_tests: int) -> None:
    """Draw the first explanations beside their report, for MLflow's own pages."""
    entities = source.task.graph.entities
    kinds = dict[str, str]()
    if (categories := entities.category_array) is not None:
        pairs = zip(entities.name_array.to_pylist(), categories.to_pylist(), strict=True)
        kinds = {name: kind for name, kind in pairs if kind}
    for index in range(min(num_tests, NUM_PICTURES)):
        shown = replace(open_explanation(str(folder), index), kinds=kinds)
        (folder / f"picture-{index}.svg").write_text(picture_of(shown), encoding="utf-8")


def explain(
    source: TraceSource,
    tests: Triples,
    *,
    candidates: np.ndarray | None = None,
    progress: Progress = lambda done, total: None,
) -> Findings:
    """Compute all results for the report of these test triples."""
    tracer = source.tracer
    began = time.perf_counter()
    if tracer.settings.goes_through_steps:
        explanations = explain_unrolled(source, tests, candidates, progress)
    else:
        explanations = tracer.explain(tests, candidates=candidates, progress=progress)
    scores, ranks = tracer.scores_and_ranks(tests)
    paths = scored_paths(tracer, source.paths, tests, explanations)
    every = np.full(len(tests), len(source.task.graph.train))
    scored = every if candidates is None else candidates.sum(1)
    seconds = time.perf_counter() - began
    return Findings(tests, explanations, scores, ranks, scored, seconds, paths)


def write_first_answer(
    path: Path, source: TraceSource, described: ReportSource, tests: Triples
) -> None:
    """Write a JSON report of the training triples that share an entity with a test triple.

    Their scores are the same as in the full report, which can have stronger triples. These triples
    are usually few, so this takes little time. If they are too many, nothing is written, and the
    log says so.
    """
    train = source.task.graph.train
    near = touching(source.task.graph, tests) > 0
    share = float(near.any(0).mean())
    if source.tracer.settings.goes_through_steps or not 0 < share <= LARGEST_SHARE:
        said = "no first answer: %d of %d training triples share an entity with the test triples"
        logger.info(said, near.any(0).sum(), len(train))
        return
    findings = explain(source, tests, candidates=near)
    write_influence_json(build_report(described, findings), path)


def settings_of(source: TraceSource, tests: Triples) -> dict[str, Any]:
    """Return all settings in effect, the automatically chosen values, and measured deviations."""
    tracer = source.tracer
    plan = tracer.plan(len(tests))
    settings: dict[str, Any] = tracer.settings.model_dump(mode="json")
    settings |= {
        "tile_triples": plan.tile_triples,
        "tests_per_pass": plan.tests_per_pass,
        "precision": tracer.precision,
        "loss": source.model.config.loss.model_dump(mode="json"),
        "inverse_relations": source.task.inverse_relations,
        "data_fingerprint": source.task.data_fingerprint,
        "config_hash": source.model.manifest.config_hash,
        **source.best,
    }
    if tracer.settings.score != "unrolled":  # explains the run's average, if it keeps one
        settings |= average_setting(source.model.config)
    if tracer.settings.goes_through_steps:
        return settings | unrolled_settings(source)
    if tracer.settings.score == "preconditioned":
        settings["second_moment"] = "rank 1 for entity table and projection, exact elsewhere"
    if tracer.settings.score in {"deflated", "kronecker"}:
        settings["moments"] = MOMENTS.as_dict()
    if tracer.operand is not None:
        settings["half_precision_deviation"] = tracer.half_precision_deviation(tests)
    return settings


def report_source(source: TraceSource, settings: Mapping[str, Any]) -> ReportSource:
    """Return the data that all tests of the report share."""
    described = ReportSource(
        graph=source.task.graph,
        task=source.task.kind,
        run_id=source.model.run_id or "",
        checkpoints=source.checkpoints,
        settings=settings,
        device=device_name(source.tracer.device),
        runs=source.runs,
        pairs=source.task.leakage.pairs,
    )
    return replace(described, validation=find_validation(described.model, settings))


@contextmanager
def open_trace_run(source: TraceSource, run_name: str) -> Iterator[Tracker]:
    """Open a run of kind `trace`, linked to the explained run."""
    tags = {names.TAG_VARIANT: variant(source)}
    with trace_run(source.model, source.loaded, run_name, tags=tags) as tracker:
        settings = source.tracer.settings.model_dump(mode="json")
        prefix = f"{names.PARAMETER_PREFIX}influence."
        tracker.params({f"{prefix}{key}": value for key, value in settings.items()})
        yield tracker


def variant(source: TraceSource) -> str:
    """Return the run's variant: the precision, and other settings that affect scores or memory."""
    settings = source.tracer.settings
    name = PRECISION_NAMES[source.tracer.operand]
    name += "+ckpt" if settings.use_gradient_checkpointing else ""
    name += f"+last{settings.num_last_layers}" if settings.use_last_layers_only else ""
    name += "" if settings.enable_memory_cleanup else "-cleanup"
    name += f"+{len(source.runs)}runs" if source.runs else ""
    asked = source.model.config.influence.score
    return name if asked == "auto" else f"{name}+{asked}"


def metrics_of(
    num_tests: int, num_pairs: int, seconds: float, settings: Mapping[str, Any]
) -> dict[str, float]:
    """Return the metrics of speed, and of the deviation due to half precision if there is one."""
    found = {
        names.INFLUENCE_SECONDS_PER_TEST: seconds / num_tests,
        names.INFLUENCE_PAIRS_PER_SECOND: num_pairs / seconds,
    }
    if measured := settings.get("half_precision_deviation"):
        found[names.INFLUENCE_HALF_PRECISION_ERROR] = measured["relative_error"]
        found[names.INFLUENCE_HALF_PRECISION_SPEARMAN] = measured["spearman_top_100"]
    return found
