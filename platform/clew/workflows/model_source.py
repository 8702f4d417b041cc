"""Finds the model for a run id, `models:/name@alias`, or a folder; and the checkpoints of its run.

Influence is summed over these checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from clew import names
from clew.config.data import DataConfig, TripleData, looked_up_in
from clew.config.load import Overrides, flatten, from_mapping
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import CheckpointError, ConfigError, quoted
from clew.runs.base import RegisteredVersion
from clew.runs.reading.runs import download_artifact
from clew.subject import Subject
from clew.training.checkpoints import AVERAGE_FILE, read_model
from clew.training.manifest import MODEL_FILE, CheckpointRecord, Manifest, read_manifest
from clew.training.precision import resolve_device
from clew.training.progress import last_step
from clew.training.task import Task
from clew.workflows.open_run import OpenedRun, open_run
from clew.workflows.subjects import SUBJECTS, build_task

DataT = TypeVar("DataT", bound=DataConfig)
OF_THE_TRAINING = ("model", "loss", "optimizer", "schedule", "training")
"""Sections of a configuration that describe the training, not the explanation."""
OF_THE_MACHINE = {
    "loss.implementation",
    "loss.chunk_mib",
    "training.deterministic",
    "training.device",
    "training.num_threads",
    "training.num_workers",
    "training.peer_timeout_seconds",
}
"""Settings in these sections that change only where and how fast the training is computed."""
MISSING = (
    "is missing; influence is a sum over all checkpoints of a run: copy the missing one here, or "
    "give the run's id"
)


@dataclass(frozen=True)
class ModelSource:
    """A model on local disk, and where it comes from.

    `checkpoint` is the checkpoint folder. For a registered model it is the whole model folder,
    which also contains names, known triples and calibration (`clew.link_prediction.subject`).
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
    manifest, place = read_manifest(folder), folder / names.CHECKPOINT_MANIFEST
    if not (folder / MODEL_FILE).is_file():
        raise CheckpointError(f"{folder}: no {MODEL_FILE}; the checkpoint is incomplete")
    config = trained_with(manifest, {}, source=str(place))
    if manifest.task != TASK_KINDS[config.data.kind].task:
        raise CheckpointError(
            f"{place}: the task is {quoted(manifest.task)}, which does not use "
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
        raise CheckpointError(f"{source.title}: {name} is not next to it; give the run's id")
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
    return LoadedModel(task, read_model(source.checkpoint, task.build_model).to(device), device)


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
    require_same_data(source.manifest, fingerprint, source.title, "restore the files as they were")


def require_same_data(manifest: Manifest, fingerprint: str, title: str, advice: str) -> None:
    if fingerprint != manifest.data_fingerprint:
        raise CheckpointError(
            f"{title} was trained on data {manifest.data_fingerprint}, the data now has "
            f"fingerprint {fingerprint}; {advice}"
        )


@contextmanager
def open_checkpoints(
    reference: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[ModelSource, tuple[CheckpointRecord, ...]]]:
    """Find a model's checkpoints, in order of their steps, and keep them on local disk."""
    with open_run(reference, "trace") as run:
        records = run.checkpoints()
        config = _common_config(records, overrides)
        _refuse_average(records, config)
        records = _complete(records, run)
        manifest = read_manifest(records[-1].path)
        run_id, best = run.run_id or manifest.run_id or None, run.best_manifest()
        last = records[-1].path
        model = ModelSource(reference, last, manifest, config, run_id, run.version, best)
        yield model, tuple(records)


def _complete(records: list[CheckpointRecord], run: OpenedRun) -> list[CheckpointRecord]:
    """Return the checkpoints of a run, one per step, if none is missing; or a single named one.

    A resumed run can have two checkpoints of one step, under two names; only one of them is kept.
    """
    if run.folder is not None and records[0].path == run.folder:
        return records
    history = run.kept(names.ARTIFACT_HISTORY)
    if history is not None and (end := last_step(history)) > records[-1].step:
        raise CheckpointError(f"{run.title}: the checkpoint of the last step, {end}, {MISSING}")
    ordered = sorted(records, key=lambda c: (c.step, c.learning_rate_weight, c.epoch))
    kept = list({record.step: record for record in ordered}.values())
    reached = 0
    for record in kept:
        name = f"{record.path.name} (step {record.step})"
        previous = reached if record.previous_step is None else record.previous_step
        if previous > reached:
            raise CheckpointError(
                f"{run.title}: the checkpoint of step {previous}, before {name}, {MISSING}"
            )
        if previous < reached:
            raise CheckpointError(
                f"{run.title}: {name} follows step {previous}, but there is a checkpoint of step "
                f"{reached} between them; expected the checkpoints of one run"
            )
        reached = record.step
    return kept


def _common_config(records: list[CheckpointRecord], overrides: Mapping[str, Any]) -> RunConfig:
    """Return the explanation's settings; refuse those of another training than the run's."""
    manifests = [read_manifest(record.path) for record in records]
    for record, manifest in zip(records, manifests, strict=True):
        if manifest.data_fingerprint != manifests[-1].data_fingerprint:
            raise CheckpointError(
                f"{record.path}: was trained on data {manifest.data_fingerprint}, but "
                f"{records[-1].path.name} on {manifests[-1].data_fingerprint}; expected the "
                "checkpoints of one run"
            )
    source = "settings of the explanation"
    config = trained_with(manifests[-1], overrides, source=source)
    before, now = flatten(trained_with(manifests[-1], {}, source=source)), flatten(config)
    for key in sorted((before.keys() | now.keys()) - OF_THE_MACHINE):
        if key.partition(".")[0] in OF_THE_TRAINING and before.get(key) != now.get(key):
            raise ConfigError(
                f"{key} is {quoted(now.get(key))}, but the run was trained with "
                f"{quoted(before.get(key))}; an explanation needs the settings of the run: leave "
                "this one out, or train with it"
            )
    return config


def _refuse_average(records: list[CheckpointRecord], config: RunConfig) -> None:
    """Refuse averaged weights, because influence is a sum over the weights at training steps."""
    decay = config.training.ema_decay
    for path in (record.path for record in records):
        if decay is not None and not (path / AVERAGE_FILE).is_file():
            raise CheckpointError(
                f"{path}: contains the average of the parameters (training.ema_decay is {decay}), "
                "not the parameters of a training step; give the run's id, or a folder of its "
                "checkpoints"
            )


def average_setting(config: RunConfig) -> dict[str, float]:
    """Return the setting that records the decay of the run's average; empty without an average."""
    decay = config.training.ema_decay
    return {} if decay is None else {names.SETTING_EMA_DECAY: decay}


def best_setting(models: Sequence[ModelSource]) -> dict[str, Any]:
    """Return the setting that records the best checkpoints of runs at their last checkpoints.

    It is empty if the best checkpoint of each run is its last one, or is not known.
    """
    pairs = [(model.manifest, model.best or model.manifest) for model in models]
    other = [(last, best) for last, best in pairs if last.step != best.step]
    if not other:
        return {}
    unit = "step" if any(last.epoch == best.epoch for last, best in other) else "epoch"
    last, best = ([getattr(each, unit) for each in of] for of in zip(*pairs, strict=True))
    return {names.SETTING_BEST: {"unit": unit, "last": last, "best": best}}
