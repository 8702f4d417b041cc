"""What a subject (graphs, text, image sequences) brings to everything that is written once for all.

A subject's folder holds one class of this kind, in `subject.py`; `clew.workflows.subjects` lists
them. Promotion, registry and serving know no more of a subject than its task and this class.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

Row = Mapping[str, Any]
"""A row of a request to a model; it contains only the values that were given."""
Form = str | Sequence["Form"] | Mapping[str, "Form"]
"""An MLflow type such as `string`; `[form]` is an array, and a mapping an object with these parts,
where a name with `?` at its end can be left out."""
Forms = Mapping[str, Form]


@dataclass
class Waiting:
    """A request to a server, whose client waits for the answer."""

    has_begun: bool = False
    is_over: bool = False


current_request: ContextVar[Waiting | None] = ContextVar("current_request", default=None)


def go_on() -> None:
    """Raise an error if nobody waits for the answer any more; call it often while computing one."""
    if request := current_request.get():
        request.has_begun = True
        if request.is_over:
            raise InterruptedError("nobody waits for the answer")


class Settings(BaseModel):
    """The parameters of a request; subclasses define their types, limits and defaults."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Calibrated(Protocol):
    """A result on held-out examples that is served with a model, such as a calibration."""

    def describe(self) -> str:
        """Return one line of text for messages."""

    def tags(self) -> dict[str, str]:
        """Return the tags for a registered version with this result."""


TaskT = TypeVar("TaskT")
LoadedT = TypeVar("LoadedT")
SettingsT = TypeVar("SettingsT", bound=Settings)


class Subject(ABC, Generic[TaskT, LoadedT, SettingsT]):
    """One kind of data with its models: how they are trained, promoted, asked and served."""

    asked_with: ClassVar[str]
    """Options of `clew predict` for its models."""
    examples: ClassVar[str]
    """Plural name of the data's examples for messages, such as `triples`."""
    uncalibrated: ClassVar[str]
    """Why `calibrate` can return None, for messages."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Requirements of its served models beside those of all."""
    expects: ClassVar[str]
    """What a request to a served model should contain, for messages."""
    intended_use: ClassVar[str]
    """What its models are for, and what they are not for, for model cards."""
    columns: ClassVar[Mapping[str, str]]
    """MLflow type of each column of its data."""
    inputs: ClassVar[Forms]
    """The columns of a request."""
    outputs: ClassVar[Forms]
    """The columns of an answer."""
    settings: type[SettingsT]
    most_work: ClassVar[int] = 1000
    """The most work of one request to a served model, in `unit_of_work`."""
    unit_of_work: ClassVar[str] = "rows"
    shares_work: ClassVar[bool] = False
    """Whether requests that wait at the same time are answered together, in little more time than
    one of them."""

    @abstractmethod
    def build_task(self, config: Any) -> TaskT:
        """Read the data, and return the task with the configuration's model and loss.

        Raises:
            DataError: The data cannot be read.
        """

    @abstractmethod
    def describe_data(self, task: TaskT) -> str:
        """Return the sizes of the data in a few words."""

    def findings(self, task: TaskT) -> list[str]:
        """Return what people should look at in the data, one sentence each."""
        return []

    @abstractmethod
    def summary(self, task: TaskT, metrics: Mapping[str, float], split: str) -> list[str]:
        """Say in at most three lines how good a model is on a split.

        The lines hold the main metrics in their units, whether simple baselines are better, and
        how much seeds usually differ, where that is known.
        """

    def next_commands(self, task: TaskT, model: str) -> list[str]:
        """Return commands that ask a model, and that explain an answer of it."""
        of_model = ["--model", model]
        return [shlex.join(["clew", verb, *of_model, *more]) for verb, *more in self.verbs(task)]

    @abstractmethod
    def verbs(self, task: TaskT) -> list[list[str]]:
        """Return the verbs of `next_commands`, each with its options except the model."""

    @abstractmethod
    def num_test_examples(self, task: TaskT) -> int:
        """Return the number of examples in the test split."""

    @abstractmethod
    def calibrate(self, task: TaskT, model: Any) -> Calibrated | None:
        """Return the result of a network on held-out examples, on the CPU; None without any."""

    @abstractmethod
    def write_folder(self, task: TaskT, folder: Path, checkpoint: Path, calibration: Any) -> None:
        """Write what `load` needs to a new folder."""

    @abstractmethod
    def example_rows(self, task: TaskT) -> list[dict[str, Any]]:
        """Return requests that the model can answer."""

    @abstractmethod
    def load(self, folder: Path) -> LoadedT:
        """Load a model from a folder that `write_folder` wrote."""

    @abstractmethod
    def answer(
        self, loaded: LoadedT, rows: Sequence[Row], settings: SettingsT
    ) -> list[dict[str, Any]]:
        """Return one answer per row.

        Raises:
            UsageError: A row cannot be answered.
        """

    def work(self, loaded: LoadedT, num_rows: int, num_bytes: int, settings: SettingsT) -> int:
        """Return how much work it is to answer a request of some bytes; 1 or more."""
        return max(num_rows, 1)

    def agree(self, one: Row, other: Row) -> bool:
        """Whether two answers to a request are the same except for rounding."""
        return one == other
