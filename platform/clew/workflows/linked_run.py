"""Opens runs that use a trained model, linked to its training run, with the data and hardware."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from clew import __version__, names
from clew.config.services import TrackingConfig
from clew.runs.base import Tracker
from clew.runs.hardware import (
    describe_machine,
    git_commit,
    process_gib,
    process_peak_gib,
    reset_process_peak,
)
from clew.runs.mlflow_store import open_tracker
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.training.precision import device_name
from clew.training.task import Task
from clew.workflows.model_source import LoadedModel, ModelSource


@contextmanager
def linked_run(
    source: ModelSource,
    loaded: LoadedModel,
    run_name: str,
    *,
    kind: str,
    context: str,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a run that is linked to the model's training run.

    `context` is the purpose of the data set in this run, for MLflow.
    """
    tracker = open_tracker(
        TrackingConfig(experiment=source.config.tracking.experiment),
        kind=kind,
        run_name=run_name,
        tags=tags_of(source, loaded) | dict(tags or {}),
    )
    with tracker:
        tracker.dataset(
            name=loaded.task.dataset,
            fingerprint=loaded.task.data_fingerprint,
            source=source.config.data.source,
            context=context,
        )
        yield tracker


@contextmanager
def trace_run(
    source: ModelSource,
    loaded: LoadedModel,
    run_name: str,
    *,
    kind: str = names.KIND_TRACE,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a linked run for an explanation; when it ends, record the memory peaks.

    The peaks of process and GPU memory are reset here. They include the memory that is already in
    use, such as the loaded models.
    """
    with linked_run(
        source, loaded, run_name, kind=kind, context="explanation", tags=tags
    ) as tracker:
        reset_gpu_peaks(loaded.device)
        reset_process_peak()
        started_gib = process_gib()
        yield tracker
        peak = process_peak_gib()
        process = {names.PROCESS_PEAK_GIB: peak, names.PROCESS_GROWTH_GIB: peak - started_gib}
        tracker.metrics(process | gpu_peaks(loaded.device), source.manifest.step)


def tags_of(source: ModelSource, loaded: LoadedModel) -> dict[str, str]:
    """Return the tags of a run that uses a trained model."""
    tags = task_tags(loaded.task, source.manifest.config_hash, loaded.device)
    tags[names.TAG_CHECKPOINT_STEP] = str(source.manifest.step)
    if source.run_id is not None:
        tags[names.TAG_SOURCE_RUN] = source.run_id
    if source.version is not None:
        tags[names.TAG_MODEL_VERSION] = source.version.uri
    return tags


def task_tags(task: Task[Any], config_hash: str, device: torch.device) -> dict[str, str]:
    """Return the tags for the task, the code version and the hardware of a run."""
    return {
        names.TAG_TASK: task.kind,
        names.TAG_DATASET: task.dataset,
        names.TAG_DATA_FINGERPRINT: task.data_fingerprint,
        names.TAG_CONFIG_HASH: config_hash,
        names.TAG_DEVICE: device_name(device),
        names.TAG_HARDWARE: describe_machine().summary,
        names.TAG_VERSION: __version__,
        names.TAG_COMMIT: git_commit() or "unknown",
    }
