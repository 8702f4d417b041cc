"""The subject of each kind of data, and the task that a configuration asks for.

Also the last words of a command: what came out, whether it is good, and what to type next.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew import names
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import printable
from clew.files import as_typed
from clew.image_sequences.subject import ImageSequences
from clew.language_modeling.subject import Texts
from clew.link_prediction.subject import Graphs
from clew.runs.store import shown, tracking_uri
from clew.subject import Subject
from clew.training.manifest import read_manifest
from clew.training.reports import lasting, speed_in_words
from clew.training.task import Task

SUBJECTS: dict[str, Subject[Any, Any, Any]] = {
    "triples": Graphs(),
    "tokens": Texts(),
    "image_sequences": ImageSequences(),
}
"""Kind of data to its subject."""


def subject_in(folder: Path) -> Subject[Any, Any, Any]:
    """Return the subject of the model in a folder."""
    return SUBJECTS[from_mapping(read_manifest(folder).config, source=str(folder)).data.kind]


def build_task(config: RunConfig) -> Task[Any]:
    """Read the data, and return the task with the configuration's model and loss.

    Raises:
        DataError: The data cannot be read.
    """
    task: Task[Any] = SUBJECTS[config.data.kind].build_task(config)
    return task


def data_fingerprint(config: RunConfig) -> str:
    return build_task(config).data_fingerprint


GROUPS = {
    "test/": "quality on the test split",
    "valid/": "quality on the validation split",
    "train/": "training",
    "throughput/": "speed",
    "time/": "time",
    "memory/": "memory",
}


def grouped(metrics: Mapping[str, float]) -> list[str]:
    """Return all metrics in lines, in groups that have titles."""
    rest = dict(sorted(metrics.items()))
    lines = []
    for prefix, title in (*GROUPS.items(), ("", "others")):
        own = [key for key in rest if key.startswith(prefix)]
        lines += [title] if own else []
        lines += [f"  {key:36} {rest.pop(key):.6g}" for key in own]
    return lines


def quality(task: Any, kind: str, metrics: Mapping[str, float]) -> list[str]:
    """Return how good a model is, on the test split if it was evaluated there."""
    for split in ("test", "valid"):
        if any(key.startswith(names.metric(split, "")) for key in metrics):
            return SUBJECTS[kind].summary(task, metrics, split)
    return ["quality: not evaluated; clew evaluate does it"]


def of_training(
    task: Any,
    kind: str,
    metrics: Mapping[str, float],
    *,
    run_id: str | None,
    output_dir: Path | None,
) -> list[str]:
    """Return the verdict on a training, in at most seven lines."""
    lines = quality(task, kind, metrics)
    peaks = (names.GPU_PEAK_ALLOCATED_GIB, names.PROCESS_PEAK_GIB)
    memory = [f"{metrics[key]:.2f} GiB at the peak" for key in peaks if key in metrics][:1]
    total = f"{lasting(metrics[names.TIME_TOTAL_SECONDS])} of training"
    lines.append(f"cost: {', '.join([total, *speed_in_words(metrics), *memory])}")
    kept = [as_typed(output_dir)] if output_dir is not None else []
    kept += [f"run {run_id} of {shown(tracking_uri())}"] if run_id is not None else []
    lines.append(f"files: {' and '.join(kept) or 'none were kept'}")
    model = run_id or (output_dir and as_typed(output_dir / names.ARTIFACT_BEST))
    commands = SUBJECTS[kind].next_commands(task, str(model)) if model else []
    lines += [f"next: {command}" for command in commands]
    return [printable(line) for line in lines]  # a name can contain any character
