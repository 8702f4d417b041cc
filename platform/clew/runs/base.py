"""The tracking interface: what a run can record, and the lines of its journal.

The base class `Tracker` records nothing, and a run without tracking uses it directly. The MLflow
adapter is in `clew.runs.tracker`. Records are lines of a journal (`clew.runs.spool`), which are
checked when read.
"""

import functools
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from clew import names
from clew.errors import Interrupted

logger = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]

_KEY = re.compile(r"[\w.\- :]+(/[\w.\- :]+)*")
MAX_KEY_CHARACTERS = 250


@dataclass(frozen=True)
class RegisteredVersion:
    """One version of a registered model."""

    name: str
    number: str
    run_id: str
    tags: Mapping[str, str]

    @property
    def uri(self) -> str:
        """Address of exactly this version; it does not depend on aliases."""
        return f"models:/{self.name}/{self.number}"


def _names_a_file(staged: str) -> str:
    if staged.endswith(("/.", "/..")):
        raise ValueError("expected the name of a file or folder")
    return staged


Staged = Annotated[
    str, Field(pattern=r"^files/[0-9]{1,20}/[^/\x00]{1,255}$"), AfterValidator(_names_a_file)
]
Folder = Annotated[str, Field(pattern=r"^(\w[\w.\- :]*(/\w[\w.\- :]*)*)?$")]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A 64-bit integer, as a database column stores it."""
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=STRICT)
class Metrics:
    """Values of metrics at an optimizer step.

    `time_ms` is when they were recorded; it does not change when the record is sent again.
    """

    values: dict[str, float]
    step: Whole
    time_ms: Whole
    kind: Literal["metrics"] = "metrics"


@dataclass(frozen=True, config=STRICT)
class Params:
    """Parameters, with their values as text."""

    values: dict[str, str]
    kind: Literal["params"] = "params"


@dataclass(frozen=True, config=STRICT)
class Tags:
    """Tags; a later value replaces an earlier one."""

    values: dict[str, str]
    kind: Literal["tags"] = "tags"


@dataclass(frozen=True, config=STRICT)
class Artifact:
    """A file, or a folder with its contents; `staged` is the copy in the spool."""

    staged: Staged
    folder: Folder
    kind: Literal["artifact"] = "artifact"


@dataclass(frozen=True, config=STRICT)
class Checkpoint:
    """A checkpoint folder that becomes an artifact and a model entry.

    `metric_times_ms` has, for each metric, the time with which the run already recorded the value.
    """

    staged: Staged
    folder: Folder
    step: Whole
    metrics: dict[str, float]
    metric_times_ms: dict[str, Whole]
    kind: Literal["checkpoint"] = "checkpoint"

    @model_validator(mode="after")
    def _times_are_of_metrics(self) -> Self:
        if not self.metrics.keys() <= self.metric_times_ms.keys():
            raise ValueError("expected a time for each metric")
        return self


@dataclass(frozen=True, config=STRICT)
class DataSet:
    """A data set that the run reads."""

    name: str
    fingerprint: str
    source: str
    context: str
    """What the run reads it for, such as `training`."""
    sizes: str = ""
    """In words."""
    columns: dict[str, str] = field(default_factory=dict)
    """MLflow type of each column of an example, by name."""
    kind: Literal["dataset"] = "dataset"


@dataclass(frozen=True, config=STRICT)
class Finish:
    """The end of the run."""

    status: Status
    time_ms: Whole
    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, config=STRICT)
class Unreadable:
    """A line of the journal that is not a valid record."""

    line: str
    reason: str
    kind: Literal["unreadable"] = "unreadable"


Record = Metrics | Params | Tags | Artifact | Checkpoint | DataSet | Finish | Unreadable
RECORDS: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


OPEN: set["Tracker"] = set()
"""Trackers of this process whose runs in the store have not ended."""


def outcome_of(error: BaseException) -> tuple[Status, str]:
    """Return the status of a run that ended with an error, and the reason in one line."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    said = " ".join("; ".join(lines).split())
    if isinstance(error, KeyboardInterrupt):
        return "KILLED", "stopped by the user"
    return ("KILLED" if isinstance(error, Interrupted) else "FAILED"), said


@functools.lru_cache(maxsize=4096)
def check_key(key: str) -> None:
    """Refuse a metric, parameter or tag key that the store would only refuse much later."""
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_CHARACTERS or ".." in key:
        raise ValueError(
            f"key {key!r}: expected at most {MAX_KEY_CHARACTERS} letters, digits, `_-. :`, in "
            "parts separated by `/` (for example `valid/hits_at_10`, not `hits@10`)"
        )


def parameter_key(key: str) -> str:
    """Return the key under which a parameter is stored, with exactly one `cfg.` prefix."""
    key = names.PARAMETER_PREFIX + key.removeprefix(names.PARAMETER_PREFIX)
    check_key(key)
    return key


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the finite values as floats; a store cannot keep infinite values or NaN."""
    for key in values:
        check_key(key)
    numbers = {key: float(value) for key, value in values.items()}
    return {key: number for key, number in numbers.items() if math.isfinite(number)}


class Tracker:
    """Receives what a run records; this base class only writes `events`.

    As a context manager, the tracker ends the run with a status: FINISHED without an error, KILLED
    after an interruption, FAILED after any other error.
    """

    events: Any = None
    """TensorBoard's `SummaryWriter`, if the run has event files."""
    run_id: str | None = None
    """Id of the run in the store; None without a store."""

    def params(self, values: Mapping[str, object]) -> None:
        """Record each parameter once; keys without the prefix `cfg.` get it."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags; a later value replaces an earlier one."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record metric values at an optimizer step.

        Infinite values and NaN are left out, and the run gets one warning per key.
        """
        if self.events:
            for key, value in finite(values).items():
                self.events.add_scalar(key, value, step)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Store a file, or a folder under its own name, in `folder` of the run's artifacts.

        The caller can change or delete `path` after this method returns.
        """

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Store the files of `path` in `folder` of the run and as a model that can be registered.

        The caller can delete `path` after this method returns, but must not write its files in
        place.
        """

    def dataset(self, data: DataSet) -> None:
        """Record a data set as an input of the run."""

    def warn(self, message: str) -> None:
        logger.warning("%s", message)

    def flush(self) -> None:
        """Wait until the store has everything, or until it is clear that it does not respond."""
        if self.events:
            self.events.flush()

    def finish(self, status: Status) -> None:
        """Flush everything and end the run."""
        if self.events:
            self.events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.finish("FINISHED" if error is None else outcome_of(error)[0])
