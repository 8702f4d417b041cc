"""A study's cells: each runs in a separate process, unless an earlier run of it is finished."""

import hashlib
import logging
from dataclasses import dataclass, field

from clew import names
from clew.config.services import TrackingConfig
from clew.config.study import Study
from clew.errors import ClewError, Interrupted
from clew.runs.hardware import describe_machine, git_commit
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import find_cell
from clew.workflows.child import trace_in_child, train_in_child

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CellResult:
    """What became of one variant with one seed."""

    variant: str
    seed: int
    run_id: str | None
    metrics: dict[str, float] = field(default_factory=dict)
    problem: str | None = None


def run_cell(
    study: Study, variant: str, seed: int, parent: str | None, place: str = ""
) -> CellResult:
    """Return the cell's earlier result, or run it; a failure is a result too.

    Args:
        study: Of which the cell is.
        variant: The cell's.
        seed: The cell's.
        parent: Run of the study.
        place: Machine and commit, so that only results of the same are taken (default: ours).

    Raises:
        Interrupted: stopped by the person.
    """
    place = place or this_place()
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


def this_place() -> str:
    """Return machine and commit, which tell whether an earlier result can stand for a new one."""
    return f"{describe_machine().summary}/{git_commit()}"


def trained_model(study: Study, seed: int, parent: str | None, place: str) -> str:
    """Return the run of the model that a seed's cells explain; train it if none has done so.

    Raises:
        ClewError: it cannot be trained.
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
    """Explain the seed's model."""
    assert study.tests is not None
    model = trained_model(study, seed, parent, place)
    run_id = trace_in_child(model, study.tests, study.influence_settings(variant))
    tags = _tags(study, cell_id) | ({"mlflow.parentRunId": parent} if parent else {})
    tracking = TrackingConfig(experiment=study.model_config_of(seed).tracking.experiment)
    with open_tracker(tracking, kind=names.KIND_TRACE, run_id=run_id) as tracker:
        tracker.tags(tags)
    return CellResult(variant, seed, run_id, dict(find_run(run_id).metrics))


def _identify(content: str, place: str) -> str:
    """Return what identifies a cell on this machine at this commit."""
    return hashlib.sha256(f"{content}/{place}".encode()).hexdigest()[:16]


def _tags(study: Study, cell_id: str) -> dict[str, str]:
    return {names.TAG_CELL: cell_id, names.TAG_STUDY: study.name}
