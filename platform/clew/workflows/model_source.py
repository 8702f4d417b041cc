"""Finds the model for a run id, `models:/name@alias`, or a checkpoint folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from clew import names
from clew.config.data import DataConfig, TripleData, looked_up_in
from clew.config.load import Overrides, from_mapping
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import CheckpointError, ConfigError, quoted
from clew.runs.base import RegisteredVersion
from clew.runs.reading.runs import download_artifact
from clew.subject import Subject
from clew.training.checkpoints import read_model
from clew.training.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from clew.training.precision import resolve_device
from clew.training.task import Task
from clew.workflows.open_run import OpenedRun, open_run
from clew.workflows.subjects import SUBJECTS, build_task

DataT = TypeVar("DataT", bound=DataConfig)


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
    best: Manifest | None = None
    """Of the run's best checkpoint, if it is known that `checkpoint` is the last one."""

    @property
    def subject(self) -> Subject[Any, Any, Any]:
        return SUBJECTS[self.config.data.kind]

    @property
    def title(self) -> str:
        if self.version is not None:
            return f"{self.version.name} version {self.version.number} (run {self.run_id})"
        return f"run {self.run_id}" if self.run_id else str(self.checkpoint)


@contextmanager
def open_model(reference: str) -> Iterator[ModelSource]:
    """Find a model, and keep its files on local disk inside this context."""
    with open_run(reference, "model") as run:
        yield model_of(run)


def open_version(version: RegisteredVersion, folder: Path) -> ModelSource:
    """Download the model folder of a registered version into `folder`, without its code."""
    return model_of(OpenedRun(version.uri, folder, version.run_id, version))


def model_of(run: OpenedRun) -> ModelSource:
    """Return the best model of a run, after checking that its checkpoint is complete."""
    folder = run.best()
    manifest = read_manifest(folder)
    if not (folder / MODEL_FILE).is_file():
        raise CheckpointError(f"{folder}: no {MODEL_FILE}; the checkpoint is incomplete")
    config = trained_with(manifest, {}, source=str(folder / MANIFEST_FILE))
    if manifest.task != TASK_KINDS[config.data.kind].task:
        raise CheckpointError(
            f"{folder / MANIFEST_FILE}: the task is {quoted(manifest.task)}, which does not use "
            f"data of kind {config.data.kind}; use another checkpoint"
        )
    run_id = run.run_id or manifest.run_id or None
    return ModelSource(run.reference, folder, manifest, config, run_id, run.version)


def require_data(source: ModelSource, kind: type[DataT], only: str) -> DataT:
    """Return the configuration of a model's data; refuse a model of other data.

    The message says that `only` some models can do what is asked, and how to use this one.
    """
    if not isinstance(source.config.data, kind):
        raise ConfigError(
            f"{source.title} is a {source.manifest.task} model; {only}; ask this model with clew "
            f"predict {source.subject.asked_with}"
        )
    return source.config.data


def recorded(source: ModelSource, name: str, work: Path) -> Path:
    """Return a file or folder of a model's run; download it to `work` if it is not on disk."""
    beside = [source.checkpoint, source.checkpoint.parent]
    if source.checkpoint.parent.name == names.ARTIFACT_CHECKPOINTS:
        beside.append(source.checkpoint.parents[1])
    found = next((folder / name for folder in beside if (folder / name).exists()), None)
    if found is not None:
        return found
    if source.run_id is None:
        raise CheckpointError(
            f"{source.title}: {name} is not next to it; give the run's id instead"
        )
    return download_artifact(source.run_id, name, work)


def trained_with(manifest: Manifest, overrides: Overrides, *, source: str) -> RunConfig:
    """Return the configuration of a model, with data paths that are valid in any working folder."""
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

    `data` says where to read the training data, if not where the model's configuration says.
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
    """Build the task that a model was trained on; refuse data that changed since."""
    task = build_task(source.config)
    check_fingerprint(source, task.data_fingerprint)
    return task


def device_of(config: RunConfig) -> torch.device:
    """Return the device for a trained model: the CPU if it was configured, else a GPU if any."""
    return resolve_device("cpu" if config.training.device == "cpu" else "auto")


def check_fingerprint(source: ModelSource, fingerprint: str) -> None:
    """Refuse data that differ from the model's training data."""
    if fingerprint != source.manifest.data_fingerprint:
        raise CheckpointError(
            f"{source.title} was trained on data {source.manifest.data_fingerprint}, the data now "
            f"has fingerprint {fingerprint}; restore the files as they were"
        )
