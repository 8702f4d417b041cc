"""Compare: a study's cells in processes of their own, ratios, and claims with verdicts."""

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clew import names
from clew.config.services import TrackingConfig
from clew.config.study import Claim, Study
from clew.errors import UsageError
from clew.runs.base import Tracker
from clew.runs.hardware import describe_machine, git_commit
from clew.runs.mlflow_store import open_tracker
from clew.workflows.study_cells import CellResult, run_cell
from clew.workflows.study_report import Difference, StudyReport, draw, verdict_of


def compare(study: Study) -> Iterator[str]:
    """Run all cells that are not finished yet and yield the lines to print.

    Cells of a seed run one after the other through all variants before the next seed, so that a
    drift of the machine's speed meets every variant. A cell that fails is reported and does not
    stop the rest; a cell that finished earlier on this machine and commit is not run again.

    Raises:
        UsageError: no cell of the reference finished, so there is nothing to compare with.
        Interrupted: stopped by the person; finished cells are kept.
    """
    tracking = study.config(study.reference, study.seeds[0]).tracking
    with open_tracker(
        TrackingConfig(experiment=tracking.experiment),
        kind=names.KIND_COMPARE,
        run_name=study.name,
        tags={names.TAG_STUDY: study.name},
    ) as tracker:
        cells: list[CellResult] = []
        for seed in study.seeds:
            for variant in study.variants:
                cells.append(run_cell(study, variant, seed, tracker.run_id))
                yield _progress(study, cells[-1], len(cells))
        report = _report(study, cells)
        _store(report, tracker)
        yield from ["", *report.markdown().splitlines()]


def _progress(study: Study, cell: CellResult, done: int) -> str:
    total = len(study.seeds) * len(study.variants)
    shown = cell.problem or ", ".join(
        f"{measure.label} {cell.metrics[measure.metric]:.4g}"
        for measure in study.measures
        if measure.metric in cell.metrics
    )
    return f"[{done}/{total}] {cell.variant}, seed {cell.seed}: {shown}"


def _report(study: Study, cells: list[CellResult]) -> StudyReport:
    """Take medians over seeds and their ratios to the reference."""
    machine = describe_machine()
    values = {
        (variant, measure.metric): [
            cell.metrics[measure.metric]
            for cell in cells
            if cell.variant == variant and measure.metric in cell.metrics
        ]
        for variant in study.variants
        for measure in study.measures
    }
    if not any(values[study.reference, measure.metric] for measure in study.measures):
        raise UsageError(
            f"no run of the reference {study.reference!r} finished, so there is nothing to compare "
            "with; the messages above say why"
        )
    medians = {key: statistics.median(found) for key, found in values.items() if found}
    spreads = {key: max(found) - min(found) for key, found in values.items() if found}
    report = StudyReport(
        study=study.name,
        reference=study.reference,
        variants=list(study.variants),
        measures=study.measures,
        machine=machine.summary,
        commit=git_commit() or "unknown",
        num_seeds=len(study.seeds),
        medians=medians,
        spreads=spreads,
        problems=[
            f"{cell.variant}, seed {cell.seed}: {cell.problem}" for cell in cells if cell.problem
        ],
        run_ids=[cell.run_id for cell in cells if cell.run_id],
    )
    verdicts = [_judge(claim, report, cells, has_gpu=bool(machine.gpus)) for claim in study.claims]
    return dataclasses.replace(report, verdicts=verdicts)


def _judge(
    claim: Claim, report: StudyReport, cells: list[CellResult], *, has_gpu: bool
) -> tuple[str, float | None, str]:
    """Return a claim's text, what was measured and the verdict."""
    if claim.about == "difference":
        by_variant: dict[str, dict[int, float]] = {}
        for cell in cells:
            if claim.metric in cell.metrics:
                by_variant.setdefault(cell.variant, {})[cell.seed] = cell.metrics[claim.metric]
        base = by_variant.get(claim.against or report.reference, {})
        found = Difference.paired(by_variant.get(claim.variant, {}), base)
        if found is None:
            return claim.text, None, verdict_of(claim, None, has_gpu=has_gpu)
        text = f"{claim.text} (95 % interval {found.low:+.2g} to {found.high:+.2g})"
        return text, found.mean, found.judge(claim)
    if claim.about == "value":
        measured = report.medians.get((claim.variant, claim.metric))
    else:
        measured = report.ratio(claim.variant, claim.metric, against=claim.against)
    return claim.text, measured, verdict_of(claim, measured, has_gpu=has_gpu)


def _store(report: StudyReport, tracker: Tracker) -> None:
    with tempfile.TemporaryDirectory(prefix="clew-study-") as name:
        folder = Path(name) / "study"
        folder.mkdir()
        content = json.dumps(report.as_dict(), indent=1)
        (folder / "study.json").write_text(content, encoding="utf-8")
        (folder / "study.md").write_text(report.markdown() + "\n", encoding="utf-8")
        draw(report, folder / "study.png")
        tracker.artifact(folder)
        tracker.metrics(report.ratios(), step=0)
