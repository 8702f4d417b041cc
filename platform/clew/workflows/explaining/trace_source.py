"""A trained graph model with its checkpoints and its data, ready to explain predictions."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew.config.load import with_settings
from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError
from clew.files import cache_folder
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.summation import all_steps
from clew.link_prediction.dictionaries import read_dictionary
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_files import read_triples
from clew.link_prediction.triples import KnowledgeGraph
from clew.training.distributed import World
from clew.training.manifest import CheckpointRecord
from clew.training.setup import prepare_process
from clew.workflows.model_source import (
    LoadedModel,
    ModelSource,
    device_of,
    own_task,
)
from clew.workflows.open_run import references_in
from clew.workflows.run_checkpoints import open_checkpoints
from clew.workflows.shared_table import digest, require_same_question

logger = logging.getLogger(__name__)

NEED_WHOLE_TABLE = {
    "preconditioned": "the optimizer's state of the whole entity table",
    "unrolled": "the whole model, whose training it repeats",
}
"""Forms of the score to what they need in one process."""
FILES = {"name", "train", "valid", "test", "entity_to_id", "relation_to_id", "exclude"}
LABELS = {"node_name_dict", "edge_map"}
MAY_DIFFER: Mapping[str, set[str] | bool] = {
    "data": FILES | LABELS,
    "training": {"seed", "device", "num_workers"},
    "influence": True,
    "tracking": True,
}
"""Settings that may differ between the runs of an ensemble: the seed, and settings that do not
affect what is learned. Files at other paths are compared by the data's fingerprint."""


@dataclass(frozen=True)
class GivenFiles:
    """Files that should be the model's own; they are compared with what it was trained on."""

    train: str = ""
    """Training triples, in any order."""
    entity_to_id: str = ""
    """Dictionary of entities."""
    relation_to_id: str = ""
    """Dictionary of relations."""

    def check(self, graph: KnowledgeGraph, model: ModelSource) -> None:
        """Refuse files that differ from the model's own.

        Raises:
            DataError: A file cannot be read.
            CheckpointError: A file differs from the model's data.
        """
        for path, kind, own in (
            (self.entity_to_id, "entity", graph.entities),
            (self.relation_to_id, "relation", graph.relations),
        ):
            if path and read_dictionary(Path(path), own.kind).name_array != own.name_array:
                raise CheckpointError(
                    f"{path}: its {kind} names or ids differ from those of {model.title}, which "
                    f"has {len(own)}; leave {kind}_to_id out to use the model's own"
                )
        if not self.train:
            return
        given = np.unique(read_triples(Path(self.train), graph.entities, graph.relations), axis=0)
        trained_on = np.unique(graph.train, axis=0)
        if not np.array_equal(given, trained_on):
            raise CheckpointError(
                f"{self.train}: holds {len(given)} distinct triples, {model.title} was trained on "
                f"{len(trained_on)} others (data fingerprint {model.manifest.data_fingerprint}); "
                "leave train out to use the model's own"
            )


@dataclass(frozen=True)
class TraceSource:
    """A trained model with its checkpoints, ready to explain predictions."""

    model: ModelSource
    """The model at its last checkpoint; its configuration has the settings of the explanation."""
    checkpoints: tuple[CheckpointRecord, ...]
    """For an ensemble: one for each step, with the mean of its weights over the runs."""
    task: LinkPrediction
    tracer: Tracer
    runs: tuple[str, ...] = ()
    """For an ensemble: the names of all its runs; empty for a single run."""
    world: World = field(default_factory=World)
    """The processes that explain together; each has its own rows of the entity table."""

    @property
    def loaded(self) -> LoadedModel:
        return LoadedModel(self.task, self.tracer.models[-1], self.tracer.device)


@contextmanager
def open_trace_source(
    reference: str,
    overrides: Mapping[str, Any],
    *,
    files: GivenFiles | None = None,
    world: World | None = None,
) -> Iterator[TraceSource]:
    """Find a model's checkpoints, and load them with the model's data.

    Args:
        reference: A run id, `models:/name@alias`, or a folder of checkpoints; several of them,
            separated by commas, are an ensemble.
        overrides: Settings of the explanation, `influence.key` to value.
        files: Files that must match the model's own.
        world: The processes that explain together; None: only this process.

    Raises:
        UsageError: The checkpoints or the data are missing or do not belong together.
    """
    names = references_in(reference)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_checkpoints(name, overrides)) for name in names]
        require_ensemble([model for model, _ in opened])
        models, runs = zip(*opened, strict=True)
        yield _load(models, runs, files or GivenFiles(), world or World())


def _load(
    models: Sequence[ModelSource],
    runs: Sequence[tuple[CheckpointRecord, ...]],
    files: GivenFiles,
    world: World,
) -> TraceSource:
    model, config = models[0], over_all_entities(models[0].config)
    if (kind := model.manifest.task) != LinkPrediction.kind:
        raise ConfigError(
            f"{model.title} is a {kind} model; tracin explains link prediction: triples"
        )
    prepare_process(config)
    task = own_task(replace(model, config=config))
    assert isinstance(task, LinkPrediction)
    files.check(task.graph, model)
    _check_processes(world, config, task, [record.path for run in runs for record in run])
    tracer = Tracer(
        task,
        config,
        settings=config.influence,
        checkpoints=runs[0],
        further_runs=runs[1:],
        device=device_of(config, world.local_rank),
        # With a shared entity table, each process has only a part of the moments.
        cache=cache_folder("moments") if world.size == 1 else None,
    )
    names_of_runs = tuple(m.run_id or m.reference for m in models) if len(models) > 1 else ()
    return TraceSource(model, mean_checkpoints(runs), task, tracer, names_of_runs, world)


def _check_processes(
    world: World, config: RunConfig, task: LinkPrediction, checkpoints: Sequence[Path]
) -> None:
    """Refuse processes that would explain something else, and scores that they cannot compute.

    Raises:
        ConfigError: A process differs, or the score needs the whole entity table.
    """
    score = config.influence.score
    if world.size > 1 and score in NEED_WHOLE_TABLE:
        raise ConfigError(
            f"influence.score is {score}, which needs {NEED_WHOLE_TABLE[score]} in one process, "
            f"but {world.size} processes share the table; start without torchrun, or choose raw, "
            "cosine, deflated or kronecker"
        )
    facts = {"settings of the explanation": digest(config.influence.model_dump(mode="json"))}
    require_same_question(world, checkpoints, task.graph.num_entities, facts)


def over_all_entities(config: RunConfig) -> RunConfig:
    """Return a configuration whose loss is over all entities, which sampled losses estimate."""
    if not isinstance(config.loss, EntityLoss) or config.loss.negatives is None:
        return config
    logger.info(
        "trained with samples of %d entities; the loss over all entities is explained, which the "
        "samples estimate",
        config.loss.negatives,
    )
    return with_settings(config, {"loss.negatives": None})


def require_ensemble(models: Sequence[ModelSource]) -> None:
    """Refuse runs that differ in more than their seed, and runs with the same seed.

    Raises:
        ConfigError: The runs do not belong together.
    """
    first, seeds = models[0], {models[0].config.training.seed: models[0]}
    for other in models[1:]:
        ours, theirs = first.manifest.data_fingerprint, other.manifest.data_fingerprint
        if ours != theirs:
            raise ConfigError(
                f"{other.title} was trained on data {theirs}, {first.title} on {ours}; an ensemble "
                "needs runs of the same configuration on the same data"
            )
        for key, value in _learned(other.config).items():
            own = _learned(first.config).get(key)
            if value != own:
                raise ConfigError(
                    f"{key} is {value!r} in {other.title} and {own!r} in {first.title}; an "
                    "ensemble needs runs of the same configuration with different seeds"
                )
        seed = other.config.training.seed
        if seed in seeds:
            raise ConfigError(
                f"training.seed is {seed} in {other.title} and in {seeds[seed].title}; an ensemble "
                "needs runs with different seeds"
            )
        seeds[seed] = other


def mean_checkpoints(
    runs: Sequence[Sequence[CheckpointRecord]],
) -> tuple[CheckpointRecord, ...]:
    """Return one checkpoint for each step of any run, with the mean of its weights over all runs.

    A run that has no checkpoint at that step counts with weight 0, as in `MeanOfRuns`.
    """
    found = []
    for step in all_steps([[record.step for record in run] for run in runs]):
        same = [record for run in runs for record in run if record.step == step]
        weight = sum(record.learning_rate_weight for record in same) / len(runs)
        found.append(replace(same[0], learning_rate_weight=weight))
    return tuple(found)


def _learned(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine what is learned, except the seed, by their full key."""
    content = config.model_dump(mode="json", exclude=MAY_DIFFER)
    return {
        f"{section}.{key}": value
        for section, values in content.items()
        for key, value in values.items()
    }
