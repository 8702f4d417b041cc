"""Finds the model that a person names: a run id, `models:/name@alias`, or a checkpoint folder."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clew import names
from clew.config.data import DataConfig, TripleData, looked_up_in
from clew.config.load import Overrides, from_mapping
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, TrackingError, quoted
from clew.files import working_folder
from clew.runs.reading.runs import download_artifact, find_run, list_artifact_folders
from clew.runs.registry import RegisteredVersion, Registry
from clew.training.checkpoints import read_model
from clew.training.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    Manifest,
    read_manifest,
)
from clew.training.precision import resolve_device
from clew.training.task import Task
from clew.workflows.tasks import ASKED_WITH, TASKS, build_task

logger = logging.getLogger(__name__)

REGISTRY_SCHEME = "models:/"
OLDER_SUFFIX = ".pt"
KEPT_FOLDERS = (names.ARTIFACT_BEST, names.ARTIFACT_CHECKPOINTS)
EXPECTED = "a run id, models:/name@alias, or a folder of checkpoints"
"""What names a model, in words."""
SERVED_FOLDER = "artifacts/model"
"""Where a registered model keeps its model folder."""


@dataclass(frozen=True)
class ModelSource:
    """A model on local disk, and where it is from.

    `checkpoint` holds the checkpoint. For a registered model it is its whole model folder, names,
    known triples and calibration included (`clew.link_prediction.model_folder`).
    """

    reference: str
    checkpoint: Path
    manifest: Manifest
    config: RunConfig
    run_id: str | None = None
    version: RegisteredVersion | None = None

    @property
    def title(self) -> str:
        """What the model is, in a few words for people."""
        if self.version is not None:
            return f"{self.version.name} version {self.version.number} (run {self.run_id})"
        return f"run {self.run_id}" if self.run_id else str(self.checkpoint)


@contextmanager
def open_model(reference: str) -> Iterator[ModelSource]:
    """Find a model and have its files on local disk for the time of the context.

    Raises:
        TrackingError: no such run, model or alias, or the store does not answer.
        CheckpointError: the run has no best checkpoint, or it cannot be read.
    """
    with folder_for(reference, "model") as folder:
        if reference.startswith(REGISTRY_SCHEME):
            yield open_version(find_version(reference), folder, reference)
        elif (local := folder_meant(reference)) is not None:
            has_best = (local / names.ARTIFACT_BEST).is_dir()
            is_checkpoint = (local / MANIFEST_FILE).is_file() or not has_best
            yield _open(local if is_checkpoint else local / names.ARTIFACT_BEST, reference)
        else:
            yield open_run_best(reference, folder)


@contextmanager
def folder_for(reference: str, purpose: str) -> Iterator[Path]:
    """Yield a working folder for a model's files; errors name the model in place of the folder.

    Raises:
        ConfigError: the reference is empty.
    """
    if not reference.strip():
        raise ConfigError(f"no model given; expected {EXPECTED}")
    if "@" in reference and "/" not in reference and folder_meant(reference) is None:
        raise ConfigError(
            f"model {reference!r} is no run id; a registered model is {REGISTRY_SCHEME}{reference}"
        )
    title = reference if reference.startswith(REGISTRY_SCHEME) else f"run {reference}"
    with working_folder(purpose, holds=title) as folder:
        yield folder


def find_version(reference: str) -> RegisteredVersion:
    """Return the version that `models:/name@alias` or `models:/name/3` means.

    Raises:
        ConfigError: it is no such address.
        TrackingError: there is no such model, alias or version.
    """
    path = reference.removeprefix(REGISTRY_SCHEME)
    name, at, alias = path.rpartition("@")
    if at and name and alias:
        return Registry.connect().version_at(name, alias)
    name, slash, number = path.rpartition("/")
    if slash and name and number.isdigit():
        return Registry.connect().version(name, number)
    raise ConfigError(
        f"model {reference!r} is not an address in the registry; write models:/name@champion or "
        "models:/name/3"
    )


def open_version(version: RegisteredVersion, folder: Path, reference: str = "") -> ModelSource:
    """Download the checkpoint of a registered version into `folder`, not the code beside it."""
    model = Registry.connect().download(version, folder, SERVED_FOLDER)
    if not (model / MANIFEST_FILE).is_file():
        raise CheckpointError(
            f"{version.uri} holds no {SERVED_FOLDER}/{MANIFEST_FILE}; it was not registered by "
            "`clew promote`"
        )
    source = _open(model, reference or version.uri)
    return replace(source, run_id=version.run_id or source.run_id, version=version)


def open_run_best(run_id: str, folder: Path) -> ModelSource:
    """Download the best checkpoint of a run into `folder`.

    Raises:
        CheckpointError: the run has none.
    """
    folders = folders_of_run(run_id)
    if names.ARTIFACT_BEST not in folders:
        raise missing_in_run(
            run_id,
            folders,
            "best checkpoint",
            "it did not finish a validation: train with evaluation.enabled=true and a validation "
            "split",
        )
    best = download_artifact(run_id, names.ARTIFACT_BEST, folder)
    return replace(_open(best, run_id), run_id=run_id)


def require_task(source: ModelSource, task: str, only: str) -> None:
    """Refuse a model of another task.

    Args:
        source: The model.
        task: Of the models that can be used.
        only: What these alone do, for people.

    Raises:
        ConfigError: it is a model of another task; the message says how to ask it.
    """
    own = source.manifest.task
    if own != task:
        raise ConfigError(
            f"{source.title} is a {own} model; {only}; clew predict asks this one with "
            f"{ASKED_WITH[own]}"
        )


def recorded_file(source: ModelSource, name: str, work: Path) -> Path:
    """Return a file that a model's run recorded: beside the checkpoint, or downloaded to `work`.

    Raises:
        CheckpointError: it is not beside the checkpoint, which names no run.
        TrackingError: the run does not have it.
    """
    beside = [source.checkpoint, source.checkpoint.parent]
    if source.checkpoint.parent.name == names.ARTIFACT_CHECKPOINTS:
        beside.append(source.checkpoint.parents[1])
    found = next((folder / name for folder in beside if (folder / name).is_file()), None)
    if found is not None:
        return found
    if source.run_id is None:
        raise CheckpointError(f"{source.title}: no {name} beside it; ask the run by its id instead")
    return download_artifact(source.run_id, name, work)


def folders_of_run(run_id: str) -> list[str]:
    """Return the names of a run's artifact folders.

    Raises:
        CheckpointError: it looks like a path, and there is no such run.
        TrackingError: there is no such run.
    """
    try:
        return list_artifact_folders(run_id)
    except TrackingError as error:
        if "/" in run_id or "." in run_id:
            raise CheckpointError(f"{run_id}: no such folder; expected {EXPECTED}") from None
        raise error from None


def missing_in_run(run_id: str, folders: list[str], what: str, advice: str) -> CheckpointError:
    """Return the error for a run that lacks what only a training writes."""
    kind = find_run(run_id).tags.get(names.TAG_KIND, names.KIND_TRAIN)
    if kind != names.KIND_TRAIN:
        return CheckpointError(
            f"run {run_id} is of kind {kind}, which has no model; give the id of a training run "
            "(`clew runs --kind train` lists them)"
        )
    has = ", ".join(folders) or "no artifacts"
    return CheckpointError(f"run {run_id} has no {what} (it has {has}); {advice}")


def folder_meant(reference: str) -> Path | None:
    """Return the folder that a person means by a path, None if it is none.

    Older scripts kept a model in one file, `FOLDER/best_model.pt`. Where there is no such file, it
    means the folder.
    """
    path = Path(reference)
    if os.path.isdir(path):  # Path.is_dir raises where the ids of many runs are too long for a path
        return path
    if path.suffix != OLDER_SUFFIX:
        return None
    if path.is_file():
        raise CheckpointError(
            f"{reference}: a file; models are folders with {MODEL_FILE} and {MANIFEST_FILE} here, "
            "and pickled files are never read: train with --output-dir and give that folder"
        )
    if not any((path.parent / name).is_dir() for name in KEPT_FOLDERS):
        return None
    logger.warning("%s does not exist; using the model in folder %s", path, path.parent)
    return path.parent


def _open(folder: Path, reference: str) -> ModelSource:
    manifest = read_manifest(folder)
    if not (folder / MODEL_FILE).is_file():
        raise CheckpointError(f"{folder}: no {MODEL_FILE}; the checkpoint is incomplete")
    config = trained_with(manifest, {}, source=str(folder / MANIFEST_FILE))
    if manifest.task != TASKS[config.data.kind]:
        raise CheckpointError(
            f"{folder / MANIFEST_FILE}: the task is {quoted(manifest.task)}, which has no data of "
            f"kind {config.data.kind}; take another checkpoint"
        )
    return ModelSource(reference, folder, manifest, config, run_id=manifest.run_id or None)


def trained_with(manifest: Manifest, overrides: Overrides, *, source: str) -> RunConfig:
    """Return the configuration of a model; its data are found from other folders too.

    Args:
        manifest: What its checkpoint says of itself.
        overrides: Settings that replace its own.
        source: What an error is blamed on.

    Raises:
        ConfigError: a setting cannot be used.
    """
    config = from_mapping(manifest.config, overrides, source=source)
    data = looked_up_in(manifest.folder, config.data) if manifest.folder else config.data
    return config.model_copy(update={"data": data})


@dataclass(frozen=True)
class LoadedModel:
    """A model with the task that it was trained on, ready to be evaluated."""

    task: Task[Any]
    model: nn.Module
    device: torch.device

    def metrics(self, split: str) -> dict[str, float]:
        """Return the quality on a split under names such as `test/mrr`; empty without examples."""
        self.model.eval()
        with torch.no_grad():
            return self.task.metrics(self.model, split, self.device)


def load_source(source: ModelSource, *, data: DataConfig | None = None) -> LoadedModel:
    """Build the task that a model was trained on, and the model with its weights.

    Args:
        source: The model.
        data: Where to read the data instead of where the model's own configuration says; it must
            be the same data.

    Raises:
        DataError: the data cannot be read.
        CheckpointError: the data is not what the model was trained on, or the weights do not fit.
    """
    if data is not None:
        own = source.config.data
        if isinstance(own, TripleData) and isinstance(data, TripleData):
            data = data.model_copy(update={"inverse_relations": own.inverse_relations})
        source = replace(source, config=source.config.model_copy(update={"data": data}))
    task, device = own_task(source), device_of(source.config)
    model = read_model(source.checkpoint, task.build_model)
    return LoadedModel(task, model.to(device), device)


def own_task(source: ModelSource) -> Task[Any]:
    """Build the task that a model was trained on.

    Raises:
        DataError: the data cannot be read.
        CheckpointError: it is not what the model was trained on.
    """
    task = build_task(source.config)
    check_fingerprint(source, task.data_fingerprint)
    return task


def device_of(config: RunConfig, local_rank: int = 0) -> torch.device:
    """Return where a trained model works: on a GPU if one is there, unless it was on the CPU."""
    return resolve_device("cpu" if config.training.device == "cpu" else "auto", local_rank)


def check_fingerprint(source: ModelSource, fingerprint: str) -> None:
    """Refuse data other than what a model was trained on.

    Raises:
        CheckpointError: it is other data.
    """
    if fingerprint != source.manifest.data_fingerprint:
        raise CheckpointError(
            f"{source.title} was trained on data {source.manifest.data_fingerprint}, the data now "
            f"has fingerprint {fingerprint}; restore the files as they were"
        )
