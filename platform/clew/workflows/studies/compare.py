"""Compare: run a study's cells, compute ratios, and judge the study's claims."""

import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from clew import names
from clew.config.services import TrackingConfig
from clew.config.study import Study
from clew.errors import UsageError
from clew.files import working_folder, write_whole
from clew.runs.base import Tracker
from clew.runs.hardware import Machine, describe_machine, git_commit, why_no_result_file
from clew.runs.mlflow_store import open_tracker
from clew.workflows.cluster import Cluster, ClusterRequest, opened_cluster
from clew.workflows.outputs import check_file
from clew.workflows.studies.cells import CellResult, cells_on_cluster, place_of, run_cell
from clew.workflows.studies.report import StudyReport, draw

logger = logging.getLogger(__name__)


def compare(
    study: Study, *, output: Path | None = None, cluster: ClusterRequest | None = None
) -> Iterator[str]:
    """Run all cells that are not finished yet, and yield the lines to print.

    A round runs every variant once with one seed. Every second round runs in reverse order, so that
    a drift of the machine's speed affects all variants. A cell that fails is reported and does not
    stop the rest. A cell that finished earlier on this machine and commit is not run again.

    Args:
        study: The study to run.
        output: File for the results as JSON. With uncommitted changes in the git checkout, it is
            not written; a message before the first cell and another one at the end say so.
        cluster: Cluster to run the cells on; None: run here, one after another. On a cluster, cells
            run in parallel on nodes that can differ, so times also depend on the node.

    Raises:
        ConfigError: The results cannot be written to the file.
        ClusterError: The cluster cannot be used.
        UsageError: No cell of the reference finished, so there is nothing to compare with.
        Interrupted: The user stopped the command. Finished cells are kept.
    """
    check_file("--output", output)
    obstacle = _obstacle(output)
    if obstacle:
        logger.warning("%s", obstacle)
    tracking = study.config(study.reference, study.seeds[0]).tracking
    with (
        opened_cluster(cluster, shows_output=True) if cluster else nullcontext() as nodes,
        open_tracker(
            TrackingConfig(experiment=tracking.experiment),
            kind=names.KIND_COMPARE,
            run_name=study.name,
            tags={names.TAG_STUDY: study.name},
        ) as tracker,
    ):
        turns = list(_turns(study))
        cells: list[CellResult] = []
        for cell in _cells(study, turns, tracker.run_id, nodes):
            cells.append(cell)
            yield _progress(study, cell, len(cells))
        cells.sort(key=lambda cell: turns.index((cell.seed, cell.variant)))
        report = _report(study, cells, nodes.machines if nodes else ())
        _store(report, tracker)
        yield from ["", *report.markdown().splitlines()]
    if output is not None:
        if not obstacle:
            write_whole(output, json.dumps(report.as_dict(), indent=1) + "\n")
        yield from ["", obstacle or f"written to {output}"]


def _cells(
    study: Study, turns: list[tuple[int, str]], parent: str | None, nodes: Cluster | None
) -> Iterator[CellResult]:
    if nodes is not None:
        yield from cells_on_cluster(nodes, study, turns, parent)
        return
    place = place_of([describe_machine()])
    for seed, variant in turns:
        yield run_cell(study, variant, seed, parent, place)


def _obstacle(output: Path | None) -> str | None:
    """Return why the results cannot be written to a file; None if they can."""
    if output is None:
        return None
    reason = why_no_result_file(git_commit())
    return reason and f"{output} is not written: {reason}"


def _turns(study: Study) -> Iterator[tuple[int, str]]:
    for turn, seed in enumerate(study.seeds):
        variants = list(study.variants)
        for variant in reversed(variants) if turn % 2 else variants:
            yield seed, variant


def _progress(study: Study, cell: CellResult, done: int) -> str:
    total = len(study.seeds) * len(study.variants)
    shown = cell.problem or ", ".join(
        f"{measure.label} {cell.metrics[measure.metric]:.4g}"
        for measure in study.measures
        if measure.metric in cell.metrics
    )
    return f"[{done}/{total}] {cell.variant}, seed {cell.seed}: {shown}"


def _report(study: Study, cells: list[CellResult], nodes: tuple[Machine, ...]) -> StudyReport:
    """Build the report of what the cells measured, on this machine or on the cluster's nodes.

    Raises:
        UsageError: No cell of the reference measured anything.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for cell in cells:
        for measure in study.measures:
            if measure.metric in cell.metrics:
                found = values.setdefault((cell.variant, measure.metric), {})
                found[cell.seed] = cell.metrics[measure.metric]
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
        problems=[
            f"{cell.variant}, seed {cell.seed}: {cell.problem}" for cell in cells if cell.problem
        ],
        run_ids=[cell.run_id for cell in cells if cell.run_id],
        nodes=nodes,
    )


def _store(report: StudyReport, tracker: Tracker) -> None:
    with working_folder("study") as name:
        folder = name / "study"
        folder.mkdir()
        content = json.dumps(report.as_dict(), indent=1)
        (folder / "study.json").write_text(content, encoding="utf-8")
        (folder / "study.md").write_text(report.markdown() + "\n", encoding="utf-8")
        draw(report, folder / "study.png")
        tracker.artifact(folder)
        tracker.metrics(report.ratios(), step=0)
