"""The last words of a command: what came out, whether it is good, and what to type next."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew import names
from clew.errors import printable
from clew.files import as_typed
from clew.runs.store import in_use
from clew.training.reports import lasting, speed_in_words
from clew.workflows.subjects import SUBJECTS

GROUPS = {
    "test/": "quality on the test split",
    "valid/": "quality on the validation split",
    "train/": "training",
    "throughput/": "speed",
    "time/": "time",
    "memory/": "memory",
}

NOT_VALIDATED = (
    "quality: not evaluated, so there is no best checkpoint to predict with; train with "
    "evaluation.enabled=true and a validation split"
)


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
    return [NOT_VALIDATED]


def of_training(
    task: Any,
    kind: str,
    metrics: Mapping[str, float],
    *,
    run_id: str | None,
    output_dir: Path | None,
) -> list[str]:
    """Return the verdict on a training run, in at most seven lines."""
    lines = quality(task, kind, metrics)
    peaks = (names.GPU_PEAK_ALLOCATED_GIB, names.PROCESS_PEAK_GIB)
    memory = [f"{metrics[key]:.2f} GiB at the peak" for key in peaks if key in metrics][:1]
    total = f"{lasting(metrics[names.TIME_TOTAL_SECONDS])} of training"
    lines.append(f"cost: {', '.join([total, *speed_in_words(metrics), *memory])}")
    kept = [as_typed(output_dir)] if output_dir is not None else []
    kept += [f"run {run_id} of {in_use()}"] if run_id is not None else []
    lines.append(f"files: {' and '.join(kept) or 'none were kept'}")
    best = None if NOT_VALIDATED in lines else names.ARTIFACT_BEST
    model = run_id or (output_dir and as_typed(output_dir / (best or "")))
    commands = SUBJECTS[kind].next_commands(task, str(model)) if model else []
    lines += [f"next: {each}" for each in commands if best or not each.startswith("clew predict")]
    return [printable(line) for line in lines]  # a name can contain any character


def as_note(lines: list[str]) -> dict[str, str]:
    """Return the tag that shows a verdict as the run's description, a paragraph for each line."""
    return {names.TAG_NOTE: "\n\n".join(line for line in lines if not line.startswith("files:"))}
