"""Explain test triples by all training triples with TracIn, and record it as a run."""

import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew import names
from clew.errors import ConfigError, counted, printable
from clew.files import replacing, working_folder
from clew.influence.link_prediction.report import (
    Findings,
    ReportSource,
    ScoredPaths,
    build_report,
    write_report,
)
from clew.influence.link_prediction.traced_run import MOMENTS
from clew.influence.scores import Explanation
from clew.link_prediction.triples import HEAD, TAIL, KnowledgeGraph, Triples
from clew.runs.base import Tracker
from clew.runs.influence_forms import form_of
from clew.runs.influence_report import (
    InfluenceReport,
    TripleRecord,
    read_influence_json,
    write_influence_json,
)
from clew.runs.reading.explanation import open_explanation, picture_of
from clew.runs.reading.run_details import find_validation
from clew.runs.verification import Names
from clew.training.precision import PRECISION_NAMES, device_name
from clew.workflows.explaining.members import Progress, open_with_members
from clew.workflows.explaining.trace_source import (
    GivenFiles,
    TraceSource,
    explain_unrolled,
    of_fields,
    read_test_triples,
    unrolled_settings,
    usable,
)
from clew.workflows.outputs import check_file, check_folder
from clew.workflows.run_checkpoints import average_setting
from clew.workflows.training_run import trace_run

REPORT_FILES = (names.INFLUENCE_JSON, names.INFLUENCE_CSV, names.INFLUENCE_PARQUET)
WITHOUT_EFFECT = frozenset(
    {
        "batch_size",
        "enable_memory_cleanup",
        "half_precision_deviation",
        "memory_budget_mib",
        "seeds",  # the report names the runs
        "tests_per_group",
        "tests_per_pass",
        "tile_triples",
        "use_gradient_checkpointing",
    }
)
"""Settings that change time or memory, or that the rest of a report says, but not the results."""
logger = logging.getLogger(__name__)
SHOWN_PROPONENTS = 3
TESTS_PER_PATH_PASS = 16
FACTS_PER_PATH_PASS = 2**14
LARGEST_SHARE = 0.25
"""Largest share of training triples in a first answer; a larger one would delay the full report."""
NUM_PICTURES = 10
"""Largest number of explanations of a run that are drawn for MLflow's pages."""
NAME_CHARACTERS = 120
"""Largest length of a run's name; labels can have any length."""


def check_output(output: Path | None, source: ReportSource, tests: Triples) -> None:
    """Refuse to overwrite results of other settings, models or tests, or of unknown ones."""
    existing = [path for path in targets_of(output) if path.exists()]
    said = [path for path in existing if path.suffix == ".json"]
    if existing and not said:
        raise ConfigError(
            f"{existing[0]} exists and does not say with which settings it was made; give another "
            "output, or move that file away"
        )
    for path in said:
        report = read_influence_json(path)
        earlier = identity(report)
        for key, value in identity(source).items():
            if earlier.get(key) != value:
                raise ConfigError(
                    f"{path} holds results for other settings ({key}: {earlier.get(key)!r} there, "
                    f"{value!r} now); give another output, or move that file away"
                )
        if [explained.test for explained in report.tests] != [
            source.triple(test) for test in tests
        ]:
            raise ConfigError(
                f"{path} explains other test triples; give another output, or move that file away"
            )


def identity(report: ReportSource | InfluenceReport) -> dict[str, Any]:
    """Return what the scores depend on: the model, its checkpoints, and settings with an effect."""
    model = report.model
    checkpoints = [[checkpoint.step, checkpoint.weight] for checkpoint in model.checkpoints]
    content = {key: value for key, value in report.settings.items() if key not in WITHOUT_EFFECT}
    content |= {"model": model.run_id, "checkpoints": checkpoints}
    return content | ({"runs": list(model.runs)} if model.runs else {})


def copy_files(folder: Path, output: Path | None) -> None:
    """Copy the three files to a folder, or one of them to a file, each all or nothing."""
    for target in targets_of(output):
        found = folder / f"influence{target.suffix}"
        if not found.is_file():
            continue
        with replacing(target) as temporary:
            shutil.copyfile(found, temporary)


def targets_of(output: Path | None) -> list[Path]:
    """Return the files that an output path means: itself, or three in a folder."""
    if output is None:
        return []
    files = [output / name for name in REPORT_FILES]
    return [output] if output.suffix in {file.suffix for file in files} else files


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
        shared, form = shared_labels(self.report), form_of(self.report.settings)
        fall = self.report.label.fall
        expected = " (expected fall of the log-probability without it)" if fall else ""
        for test in self.report.tests:
            triple = in_words(test.test, shared)
            lines += ["", f"{triple}   model's score {test.score:.4f}, rank {test.rank:g}"]
            strongest = f"the strongest of {test.candidates:,} training facts:"
            lines.append(f"  {form.heading}{expected}, {strongest}")
            for sign, entries in (("+", test.proponents), ("-", test.opponents)):
                for entry in entries[:SHOWN_PROPONENTS]:
                    line = f"  {sign} {entry.influence:+.4g}"
                    line += f" ({entry.influence * fall.mean:+.2g})  " if fall else "  "
                    line += in_words(entry.train, shared)
                    if entry.spread is not None:
                        agreeing = f"{entry.runs_agreeing} of {len(self.report.model.runs)}"
                        line += f"  +- {entry.spread:.2g}, {agreeing} runs agree"
                    line += f"  [{entry.counterpart} of the triple]" if entry.counterpart else ""
                    lines.append(grey(line) if self.report.is_disputed(entry) else line)
            if test.paths is not None:
                found = test.paths.paths[:SHOWN_PROPONENTS]
                lines.append(f"  {test.paths.sentence}")
                lines += [f"    {path.chain(test.test.head)}" for path in found]
        notes = names.average_notes(self.report.settings) + self.report.agreement
        said = [self.report.sign, form.sentence, *notes, self.report.label.sentence]
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
        entries = (*test.proponents, *test.opponents)
        for triple in (test.test, *(entry.train for entry in entries)):
            for entity in (triple.head, triple.tail):
                named[entity.label].add(entity.id)
    return frozenset(label for label, ids in named.items() if len(ids) > 1)


def in_words(triple: TripleRecord, shared: Collection[str] = ()) -> str:
    """Return a triple as text for people, with the ids of entities whose label is shared."""
    head, tail = (
        f"{entity.label} ({entity.id})" if entity.label in shared else entity.label
        for entity in (triple.head, triple.tail)
    )
    return f"{head} · {triple.relation.label} · {tail}"


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
        with (
            open_trace_run(source, run_name(source.task.graph, tests)) as tracker,
            working_folder("influence") as temporary,
        ):
            folder = temporary / names.ARTIFACT_INFLUENCE
            findings = explain(source, tests, progress=progress)
            report = write_report(folder, described, findings)
            measured = speed(findings.candidates, findings.seconds) | deviation(settings)
            tracker.metrics(measured, source.model.manifest.step)
            _draw(folder, source, len(report.tests))
            tracker.artifact(folder)
            copy_files(folder, output)
        return TraceResult(report, tracker.run_id, output)


def _draw(folder: Path, source: TraceSource, num_tests: int) -> None:
    """Draw the first explanations beside their report, for MLflow's own pages."""
    entities = source.task.graph.entities
    kinds = dict[str, str]()
    if entities.category_array is not None:
        pairs = zip(
            entities.name_array.to_pylist(), entities.category_array.to_pylist(), strict=True
        )
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
    paths = _score_paths(source, tests, explanations)
    counts = np.full(len(tests), len(source.task.graph.train))
    return Findings(
        tests=tests,
        explanations=explanations,
        scores=scores,
        ranks=ranks,
        candidates=counts if candidates is None else candidates.sum(1),
        seconds=time.perf_counter() - began,
        paths=paths,
    )


def _score_paths(
    source: TraceSource, tests: Triples, explanations: Sequence[Explanation]
) -> list[ScoredPaths]:
    """Find the paths of each test, and score their facts in groups of a few tests."""
    found = [source.paths.find(test) for test in tests]
    facts = [
        sorted({fact for path in paths for step in path.steps for fact in step}) for paths in found
    ]
    scored: list[tuple[dict[int, float], dict[int, int]]] = []
    if source.tracer.settings.goes_through_steps:  # scores come from one backward pass for all
        scored = [(scores, {}) for each in explanations for scores in _scores_of(each)]
    else:
        for start in range(0, len(tests), TESTS_PER_PATH_PASS):
            part = slice(start, start + TESTS_PER_PATH_PASS)
            every = np.array(sorted(set().union(*facts[part])), np.int64)
            if not len(every):
                scored += [({}, {}) for _ in facts[part]]
                continue
            summation = source.tracer.summation(tests[part])
            blocks = np.array_split(every, -(-len(every) // FACTS_PER_PATH_PASS))
            tiles = [summation.tile(block) for block in blocks]
            agreeing = [tile.agreeing for tile in tiles if tile.agreeing is not None]
            agree = torch.cat(agreeing, 1).tolist() if agreeing else []
            for row, scores in enumerate(torch.cat([t.influence for t in tiles], 1).tolist()):
                counts = dict(zip(every.tolist(), agree[row], strict=True)) if agree else {}
                scored.append((dict(zip(every.tolist(), scores, strict=True)), counts))
    return [
        ScoredPaths(paths, {fact: scores[fact] for fact in wanted if fact in scores}, counts)
        for paths, wanted, (scores, counts) in zip(found, facts, scored, strict=True)
    ]


def _scores_of(explanation: Explanation) -> Iterator[dict[int, float]]:
    """Yield the listed scores of each test by training index."""
    for row in range(len(explanation.self_influence)):
        yield {
            fact: score
            for listed in (explanation.proponents, explanation.opponents)
            for fact, score in zip(
                listed.train[row].tolist(), listed.influence[row].tolist(), strict=True
            )
            if fact >= 0
        }


def write_first_answer(
    path: Path, source: TraceSource, described: ReportSource, tests: Triples
) -> None:
    """Write a JSON report of the training triples that share an entity with a test triple.

    Their scores are the same as in the full report, which can have stronger triples. These triples
    are usually few, so this takes little time. If they are too many, nothing is written, and the
    log says so.
    """
    train = source.task.graph.train
    ends = train[:, [HEAD, TAIL]]
    near = np.stack([np.isin(ends, test[[HEAD, TAIL]]).any(1) for test in tests])
    share = float(near.any(0).mean())
    if source.tracer.settings.goes_through_steps or not 0 < share <= LARGEST_SHARE:
        logger.info(
            "no first answer: %d of %d training triples share an entity with the test triples",
            near.any(0).sum(),
            len(train),
        )
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
    }
    if tracer.settings.goes_through_steps:
        return settings | unrolled_settings(source)
    settings |= average_setting(source.model.config)
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
        tracker.params(
            {
                f"{names.PARAMETER_PREFIX}influence.{key}": value
                for key, value in source.tracer.settings.model_dump(mode="json").items()
            }
        )
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


def speed(candidates: np.ndarray, seconds: float) -> dict[str, float]:
    """Return the metrics of speed, given the number of candidates of each test."""
    return {
        names.INFLUENCE_SECONDS_PER_TEST: seconds / len(candidates),
        names.INFLUENCE_PAIRS_PER_SECOND: float(candidates.sum()) / seconds,
    }


def deviation(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the deviation due to half precision; empty in float32."""
    measured = settings.get("half_precision_deviation")
    if measured is None:
        return {}
    return {
        names.INFLUENCE_HALF_PRECISION_ERROR: measured["relative_error"],
        names.INFLUENCE_HALF_PRECISION_SPEARMAN: measured["spearman_top_100"],
    }
