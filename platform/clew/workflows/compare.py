"""Compare: run a study's cells, and compute ratios to its reference.

Each cell runs in a separate process, unless an earlier run of it is finished: on this machine or,
with a cluster, on one of its nodes.
"""

import hashlib
import logging
import shlex
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from clew import names
from clew.config.data import TripleData
from clew.config.services import ClusterRequest, TrackingConfig
from clew.config.study import Study, metric_name
from clew.errors import ClewError, Interrupted, UsageError, counted, printable, similar_name
from clew.files import expanded, working_folder, write_json, write_whole
from clew.link_prediction.sources import find_files, load_graph
from clew.runs.base import Tracker
from clew.runs.hardware import Machine, describe_machine, git_commit, why_no_result_file
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.metrics import Estimate
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import find_cell
from clew.runs.store import in_use
from clew.training.distributed import code_digest
from clew.training.manifest import sha256
from clew.workflows.child import trace_in_child, train_in_child
from clew.workflows.cluster import Cluster, opened_cluster
from clew.workflows.evaluate import as_note
from clew.workflows.explaining.tracin import tests_of
from clew.workflows.outputs import check_file
from clew.workflows.subjects import data_fingerprint
from clew.workflows.training_run import open_other_run

logger = logging.getLogger(__name__)


METHOD = (
    "Variants take turns in rounds, one seed per round. A ratio is the geometric mean of the "
    "rounds' ratios; its 95 % interval is Student's t over their logarithms, so a slowdown of a "
    "whole round cancels."
)

Values = Mapping[tuple[str, str], Mapping[int, float]]
"""Measured values: (variant, metric) to {seed: value}."""


def in_words(machines: Iterable[Machine]) -> str:
    """Return the kinds of machines in one line."""
    return " and ".join(sorted({machine.summary for machine in machines}))


@dataclass(frozen=True)
class StudyReport:
    """The values measured for each variant in each round, with ratios."""

    study: Study
    values: Values
    machine: Machine
    commit: str
    date: str
    """UTC, ISO 8601."""
    problems: list[str]
    run_ids: list[str]
    nodes: tuple[Machine, ...] = ()
    """On a cluster, the machines that the cells ran on, instead of this one."""

    @property
    def machines(self) -> str:
        return in_words(self.nodes or (self.machine,))

    def ratio(self, variant: str, metric: str) -> Estimate | None:
        """Return a variant's ratio to the reference; None if one of the two has no values."""
        base = self.values.get((self.study.reference, metric), {})
        return Estimate.of_ratios(self.values.get((variant, metric), {}), base)

    def ratios(self) -> dict[str, float]:
        """Return all ratios as `ratio/<variant>/<metric>`, with variants named by `metric_name`."""
        return {
            f"ratio/{metric_name(variant)}/{measure.metric}": ratio.value
            for variant in self.study.variants
            for measure in self.study.measures
            if (ratio := self.ratio(variant, measure.metric)) is not None
        }

    def markdown(self) -> Iterator[str]:
        study = self.study
        seeds = f"seed{'s' if len(study.seeds) > 1 else ''} {', '.join(map(str, study.seeds))}"
        yield f"Study `{study.name}`: medians over rounds ({seeds}); in brackets the"
        yield f"ratio to `{study.reference}` and its 95 % interval. {self.machines}; commit"
        yield f"{self.commit[:12]}."
        yield ""
        yield "| variant | " + " | ".join(measure.label for measure in study.measures) + " |"
        yield "|---" * (1 + len(study.measures)) + "|"
        for variant in study.variants:
            cells = (self._cell(variant, measure.metric) for measure in study.measures)
            yield f"| `{variant}` | " + " | ".join(cells) + " |"
        yield from ("", METHOD)
        if self.problems:
            yield from ("", "Did not finish:", *(f"- {problem}" for problem in self.problems))

    def _cell(self, variant: str, metric: str) -> str:
        found = self.values.get((variant, metric))
        if not found:
            return "-"
        value = f"{statistics.median(found.values()):.4g}"
        ratio = None if variant == self.study.reference else self.ratio(variant, metric)
        return value if ratio is None else f"{value} ({shown(ratio)})"

    def as_dict(self) -> dict[str, object]:
        return {
            "study": self.study.name,
            "date": self.date,
            "commit": self.commit,
            "machine": self.machines,
            "has_gpu": any(machine.gpus for machine in self.nodes or (self.machine,)),
            "torch": self.machine.torch,
            "method": METHOD,
            "reference": self.study.reference,
            "seeds": self.study.seeds,
            "results": [
                {
                    "variant": variant,
                    "metric": measure.metric,
                    "label": measure.label,
                    "values": {str(seed): value for seed, value in found.items()},
                    "median": statistics.median(found.values()),
                    # The ends of an interval after one round are infinite, which JSON has not.
                    "ratio": (ratio := self.ratio(variant, measure.metric))
                    and vars(ratio) | ({"low": None, "high": None} if ratio.rounds == 1 else {}),
                }
                for variant in self.study.variants
                for measure in self.study.measures
                if (found := self.values.get((variant, measure.metric)))
            ],
            "problems": self.problems,
            "runs": self.run_ids,
        }


def shown(estimate: Estimate) -> str:
    """Return an estimate with its interval as text for tables."""
    if estimate.rounds == 1:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g}, {estimate.low:.3g} to {estimate.high:.3g}"


MEASURES = 4
"""Number of measures of a study in its verdict; the table has all."""


def of_study(report: StudyReport, study: str, *, run_id: str | None, kept: str) -> list[str]:
    """Return the verdict on a study in at most eight lines; `study` is its name as typed."""
    own, reference, seeds = report.study, report.study.reference, report.study.seeds
    cells = len(own.variants) * len(seeds)
    lines = [
        f"study {own.name}: {len(own.variants)} variants, {counted(len(seeds), 'seed')}, "
        f"{cells - len(report.problems)} of {counted(cells, 'cell')} finished; beside "
        f"`{reference}`, most and least:"
    ]
    measured = [m for m in own.measures if (reference, m.metric) in report.values]
    for measure in measured[:MEASURES]:
        others = [variant for variant in own.variants if variant != reference]
        ratios = {v: found for v in others if (found := report.ratio(v, measure.metric))}
        sure = {v: r for v, r in ratios.items() if not r.low <= 1 <= r.high} or ratios
        base = statistics.median(report.values[reference, measure.metric].values())
        named = sorted(sure, key=lambda variant: -sure[variant].value)
        both = dict.fromkeys([*named[:1], *named[-1:]])
        ends = "; ".join(f"`{one}` {shown(sure[one])} times" for one in both)
        chance = "not certain: " if sure is ratios and len(seeds) > 1 else ""
        lines.append(f"{measure.label} {base:.4g}: {chance}{ends or 'no ratios'}")
    if report.problems:
        also = f", and {left:,} more" if (left := len(report.problems) - 1) else ""
        lines.append(f"did not finish: {report.problems[0]}{also}")
    elif len(seeds) == 1:
        lines.append("one seed, so no interval says which differences are chance")
    lines.append(f"files: run {run_id or '(not recorded)'} of {in_use()}{kept}")
    more = "seeds=0,1,2" if len(seeds) == 1 and not report.problems else "--all"
    lines.append(f"next: clew compare {shlex.quote(study)} {more}, or clew ui, page Studies")
    return [printable(line) for line in lines]


@dataclass(frozen=True)
class CellResult:
    """The result of one variant with one seed."""

    variant: str
    seed: int
    run_id: str | None
    metrics: dict[str, float] = field(default_factory=dict)
    problem: str | None = None


def compare(
    study: Study,
    *,
    typed: str = "",
    output: Path | None = None,
    everything: bool = False,
    cluster: ClusterRequest | None = None,
) -> Iterator[str]:
    """Run all cells that are not finished yet, and yield the lines to print.

    A round runs every variant once with one seed. Every second round runs in reverse order, so that
    a drift of the machine's speed affects all variants. A cell that fails is reported and does not
    stop the rest. A cell that finished earlier, with the same machine, code and data, is not run
    again.

    `typed` is the study's name or file, as the user typed it. With uncommitted changes in the git
    checkout, `output`, a file for the results as JSON, is not written; a message before the first
    cell and another one at the end say so. With `everything`, a table of all values and ratios
    follows. On a cluster, cells run in parallel on nodes that can differ, so times also depend on
    the node; without one, they run here, one after another.
    """
    check_file("--output", output)
    reason = why_no_result_file(git_commit()) if output else None
    obstacle = reason and f"{output} is not written: {reason}"
    if obstacle:
        logger.warning("%s", obstacle)
    study, data = with_tests(study), fingerprints(study)
    config, tags = study.config(study.reference, study.seeds[0]), {names.TAG_STUDY: study.name}
    with (
        opened_cluster(cluster, shows_output=True) as nodes,
        open_other_run(config, names.KIND_COMPARE, study.name, tags) as tracker,
    ):
        forth = list(study.variants)
        turns = [
            (seed, variant)
            for turn, seed in enumerate(study.seeds)
            for variant in (reversed(forth) if turn % 2 else forth)
        ]
        cells: list[CellResult] = []
        machines, parent = nodes.machines if nodes else [describe_machine()], tracker.run_id
        place = f"{in_words(machines)}/{code_digest()}/{data}"
        ending = (run_cell(study, variant, seed, parent, place) for seed, variant in turns)
        for cell in cells_on_cluster(nodes, study, turns, parent, place) if nodes else ending:
            cells.append(cell)
            if cell.variant == study.reference and not cell.problem:
                _require_measures(study, cell)
            measured = (m for m in study.measures if m.metric in cell.metrics)
            shown = ", ".join(f"{m.label} {cell.metrics[m.metric]:.4g}" for m in measured)
            cell_name = f"[{len(cells)}/{len(turns)}] {cell.variant}, seed {cell.seed}"
            yield f"{cell_name}: {cell.problem or shown}"
        cells.sort(key=lambda cell: turns.index((cell.seed, cell.variant)))
        report = _report(study, cells, nodes.machines if nodes else ())
        _store(report, tracker)
        kept = f"; {obstacle}" if obstacle else f" and {output}" if output else ""
        said = of_study(report, typed or study.name, run_id=tracker.run_id, kept=kept)
        tracker.tags(as_note(said))
    if output is not None and not obstacle:
        write_json(output, report.as_dict())
    yield from said
    yield from ["", *report.markdown()] if everything else []


def _require_measures(study: Study, cell: CellResult) -> None:
    """Name the metrics that a run of the reference lacks, and refuse to go on if it has none."""
    missing = [m.metric for m in study.measures if m.metric not in cell.metrics]
    if len(missing) == len(study.measures):
        near = similar_name(missing[0], list(cell.metrics))
        raise UsageError(
            f"run {cell.run_id} of the reference has no metric {' or '.join(missing)}, so there is "
            f"nothing to compare; correct measures, finished cells are not run again. {near}"
        )
    for metric in missing:
        near = similar_name(metric, list(cell.metrics)) or "no metric has a similar name"
        logger.warning("run %s has no metric %s; %s", cell.run_id, metric, near)


def _report(study: Study, cells: list[CellResult], nodes: tuple[Machine, ...]) -> StudyReport:
    """Build the report of what the cells measured, on this machine or on the cluster's nodes."""
    values = defaultdict[tuple[str, str], dict[int, float]](dict)
    for cell in cells:
        for key in (m.metric for m in study.measures if m.metric in cell.metrics):
            values[cell.variant, key][cell.seed] = cell.metrics[key]
    if not any((study.reference, measure.metric) in values for measure in study.measures):
        raise UsageError(
            f"no run of the reference {study.reference!r} finished, so there is nothing to compare "
            "with; the messages above say why"
        )
    return StudyReport(
        study=study,
        values=values,
        machine=describe_machine(),
        commit=git_commit() or "unknown",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        problems=[f"{c.variant}, seed {c.seed}: {c.problem}" for c in cells if c.problem],
        run_ids=[cell.run_id for cell in cells if cell.run_id],
        nodes=nodes,
    )


def _store(report: StudyReport, tracker: Tracker) -> None:
    with working_folder("study") as work:
        write_json(work / "study" / "study.json", report.as_dict())
        write_whole(work / "study" / "study.md", "\n".join([*report.markdown(), ""]))
        tracker.artifact(work / "study")
        tracker.metrics(report.ratios(), step=0)


def run_cell(study: Study, variant: str, seed: int, parent: str | None, place: str) -> CellResult:
    """Return the cell's earlier result, or run the cell; a failure is also a result."""
    tests = expanded(study.tests or "")
    explained = sha256(tests) if tests.is_file() else study.tests
    cell_id = _identify(f"{study.cell_id(variant, seed)}/{explained}", place)
    earlier = find_cell(cell_id)
    if earlier is not None:
        return CellResult(variant, seed, earlier.run_id, dict(earlier.metrics))
    try:
        if study.command == "tracin":
            return _traced(study, variant, seed, parent, cell_id=cell_id, place=place)
        tags = _tags(study, cell_id)
        result = train_in_child(study.config(variant, seed), parent_run_id=parent, tags=tags)
        return CellResult(variant, seed, result.run_id, result.metrics)
    except Interrupted:
        raise
    except ClewError as error:
        logger.warning("%s, seed %d: %s", variant, seed, error)
        return CellResult(variant, seed, None, problem=str(error))


def trained_model(study: Study, seed: int, parent: str | None, place: str) -> str:
    """Return the run id of the model that a seed's cells explain; train the model if necessary."""
    config = study.model_config_of(seed)
    model_id = _identify(f"{study.name}/model/{config.config_hash}", place)
    model = find_cell(model_id)
    if model is None:
        train_in_child(config, parent_run_id=parent, tags=_tags(study, model_id))
        model = find_cell(model_id)
        assert model is not None
    return model.run_id


def _traced(
    study: Study, variant: str, seed: int, parent: str | None, *, cell_id: str, place: str
) -> CellResult:
    assert study.tests is not None
    model = trained_model(study, seed, parent, place)
    run_id = trace_in_child(model, study.tests, study.influence_settings(variant))
    tags = _tags(study, cell_id) | ({"mlflow.parentRunId": parent} if parent else {})
    tracking = TrackingConfig(experiment=study.model_config_of(seed).tracking.experiment)
    with open_tracker(tracking, kind=names.KIND_TRACE, run_id=run_id) as tracker:
        tracker.tags(tags)
    return CellResult(variant, seed, run_id, dict(find_run(run_id).metrics))


def cells_on_cluster(
    cluster: Cluster, study: Study, turns: Sequence[tuple[int, str]], parent: str | None, place: str
) -> Iterator[CellResult]:
    """Yield the results of cells as they end; if all nodes that try a cell die, it has failed."""
    cluster.require_same("the data", fingerprints, study)
    if study.command == "tracin":  # or parallel cells of one seed would each train its model
        for seed in study.seeds:
            cluster.submit(seed, trained_model, study, seed, parent, place)
        for _ in cluster.finished():
            pass  # if a run fails, the model's cells try again and report why
    for seed, variant in turns:
        cluster.submit((seed, variant), run_cell, study, variant, seed, parent, place)
    for (seed, variant), ended in cluster.finished():
        if isinstance(ended.error, Interrupted):
            raise ended.error
        cell: CellResult | None = ended.result
        yield cell or CellResult(variant, seed, None, problem=str(ended.error))


def with_tests(study: Study) -> Study:
    """Return a study with the file of its test triples, which are checked before it trains."""
    data = study.model_config_of(study.seeds[0]).data
    if study.tests is None or not isinstance(data, TripleData):
        return study
    if study.tests in ("valid", "test"):
        study = study.model_copy(update={"tests": str(getattr(find_files(data)[1], study.tests))})
    tests_of(study.tests or "", load_graph(data))
    return study


def fingerprints(study: Study) -> str:
    """Return the fingerprints of the different data of a study's variants."""
    configs = [study.config(variant, study.seeds[0]) for variant in study.variants]
    different = {config.data.model_dump_json(): config for config in configs}
    return ", ".join(data_fingerprint(config) for config in different.values())


def _identify(content: str, place: str) -> str:
    return hashlib.sha256(f"{content}/{place}".encode()).hexdigest()[:16]


def _tags(study: Study, cell_id: str) -> dict[str, str]:
    return {names.TAG_CELL: cell_id, names.TAG_STUDY: study.name}
