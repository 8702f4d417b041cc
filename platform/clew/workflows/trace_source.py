"""Finds the checkpoints that an explanation sums over: of a run, a registered model, a folder."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.config.load import from_mapping, with_settings
from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError
from clew.files import working_folder
from clew.folders import cache_folder
from clew.influence.guards import without_gaps
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.dictionaries import read_dictionary
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_files import read_triples
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.reading.runs import download_artifact, list_artifacts
from clew.training.checkpoints import (
    AVERAGE_FILE,
    MANIFEST_FILE,
    CheckpointRecord,
    list_checkpoints,
    read_manifest,
    read_record,
)
from clew.training.distributed import World
from clew.training.history import last_step
from clew.training.precision import resolve_device
from clew.training.setup import prepare_process
from clew.workflows.ensemble import mean_checkpoints, require_ensemble
from clew.workflows.model_source import (
    REGISTRY_SCHEME,
    LoadedModel,
    ModelSource,
    check_fingerprint,
    find_version,
    folder_meant,
    folders_of_run,
    refuse_empty,
    title_of,
)
from clew.workflows.shared_table import digest, require_same_question
from clew.workflows.tasks import build_task

logger = logging.getLogger(__name__)

NEED_WHOLE_TABLE = {
    "preconditioned": "the optimizer's state of the whole entity table",
    "unrolled": "the whole model, whose training it repeats",
}
"""What forms of the score need in one process."""


@dataclass(frozen=True)
class GivenFiles:
    """Files that are said to be the model's own, and are compared with what it was trained on."""

    train: str = ""
    """Training triples; their order may differ."""
    entity_to_id: str = ""
    """Dictionary of entities."""
    relation_to_id: str = ""
    """Dictionary of relations."""

    def check(self, graph: KnowledgeGraph, model: ModelSource) -> None:
        """Refuse files other than the model's own.

        Raises:
            DataError: a file cannot be read.
            CheckpointError: a file says something else than the model's data.
        """
        for path, kind, own in (
            (self.entity_to_id, "entity", graph.entities),
            (self.relation_to_id, "relation", graph.relations),
        ):
            if path and read_dictionary(Path(path), own.kind).name_array != own.name_array:
                raise CheckpointError(
                    f"{path}: other {kind} names or ids than those of {model.title}, which has "
                    f"{len(own)}; leave {kind}_to_id out to use the model's own"
                )
        if self.train:
            _check_training_file(Path(self.train), graph, model)


@dataclass(frozen=True)
class TraceSource:
    """A trained model with its checkpoints, ready to explain predictions."""

    model: ModelSource
    """At its last checkpoint; the configuration holds the settings of the explanation."""
    checkpoints: tuple[CheckpointRecord, ...]
    """Of an ensemble: one for each step, with the mean of its weights over the runs."""
    task: LinkPrediction
    tracer: Tracer
    runs: tuple[str, ...] = ()
    """Of an ensemble: what each of its runs is called, the first one included."""
    world: World = field(default_factory=World)
    """The processes that explain together; each has its own rows of the entities."""

    @property
    def loaded(self) -> LoadedModel:
        """The model as evaluation sees it."""
        return LoadedModel(self.task, self.tracer.models[-1], self.tracer.device)


@contextmanager
def open_trace_source(
    reference: str,
    overrides: Mapping[str, Any],
    *,
    files: GivenFiles | None = None,
    world: World | None = None,
) -> Iterator[TraceSource]:
    """Find a model's checkpoints, read its data and load it all.

    Args:
        reference: A run id, `models:/name@alias`, or a folder of checkpoints; several of them,
            separated by commas, are an ensemble.
        overrides: Settings of the explanation, `influence.key` to value.
        files: Files that must be the model's own.
        world: The processes that explain together; None: this one alone.

    Raises:
        UsageError: the checkpoints or the data are missing or do not belong together.
    """
    several = "," in reference and folder_meant(reference) is None
    references = [name.strip() for name in reference.split(",")] if several else [reference]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_checkpoints(name, overrides)) for name in references]
        require_ensemble([model for model, _ in opened])
        models, runs = zip(*opened, strict=True)
        yield _load(models, runs, files or GivenFiles(), world or World())


@contextmanager
def open_checkpoints(
    reference: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[ModelSource, tuple[CheckpointRecord, ...]]]:
    """Find a model's checkpoints, in order of their steps, and have them on local disk.

    Args:
        reference: A run id, `models:/name@alias`, or a folder of checkpoints.
        overrides: Settings of the explanation, `influence.key` to value.

    Raises:
        UsageError: the checkpoints are missing or do not belong together.
    """
    refuse_empty(reference)
    with working_folder("trace", holds=title_of(reference)) as folder:
        version = None
        run_id: str | None = reference
        if reference.startswith(REGISTRY_SCHEME):
            version = find_version(reference)
            run_id = version.run_id
        local = None if version else folder_meant(reference)
        if local is not None:
            run_id, records, history = None, _of_folder(local), _history_of(local)
        else:
            records, history = _of_run(run_id or "", folder)
        config = _common_config(records, overrides)
        _refuse_average(records, config)
        records = _complete(records, local, run_id, history)
        manifest = read_manifest(records[-1].path)
        model = ModelSource(
            reference,
            records[-1].path,
            manifest,
            config,
            run_id or manifest.run_id or None,
            version,
        )
        yield model, tuple(records)


def _load(
    models: Sequence[ModelSource],
    runs: Sequence[tuple[CheckpointRecord, ...]],
    files: GivenFiles,
    world: World,
) -> TraceSource:
    model, config = models[0], over_all_entities(models[0].config)
    prepare_process(config)
    task = build_task(config)
    if not isinstance(task, LinkPrediction):
        raise ConfigError(
            f"{model.title} is a {task.kind} model; tracin explains link prediction: triples"
        )
    check_fingerprint(model, task.data_fingerprint)
    files.check(task.graph, model)
    _check_processes(world, config, task, [record.path for run in runs for record in run])
    tracer = Tracer(
        task,
        config,
        settings=config.influence,
        checkpoints=runs[0],
        further_runs=runs[1:],
        device=resolve_device(
            "cpu" if config.training.device == "cpu" else "auto", world.local_rank
        ),
        # Processes that share the entity table each have a part of the moments.
        cache=cache_folder("moments") if world.size == 1 else None,
    )
    names_of_runs = tuple(m.run_id or m.reference for m in models) if len(models) > 1 else ()
    return TraceSource(model, mean_checkpoints(runs), task, tracer, names_of_runs, world)


def _check_processes(
    world: World, config: RunConfig, task: LinkPrediction, checkpoints: Sequence[Path]
) -> None:
    """Refuse processes that would explain something else, and forms that they cannot compute.

    Raises:
        ConfigError: a process differs, or the form needs the whole entity table.
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
    """Return a configuration whose loss is over all entities: what a sample is an estimate of."""
    if not isinstance(config.loss, EntityLoss) or config.loss.negatives is None:
        return config
    logger.info(
        "trained with samples of %d entities; explained is the loss over all of them, which the "
        "samples estimate",
        config.loss.negatives,
    )
    return with_settings(config, {"loss.negatives": None})


def _of_run(run_id: str, folder: Path) -> tuple[list[CheckpointRecord], Path | None]:
    """Download a run's checkpoints, and its history if it has ended."""
    folders = folders_of_run(run_id)
    if names.ARTIFACT_CHECKPOINTS not in folders:
        raise CheckpointError(
            f"run {run_id} has no checkpoints (it has {', '.join(folders) or 'no artifacts'}); "
            "influence is a sum over them: train with tracking.log_checkpoints=true"
        )
    records = list_checkpoints(download_artifact(run_id, names.ARTIFACT_CHECKPOINTS, folder))
    if not records:
        raise CheckpointError(f"run {run_id}: {names.ARTIFACT_CHECKPOINTS} is empty; train again")
    if names.ARTIFACT_HISTORY not in list_artifacts(run_id):
        return records, None
    return records, download_artifact(run_id, names.ARTIFACT_HISTORY, folder)


def _of_folder(folder: Path) -> list[CheckpointRecord]:
    """Take the checkpoints of a run's folder, of a folder of checkpoints, or a single one."""
    if (folder / MANIFEST_FILE).is_file():
        return [read_record(folder)]
    inner = folder / names.ARTIFACT_CHECKPOINTS
    records = list_checkpoints(inner if inner.is_dir() else folder)
    if not records:
        raise CheckpointError(
            f"{folder}: no checkpoints; expected folders with {MANIFEST_FILE}, such as epoch-0005"
        )
    return records


def _history_of(folder: Path) -> Path | None:
    """Return the history that a finished training left in a folder, or beside its checkpoints."""
    places = [folder, *([folder.parent] if folder.name == names.ARTIFACT_CHECKPOINTS else [])]
    found = (place / names.ARTIFACT_HISTORY for place in places)
    return next((path for path in found if path.is_file()), None)


def _complete(
    records: list[CheckpointRecord],
    folder: Path | None,
    run_id: str | None,
    history: Path | None,
) -> list[CheckpointRecord]:
    """Return all of a run's checkpoints; one that was named by itself stands for itself.

    Raises:
        CheckpointError: one is missing, or nobody could tell.
    """
    if folder is not None and records[0].path == folder:
        return records
    place = f"run {run_id}" if folder is None else str(folder)
    if history is not None and (end := last_step(history)) > records[-1].step:
        raise CheckpointError(
            f"{place}: the checkpoint of step {end} is missing, where the run ended; influence is "
            "a sum over all checkpoints of a run: copy the missing one here, or give the run's id"
        )
    if folder is None:
        return without_gaps(records, place)
    unlinked = [record.path.name for record in records if record.previous_step is None]
    if unlinked:
        run_id = read_manifest(records[-1].path).run_id
        raise CheckpointError(
            f"{folder}: {unlinked[0]} does not say which checkpoint comes before it, since an "
            "older version of Clew wrote it, so a missing one would not be noticed; give the "
            f"run's id{f' ({run_id})' if run_id else ''}, or one checkpoint's folder"
        )
    return without_gaps(records, place)


def _common_config(records: list[CheckpointRecord], overrides: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that the checkpoints share, with the explanation's settings."""
    manifests = [read_manifest(record.path) for record in records]
    for record, manifest in zip(records, manifests, strict=True):
        if manifest.data_fingerprint != manifests[-1].data_fingerprint:
            raise CheckpointError(
                f"{record.path}: was trained on data {manifest.data_fingerprint}, "
                f"{records[-1].path.name} on {manifests[-1].data_fingerprint}; expected the "
                "checkpoints of one run"
            )
    return from_mapping(manifests[-1].config, overrides, source="settings of the explanation")


def _refuse_average(records: list[CheckpointRecord], config: RunConfig) -> None:
    """Refuse weights that no step of training went through; influence sums over those it did."""
    decay = config.training.ema_decay
    for path in (record.path for record in records):
        if decay is not None and not (path / AVERAGE_FILE).is_file():
            raise CheckpointError(
                f"{path}: holds the average of the parameters (training.ema_decay is {decay}), "
                "which no step of training went through; give the run's id, or a folder of its "
                "checkpoints"
            )


def average_setting(config: RunConfig) -> dict[str, float]:
    """Return what an explanation's settings say of the run's average; nothing if it keeps none."""
    decay = config.training.ema_decay
    return {} if decay is None else {names.SETTING_EMA_DECAY: decay}


def _check_training_file(path: Path, graph: KnowledgeGraph, model: ModelSource) -> None:
    """Refuse training triples other than the model's own; their order may differ."""
    given = np.unique(read_triples(path, graph.entities, graph.relations), axis=0)
    own = np.unique(graph.train, axis=0)
    if not np.array_equal(given, own):
        raise CheckpointError(
            f"{path}: holds {len(given)} distinct triples, {model.title} was trained on "
            f"{len(own)} others (data fingerprint {model.manifest.data_fingerprint}); leave "
            "train out to use the model's own"
        )
