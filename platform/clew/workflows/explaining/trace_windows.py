"""What explaining a text and explaining a sequence of frames share: open, explain, time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from clew import names
from clew.errors import ConfigError
from clew.folders import cache_folder
from clew.influence.windows.estimates import SearchSettings
from clew.influence.windows.tracer import WindowExplanation, WindowTracer
from clew.influence.windows.unrolled import UnrolledWindowTracer
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.precision import device_name, half_precision_type, resolve_device
from clew.training.setup import prepare_process
from clew.training.task import B, Task
from clew.workflows.explaining.trace_unrolled import replay_settings, require_same_device
from clew.workflows.explaining.tracin import deviation as deviation_metrics
from clew.workflows.model_source import ModelSource, check_fingerprint
from clew.workflows.run_checkpoints import average_setting
from clew.workflows.tasks import build_task

T = TypeVar("T")


def open_task(source: ModelSource, kind: type[T], explains: str) -> tuple[T, torch.device]:
    """Build a model's task and choose the device.

    Args:
        source: The model.
        kind: The task's class.
        explains: What the command explains and which commands explain the rest, for people.

    Raises:
        ConfigError: the model's task is another, or the form of the score is not defined for it.
    """
    score = source.config.influence.score
    if score not in {"auto", "raw", "unrolled"}:
        raise ConfigError(
            f"influence.score is {score}, but training windows have raw scores, with the cosine "
            "beside each, or unrolled ones; only graph models have other forms: leave it at raw"
        )
    prepare_process(source.config)
    task = build_task(source.config)
    if not isinstance(task, kind):
        raise ConfigError(f"{source.title} is a {task.kind} model; {explains}")
    check_fingerprint(source, task.data_fingerprint)
    return task, resolve_device("cpu" if source.config.training.device == "cpu" else "auto")


def open_tracer(
    task: Task[B],
    windows: ExampleSource[B],
    source: ModelSource,
    checkpoints: Sequence[CheckpointRecord],
    *,
    device: torch.device,
    num_last_layers: int | None,
) -> WindowTracer[B]:
    """Return what explains predictions by training windows, as the settings say.

    Args:
        task: The model's task.
        windows: The training windows; for unrolled scores it is the training examples.
        source: The model.
        checkpoints: All its checkpoints, in order of their steps.
        device: Where to compute.
        num_last_layers: Use only this many modules, counted from the end; None: all.

    Raises:
        UsageError: unrolled scores are asked for, and the run cannot be replayed, or another
            setting rules them out.
    """
    settings = source.config.influence
    if settings.score == "unrolled":
        if num_last_layers is not None or settings.search != "all":
            given = "influence.search=index" if num_last_layers is None else "--num-last-layers"
            raise ConfigError(
                f"influence.score is unrolled and {given} is given; the whole training is "
                "differentiated and every window gets a score: leave it out"
            )
        require_same_device(source, device)
        return UnrolledWindowTracer(
            task, source.config, checkpoints, device=device, cache=cache_folder("unrolled")
        )
    return WindowTracer(
        task,
        windows,
        checkpoints,
        device=device,
        num_last_layers=num_last_layers,
        half=half_precision_type(settings, device),
        with_cosine=settings.with_cosine,
    )


def search_settings(source: ModelSource) -> SearchSettings | None:
    """Return how windows are searched; None: all are scored.

    Raises:
        ConfigError: more windows are to be kept than are scored.
    """
    settings = source.config.influence
    if settings.search == "all":
        return None
    if not 0 < settings.top_k <= settings.candidates:
        raise ConfigError(
            f"influence.top_k is {settings.top_k}, but a search scores influence.candidates = "
            f"{settings.candidates} windows of each sign; expected top_k from 1 to candidates, or "
            "influence.search=all"
        )
    return SearchSettings(settings.candidates, settings.projection_rank, settings.search_opponents)


@dataclass(frozen=True, eq=False)
class Explained:
    """Explanations of several tests, made in one pass over the training windows."""

    found: Sequence[WindowExplanation]
    said: Mapping[str, Any]
    """What every report says of how they were made."""
    metrics: Mapping[str, float]


def explain(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    progress: Callable[[int, int], None],
) -> Explained:
    """Explain test windows, batches of one each."""
    top_k, num_windows = source.config.influence.top_k, len(tracer.windows)
    settings, started = search_settings(source), time.perf_counter()
    found = tracer.explain(tests, top_k=top_k or num_windows, settings=settings, progress=progress)
    searched = found[0].searched
    making = searched.making_seconds if searched else 0.0
    seconds = (time.perf_counter() - started - making) / len(tests)
    deviation = tracer.half_precision_deviation(tests) if tracer.half else None
    said: dict[str, Any] = {
        "run_id": source.run_id or "",
        "dataset": tracer.task.dataset,
        "num_windows": num_windows,
        "seconds": seconds,
        "device": device_name(tracer.device),
        "steps": tuple(record.step for record in tracer.checkpoints),
        "weights": tuple(map(float, tracer.weights)),
    }
    said["settings"] = {
        "top_k": top_k,
        "num_last_layers": tracer.num_last_layers,
        "tests_in_this_pass": len(tests),
        "search": source.config.influence.search,
        "use_mixed_precision": tracer.half is not None,
        **({} if deviation is None else {"half_precision_deviation": deviation}),
        "data_fingerprint": tracer.task.data_fingerprint,
        "config_hash": source.manifest.config_hash,
        "score": "raw",
        **average_setting(source.config),
    }
    if source.config.influence.score == "unrolled":
        said["settings"].pop(names.SETTING_EMA_DECAY, None)  # it explains the average
        said["settings"] |= {"score": "unrolled"}
        said["settings"] |= replay_settings(source.config, tracer.checkpoints[-1].step)
    metrics = {
        names.INFLUENCE_SECONDS_PER_TEST: seconds,
        names.INFLUENCE_PAIRS_PER_SECOND: num_windows / seconds,
        **deviation_metrics(said["settings"]),
    }
    return Explained(found, said, metrics)
