"""Finds the model for a run id, `models:/name@alias`, or a checkpoint folder."""

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
"""The accepted model references, for messages."""
SERVED_FOLDER = "artifacts/model"
"""Path of the model folder in a registered model."""


@dataclass(frozen=True)
class ModelSource:
    """A model on local disk, and where it comes from.

    `checkpoint` is the checkpoint folder. For a registered model it is the whole model folder,
    which also contains names, known triples and calibration (`clew.link_prediction.model_folder`).
    """

    reference: str
    checkpoint: Path
    manifest: Manifest
    config: RunConfig
    run_id: str | None = None
    version: RegisteredVersion | None = None

    @property
    def title(self) -> str:
        if self.version is not None:
            return f"{self.version.name} version {self.version.number} (run {self.run_id})"
        return f"run {self.run_id}" if self.run_id else str(self.checkpoint)


@contextmanager
def open_model(reference: str) -> Iterator[ModelSource]:
    """Find a model, and keep its files on local disk inside this context.

    Raises:
        TrackingError: The run, model or alias does not exist, or the store does not answer.
        CheckpointError: The run has no best checkpoint, or the checkpoint cannot be read.
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
    """Yield a working folder for a model's files; errors name the model instead of the folder.

    Raises:
        ConfigError: The reference is empty, or a registered model's without `models:/`.
    """
    if not reference.strip():
        raise ConfigError(f"no model given; expected {EXPECTED}")
    if "@" in reference and "/" not in reference and folder_meant(reference) is None:
        raise ConfigError(
            f"model {reference!r} is not a run id; for a registered model, give "
            f"{REGISTRY_SCHEME}{reference}"
        )
    title = reference if reference.startswith(REGISTRY_SCHEME) else f"run {reference}"
    with working_folder(purpose, holds=title) as folder:
        yield folder


def find_version(reference: str) -> RegisteredVersion:
    """Return the registered version for `models:/name@alias` or `models:/name/3`.

    Raises:
        ConfigError: The reference has neither form.
        TrackingError: The model, alias or version does not exist.
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
    """Download the model folder of a registered version into `folder`, without its code."""
    model = Registry.connect().download(version, folder, SERVED_FOLDER)
    if not (model / MANIFEST_FILE).is_file():
        raise CheckpointError(
            f"{version.uri} has no {SERVED_FOLDER}/{MANIFEST_FILE}; it was not registered "
            "by `clew promote`"
        )
    source = _open(model, reference or version.uri)
    return replace(source, run_id=version.run_id or source.run_id, version=version)


def open_run_best(run_id: str, folder: Path) -> ModelSource:
    """Download the best checkpoint of a run into `folder`.

    Raises:
        CheckpointError: The run has no best checkpoint.
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
        task: The task that is needed.
        only: What only models of this task can do, for the message.

    Raises:
        ConfigError: The model has another task; the message says how to use the model.
    """
    own = source.manifest.task
    if own != task:
        raise ConfigError(
            f"{source.title} is a {own} model; {only}; ask this model with clew predict "
            f"{ASKED_WITH[own]}"
        )


def recorded_file(source: ModelSource, name: str, work: Path) -> Path:
    """Return a file that a model's run recorded; download it to `work` if it is not on disk.

    Raises:
        CheckpointError: The file is not next to the checkpoint, and the model's run is unknown.
        TrackingError: The run does not have the file.
    """
    beside = [source.checkpoint, source.checkpoint.parent]
    if source.checkpoint.parent.name == names.ARTIFACT_CHECKPOINTS:
        beside.append(source.checkpoint.parents[1])
    found = next((folder / name for folder in beside if (folder / name).is_file()), None)
    if found is not None:
        return found
    if source.run_id is None:
        raise CheckpointError(
            f"{source.title}: {name} is not next to it; give the run's id instead"
        )
    return download_artifact(source.run_id, name, work)


def folders_of_run(run_id: str) -> list[str]:
    """Return the names of a run's artifact folders.

    Raises:
        CheckpointError: There is no such run, and `run_id` looks like a path.
        TrackingError: There is no such run.
    """
    try:
        return list_artifact_folders(run_id)
    except TrackingError as error:
        if "/" in run_id or "." in run_id:
            raise CheckpointError(f"{run_id}: no such folder; expected {EXPECTED}") from None
        raise error from None


def missing_in_run(run_id: str, folders: list[str], what: str, advice: str) -> CheckpointError:
    """Return the error for a run without the artifact `what` of training runs."""
    kind = find_run(run_id).tags.get(names.TAG_KIND, names.KIND_TRAIN)
    if kind != names.KIND_TRAIN:
        return CheckpointError(
            f"run {run_id} is of kind {kind}, which has no model; give the id of a training run "
            "(`clew runs --kind train` lists them)"
        )
    has = ", ".join(folders) or "no artifacts"
    return CheckpointError(f"run {run_id} has no {what} (it has {has}); {advice}")


def folder_meant(reference: str) -> Path | None:
    """Return the folder that a model reference names, or None if it names none.

    Older scripts kept a model in one file, `FOLDER/best_model.pt`. If this file does not exist, the
    path means `FOLDER`.
    """
    path = Path(reference)
    if os.path.isdir(path):  # Path.is_dir raises if many run ids are too long for a path
        return path
    if path.suffix != OLDER_SUFFIX:
        return None
    if path.is_file():
        raise CheckpointError(
            f"{reference} is a file; expected a folder with {MODEL_FILE} and {MANIFEST_FILE}, "
            "because pickled files are never read; train with --output-dir and give that folder"
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
            f"{folder / MANIFEST_FILE}: the task is {quoted(manifest.task)}, which does not use "
            f"data of kind {config.data.kind}; use another checkpoint"
        )
    return ModelSource(reference, folder, manifest, config, run_id=manifest.run_id or None)


def trained_with(manifest: Manifest, overrides: Overrides, *, source: str) -> RunConfig:
    """Return the configuration of a model, with data paths that are valid in any working folder.

    Args:
        manifest: The manifest of its checkpoint.
        overrides: Settings that replace those of the manifest.
        source: Name of the settings in error messages.

    Raises:
        ConfigError: A setting is not valid.
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
        """Return the metrics of a split, such as `test/mrr`; empty if it has no examples."""
        self.model.eval()
        with torch.no_grad():
            return self.task.metrics(self.model, split, self.device)


def load_source(source: ModelSource, *, data: DataConfig | None = None) -> LoadedModel:
    """Build the task that a model was trained on, and the model with its weights.

    Args:
        source: The model.
        data: Where to read the training data, if not where the model's configuration says.

    Raises:
        DataError: The data cannot be read.
        CheckpointError: The model was trained on other data, or the weights do not fit.
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
        DataError: The data cannot be read.
        CheckpointError: The model was trained on other data.
    """
    task = build_task(source.config)
    check_fingerprint(source, task.data_fingerprint)
    return task


def device_of(config: RunConfig, local_rank: int = 0) -> torch.device:
    """Return the device for a trained model: the CPU if it was configured, else a GPU if any."""
    return resolve_device("cpu" if config.training.device == "cpu" else "auto", local_rank)


def check_fingerprint(source: ModelSource, fingerprint: str) -> None:
    """Refuse data that differ from the model's training data.

    Raises:
        CheckpointError: The fingerprints differ.
    """
    if fingerprint != source.manifest.data_fingerprint:
        raise CheckpointError(
            f"{source.title} was trained on data {source.manifest.data_fingerprint}, the data now "
            f"has fingerprint {fingerprint}; restore the files as they were"
        )
