"""What a kind of model must offer to be promoted and served, and who offers it.

Gate, registry and serving know a candidate by its task and by this. A new kind of model is one
class that offers it, and its serving code.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from clew import names
from clew.errors import CheckpointError
from clew.runs.packaging import save_servable
from clew.training.task import Task
from clew.workflows.served_frames import ServedFrames
from clew.workflows.served_text import ServedText
from clew.workflows.served_triples import ServedTriples

Row = dict[str, Any]
"""A request: what its columns hold."""


class Calibrated(Protocol):
    """What was found on held-out examples, for a model to be served with."""

    def describe(self) -> str:
        """Return it for people, in one line."""
        ...

    def tags(self) -> dict[str, str]:
        """Return the tags of a version that has it."""
        ...


class Servable(Protocol):
    """A model's task as promotion and serving see it."""

    examples: str
    """What the data consists of, for people: `triples`."""
    uncalibrated: str
    """Why there may be nothing to serve the model with, for people."""
    serving_code: Path
    """The Python file that MLflow runs to get the model."""

    def num_examples(self, split: str) -> int:
        """Return how many examples a split has."""
        ...

    def calibrate(self, model: nn.Module) -> Any:
        """Return what held-out examples say, `Calibrated`; None where they say nothing."""
        ...

    def write_folder(self, folder: Path, *, checkpoint: Path, calibration: Any, work: Path) -> Path:
        """Gather in a new folder what the serving code needs; `work` is an empty folder."""
        ...

    def example_rows(self) -> list[Row]:
        """Return requests that the model can answer."""
        ...

    def answer(self, folder: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Answer requests from what `write_folder` wrote, without MLflow."""
        ...

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two answers to a request are the same except for rounding."""
        ...


def save_candidate(
    task: Task[Any], work: Path, *, checkpoint: Path, calibration: Calibrated | None
) -> Path:
    """Save a checkpoint in the empty folder `work` as something that MLflow can serve."""
    (work / "run").mkdir()
    servable = servable_of(task)
    model_folder = servable.write_folder(
        work / "model", checkpoint=checkpoint, calibration=calibration, work=work / "run"
    )
    return save_servable(
        work / "servable",
        task=task.kind,
        code=servable.serving_code,
        model_folder=model_folder,
        work=work / "copies",
        example=servable.example_rows()[0],
    )


_SERVED: dict[str, Any] = {
    names.TASK_LINK_PREDICTION: ServedTriples,
    names.TASK_LANGUAGE_MODELING: ServedText,
    names.TASK_SEQUENCE_REGRESSION: ServedFrames,
}
SERVABLE_TASKS = frozenset(_SERVED)


def servable_of(task: Task[Any]) -> Servable:
    """Return the task as promotion and serving see it.

    Raises:
        CheckpointError: models of this task cannot be served.
    """
    if task.kind not in _SERVED:
        raise CheckpointError(f"{task.kind} models cannot be served; {sorted(SERVABLE_TASKS)} can")
    servable: Servable = _SERVED[task.kind](task)
    return servable
