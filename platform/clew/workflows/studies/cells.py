"""A study's cells: each runs in a separate process, unless an earlier run of it is finished.

The process runs on this machine or, with a cluster, on one of its nodes.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew import names
from clew.config.services import TrackingConfig
from clew.config.study import Study
from clew.errors import ClewError, Interrupted
from clew.runs.hardware import Machine, git_commit
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import find_cell
from clew.workflows.child import trace_in_child, train_in_child
from clew.workflows.cluster import Cluster
from clew.workflows.studies.report import in_words
from clew.workflows.tasks import data_fingerprint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CellResult:
    """The result of one variant with one seed."""

    variant: str
    seed: int
    run_id: str | None
    metrics: dict[str, float] = field(default_factory=dict)
    problem: str | None = None


def run_cell(study: Study, variant: str, seed: int, parent: str | None, place: str) -> CellResult:
    """Return the cell's earlier result, or run the cell; a failure is also a result.

    Args:
        study: The study that the cell belongs to.
        variant: Variant of the cell.
        seed: Seed of the cell.
        parent: Id of the study's run.
        place: Machine and commit; only earlier results with the same place are reused.

    Raises:
        Interrupted: The user stopped the command.
    """
    cell_id = _identify(study.cell_id(variant, seed), place)
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


def place_of(machines: Iterable[Machine]) -> str:
    """Return machines and commit as text; an earlier result is reused only if they are the same."""
    return f"{in_words(machines)}/{git_commit()}"


def trained_model(study: Study, seed: int, parent: str | None, place: str) -> str:
    """Return the run id of the model that a seed's cells explain; train the model if necessary.

    Raises:
        ClewError: The model cannot be trained.
    """
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
    cluster: Cluster, study: Study, turns: Sequence[tuple[int, str]], parent: str | None
) -> Iterator[CellResult]:
    """Yield the results of cells as they end; if all nodes that try a cell die, it has failed.

    Args:
        cluster: The cluster on which the cells run.
        study: The study that the cells belong to.
        turns: Seed and variant of each cell.
        parent: Id of the study's run.

    Raises:
        ClusterError: The data on a node differs from the data on this machine.
        Interrupted: The user stopped the command.
    """
    cluster.require_same("the data", fingerprints, study)
    place = place_of(cluster.machines)
    if study.command == "tracin":  # or parallel cells of one seed would each train its model
        for seed in study.seeds:
            cluster.submit(seed, trained_model, study, seed, parent, place)
        for _ in cluster.finished():
            pass  # if a training fails, the model's cells try again and report why
    for seed, variant in turns:
        cluster.submit((seed, variant), run_cell, study, variant, seed, parent, place)
    for (seed, variant), ended in cluster.finished():
        if isinstance(ended.error, Interrupted):
            raise ended.error
        cell: CellResult | None = ended.result
        yield cell or CellResult(variant, seed, None, problem=str(ended.error))


def fingerprints(study: Study) -> str:
    configs = [study.config(variant, study.seeds[0]) for variant in study.variants]
    different = {config.data.model_dump_json(): config for config in configs}
    return ", ".join(data_fingerprint(config) for config in different.values())


def _identify(content: str, place: str) -> str:
    return hashlib.sha256(f"{content}/{place}".encode()).hexdigest()[:16]


def _tags(study: Study, cell_id: str) -> dict[str, str]:
    return {names.TAG_CELL: cell_id, names.TAG_STUDY: study.name}
