"""Compare: run a study's cells, and compute ratios to its reference.

Each cell runs in a separate process, unless an earlier run of it is finished: on this machine or,
with a cluster, on one of its nodes.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from clew import __version__, names
from clew.config.services import ClusterRequest, TrackingConfig
from clew.config.study import Study
from clew.errors import ClewError, Interrupted, UsageError, similar_name
from clew.files import expanded, working_folder, write_whole
from clew.runs.base import Tracker
from clew.runs.hardware import Machine, describe_machine, git_commit, why_no_result_file
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import find_cell
from clew.training.manifest import sha256
from clew.workflows.child import trace_in_child, train_in_child
from clew.workflows.cluster import Cluster, opened_cluster
from clew.workflows.outputs import check_file
from clew.workflows.study_report import StudyReport, in_words
from clew.workflows.subjects import data_fingerprint
from clew.workflows.verdict import as_note, of_study

logger = logging.getLogger(__name__)


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
    stop the rest. A cell that finished earlier, with the same machine, commit and data, is not run
    again.

    Args:
        study: The study to run.
        typed: The study's name or file, as the user typed it.
        output: File for the results as JSON. With uncommitted changes in the git checkout, it is
            not written; a message before the first cell and another one at the end say so.
        everything: Whether the verdict is followed by the table of all values and ratios.
        cluster: Cluster to run the cells on; None: run here, one after another. On a cluster, cells
            run in parallel on nodes that can differ, so times also depend on the node.
    """
    check_file("--output", output)
    reason = why_no_result_file(git_commit()) if output else None
    obstacle = reason and f"{output} is not written: {reason}"
    if obstacle:
        logger.warning("%s", obstacle)
    data = fingerprints(study)
    tracking = study.config(study.reference, study.seeds[0]).tracking
    with (
        opened_cluster(cluster, shows_output=True) as nodes,
        open_tracker(
            TrackingConfig(experiment=tracking.experiment),
            kind=names.KIND_COMPARE,
            run_name=study.name,
            tags={names.TAG_STUDY: study.name},
        ) as tracker,
    ):
        forth = list(study.variants)
        turns = [
            (seed, variant)
            for turn, seed in enumerate(study.seeds)
            for variant in (reversed(forth) if turn % 2 else forth)
        ]
        cells: list[CellResult] = []
        machines, parent = nodes.machines if nodes else [describe_machine()], tracker.run_id
        place = f"{in_words(machines)}/{git_commit() or __version__}/{data}"
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
        write_whole(output, json.dumps(report.as_dict(), indent=1) + "\n")
    yield from said
    yield from ["", *report.markdown()] if everything else []


def _require_measures(study: Study, cell: CellResult) -> None:
    """Refuse to go on if a run of the reference has none of the metrics to compare."""
    missing = [m.metric for m in study.measures if m.metric not in cell.metrics]
    if len(missing) == len(study.measures):
        near = similar_name(missing[0], list(cell.metrics))
        raise UsageError(
            f"run {cell.run_id} of the reference has no metric {' or '.join(missing)}, so there is "
            f"nothing to compare; correct measures, finished cells are not run again. {near}"
        )


def _report(study: Study, cells: list[CellResult], nodes: tuple[Machine, ...]) -> StudyReport:
    """Build the report of what the cells measured, on this machine or on the cluster's nodes."""
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
        (folder / "study.md").write_text("\n".join([*report.markdown(), ""]), encoding="utf-8")
        tracker.artifact(folder)
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


def fingerprints(study: Study) -> str:
    """Return the fingerprints of the different data of a study's variants."""
    configs = [study.config(variant, study.seeds[0]) for variant in study.variants]
    different = {config.data.model_dump_json(): config for config in configs}
    return ", ".join(data_fingerprint(config) for config in different.values())


def _identify(content: str, place: str) -> str:
    return hashlib.sha256(f"{content}/{place}".encode()).hexdigest()[:16]


def _tags(study: Study, cell_id: str) -> dict[str, str]:
    return {names.TAG_CELL: cell_id, names.TAG_STUDY: study.name}
