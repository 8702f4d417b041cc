"""What a run records, as lines of its journal (`clew.runs.spool`), which are checked when read."""

from dataclasses import field
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass


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

    status: Literal["FINISHED", "FAILED", "KILLED"]
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
