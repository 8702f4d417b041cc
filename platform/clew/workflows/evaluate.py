"""Evaluate: a trained model on a split of the data it was trained on, recorded as a run."""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from clew import __version__, names
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, DataError
from clew.files import working_folder
from clew.runs.base import Tracker
from clew.runs.hardware import describe_machine, git_commit
from clew.runs.mlflow_store import open_tracker
from clew.training.precision import device_name
from clew.workflows.evaluate_negatives import measure_against
from clew.workflows.model_source import LoadedModel, ModelSource, load_source, open_model

logger = logging.getLogger(__name__)

SPLITS = ("valid", "test")


@dataclass(frozen=True)
class EvaluateResult:
    """The quality of a model on a split, and the run that records it."""

    model: str
    split: str
    run_id: str | None
    metrics: dict[str, float]

    def table(self) -> str:
        """Return the metrics, one per line."""
        shown = [f"model: {self.model}", f"run {self.run_id or '(not recorded)'}"]
        shown += [f"  {key:28} {value:.6f}" for key, value in sorted(self.metrics.items())]
        return "\n".join(shown)


def evaluate(model: str, split: str = "test", *, negatives: Path | None = None) -> EvaluateResult:
    """Evaluate a model on a split of the run's data, and record a run of kind `evaluate`.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        split: `valid` or `test`.
        negatives: Also judge by given wrong triples; see `clew.workflows.evaluate_negatives`.

    Raises:
        UsageError: the model or its data cannot be used; nothing is recorded then.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; expected {' or '.join(SPLITS)}")
    with open_model(model) as source:
        loaded = load_source(source)
        began = time.perf_counter()
        against = measure_against(loaded, negatives, split) if negatives else {}
        metrics = measure(loaded, source, split) | against
        seconds = time.perf_counter() - began
        tracker = open_tracker(
            TrackingConfig(experiment=source.config.tracking.experiment),
            kind=names.KIND_EVALUATE,
            run_name=f"evaluate {loaded.task.dataset} {split}",
            tags=tags_of(source, loaded),
        )
        with tracker:
            tracker.dataset(**dataset_of(source, loaded), context="evaluation")
            tracker.metrics({names.TIME_EVALUATION_SECONDS: seconds}, source.manifest.step)
            record(tracker, loaded, source, split, metrics)
        return EvaluateResult(source.title, split, tracker.run_id, metrics)


def measure(loaded: LoadedModel, source: ModelSource, split: str) -> dict[str, float]:
    """Return the quality of a loaded model on a split.

    Raises:
        DataError: the split has no examples.
    """
    metrics = loaded.metrics(split)
    if not metrics:
        raise DataError(
            f"{source.title}: its data set {loaded.task.dataset} has no {split} examples; evaluate "
            "another split"
        )
    bad = [key for key, value in metrics.items() if not math.isfinite(value)]
    if bad:
        logger.warning("%s: %s is %s", source.title, bad[0], metrics[bad[0]])
    return metrics


def record(
    tracker: Tracker,
    loaded: LoadedModel,
    source: ModelSource,
    split: str,
    metrics: dict[str, float],
) -> None:
    """Record metrics at the step of the checkpoint, and the details that the task can tell."""
    tracker.metrics(metrics, source.manifest.step)
    with working_folder("evaluation") as folder:
        report = folder / names.ARTIFACT_EVALUATION
        report.mkdir()
        loaded.task.write_report(split, report)
        if any(report.iterdir()):
            tracker.artifact(report)


def dataset_of(source: ModelSource, loaded: LoadedModel) -> dict[str, str]:
    """Return the data set of a run that works on a trained model, for `Tracker.dataset`."""
    return {
        "name": loaded.task.dataset,
        "fingerprint": loaded.task.data_fingerprint,
        "source": source.config.data.source,
    }


def tags_of(source: ModelSource, loaded: LoadedModel) -> dict[str, str]:
    """Return the tags of a run that works on a trained model."""
    tags = {
        names.TAG_TASK: loaded.task.kind,
        names.TAG_DATASET: loaded.task.dataset,
        names.TAG_DATA_FINGERPRINT: loaded.task.data_fingerprint,
        names.TAG_CONFIG_HASH: source.manifest.config_hash,
        names.TAG_CHECKPOINT_STEP: str(source.manifest.step),
        names.TAG_DEVICE: device_name(loaded.device),
        names.TAG_HARDWARE: describe_machine().summary,
        names.TAG_VERSION: __version__,
        names.TAG_COMMIT: git_commit() or "unknown",
    }
    if source.run_id is not None:
        tags[names.TAG_SOURCE_RUN] = source.run_id
    if source.version is not None:
        tags[names.TAG_MODEL_VERSION] = source.version.uri
    return tags
