"""Starts training from the parameters of an earlier run.

Table rows are matched by the names of entities and relations, so the graph can have new, missing or
reordered ones. Rows of new names keep their initial values. All other parameters are copied.
"""

import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from clew import names
from clew.config.graph_models import GraphModelSettings
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError, UsageError
from clew.files import DATA_VARIABLE, ONLY_DATA_VARIABLE, is_in_one_of
from clew.link_prediction.other_models import OtherModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.reading.search import run_meant
from clew.training.task import Task
from clew.workflows.model_source import open_model
from clew.workflows.open_run import folder_meant
from clew.workflows.predict import open_predictor

logger = logging.getLogger(__name__)

KEY = "model.warm_start"
RELATION_TABLE = "relation.weight"
ENTITY_TABLES = ("entity.weight", "head_entity.weight", "entity_bias")


@dataclass(frozen=True)
class WarmStart:
    """The model that training started from, and the numbers of copied and new rows."""

    source: str
    entities_taken: int
    entities_new: int
    relations_taken: int
    relations_new: int

    def tags(self) -> dict[str, str]:
        return {f"{names.TAG_WARM_START}.{key}": str(value) for key, value in vars(self).items()}


Rows = tuple[np.ndarray, np.ndarray]
"""Rows of an earlier table, and the rows of the new table with the same names."""


def rows_by_name(earlier: Vocabulary, now: Vocabulary) -> Rows:
    place = pc.index_in(now.name_array, value_set=earlier.name_array)
    known = np.flatnonzero(place.is_valid().to_numpy(zero_copy_only=False))
    return place.drop_null().to_numpy(), known


def with_named_start(config: RunConfig, *, is_part: bool) -> RunConfig:
    """Return the configuration with a run id in place of `newest` in `model.warm_start`."""
    model = config.model
    if not isinstance(model, GraphModelSettings) or model.warm_start != names.NEWEST:
        return config
    if is_part:
        raise ConfigError(
            f"{KEY} is {names.NEWEST!r}, but this is one of several runs, and each would "
            "start from the one before it; give the id of a run"
        )
    return with_settings(config, {KEY: run_meant(names.NEWEST, names.KIND_TRAIN)})


def check_start(task: Task[Any], earlier: str | OtherModel) -> None:
    """Refuse a model from which training cannot start, before a run is opened."""
    with torch.device("meta"):
        _find(task.build_model(), task, earlier)


@torch.no_grad()
def start_warm(model: nn.Module, task: Task[Any], earlier: str | OtherModel) -> WarmStart:
    """Copy the parameters of an earlier model, or of another library's, into a model, in place."""
    before, rows, found = _find(model, task, earlier)
    for name, tensor in model.state_dict().items():
        if name in rows:
            source, target = (torch.from_numpy(ids.astype(np.int64)) for ids in rows[name])
            tensor[target.to(tensor.device)] = before[name][source].to(tensor.device)
        else:
            tensor.copy_(before[name])
    said = "started from %s: %d entities taken over, %d new; %d relations taken over, %d new"
    logger.info(said, *vars(found).values())
    return found


def _find(
    model: nn.Module, task: Task[Any], earlier: str | OtherModel
) -> tuple[dict[str, Tensor], dict[str, Rows], WarmStart]:
    """Return earlier parameters, the rows of their tables to copy into a model, and the counts."""
    assert isinstance(task, LinkPrediction)
    graph, is_other = task.graph, isinstance(earlier, OtherModel)
    if isinstance(earlier, str):
        earlier = _of_run(earlier, task)
    _check_fits(earlier, model)
    entities = rows_by_name(earlier.entities, graph.entities)
    relations = rows_by_name(earlier.relations, graph.relations)
    taken = len(entities[1]), len(relations[1])
    new = graph.num_entities - taken[0], graph.num_relations - taken[1]
    found = WarmStart(earlier.source, taken[0], new[0], taken[1], new[1])
    if not taken[0] or (is_other and any(new)):
        raise ConfigError(
            f"{earlier.source} has {taken[0]:,} of the {graph.num_entities:,} entities "
            f"and {taken[1]:,} of the {graph.num_relations:,} relations of "
            f"{graph.name}: its names are like {earlier.entities.name(0)!r}, here they are like "
            f"{graph.entities.name(0)!r}; give the data that it was trained on"
        )
    if task.inverse_relations:
        before, now = relations
        inverse = before + len(earlier.relations), now + graph.num_relations
        relations = np.concatenate([before, inverse[0]]), np.concatenate([now, inverse[1]])
    rows = dict.fromkeys(ENTITY_TABLES, entities) | {RELATION_TABLE: relations}
    return earlier.parameters, rows, found


def _of_run(reference: str, task: LinkPrediction) -> OtherModel:
    """Return the model of a run; refuse one of another kind, or with other inverse relations."""
    allowed = os.environ.get(ONLY_DATA_VARIABLE)
    if allowed and folder_meant(reference) and not is_in_one_of(reference, allowed):
        said = f"{KEY} is not in ${DATA_VARIABLE}, and people who sign in read only folders there"
        raise ConfigError(f"{said}; start from a run, or use the command line")
    try:
        with open_model(reference) as source:
            earlier, _ = open_predictor(source)
    except UsageError as error:
        raise type(error)(f"{KEY}: {error}") from None
    title, now = f"{KEY} is {source.title}", task.model_config.kind
    if (kind := earlier.model.config.kind) != now:
        raise ConfigError(
            f"{title}, a {kind} model, but model.kind is {now}; start from a run of the same kind"
        )
    if earlier.has_inverses != task.inverse_relations:
        trained = str(earlier.has_inverses).lower()
        raise ConfigError(f"{title}, trained with data.inverse_relations={trained}; set the same")
    state = earlier.model.state_dict()
    return OtherModel(source.title, {}, state, earlier.entities, earlier.relations)


def _check_fits(earlier: OtherModel, model: nn.Module) -> None:
    before, after = (
        {k: tuple(v.shape[k in (*ENTITY_TABLES, RELATION_TABLE) :]) for k, v in parameters}
        for parameters in (earlier.parameters.items(), model.state_dict().items())
    )
    for name in before | after:
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"{earlier.source}, whose {name} has shape "
                f"{before.get(name, '(no such parameter)')}, but here "
                f"{after.get(name, '(no such parameter)')}; use its settings in the section model"
            )
