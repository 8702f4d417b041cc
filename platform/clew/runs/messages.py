"""The messages of a run's journal: one JSON message per line.

A journal file can be damaged or changed on disk, so every message is validated when it is read.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass


def _names_a_file(staged: str) -> str:
    if staged.endswith(("/.", "/..")):
        raise ValueError("expected the name of a file or folder")
    return staged


Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Staged = Annotated[
    str, Field(pattern=r"^files/[0-9]{1,20}/[^/\x00]{1,255}$"), AfterValidator(_names_a_file)
]
Folder = Annotated[str, Field(pattern=r"^(\w[\w.\- :]*(/\w[\w.\- :]*)*)?$")]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""A 64-bit integer, as a database column stores it."""
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class Metrics:
    """Values of metrics at an optimizer step."""

    values: dict[str, float]
    step: Whole
    time_ms: Whole
    """Time when the values were recorded; it does not change when the message is sent again."""
    kind: Literal["metrics"] = "metrics"


@dataclass(frozen=True, config=_STRICT)
class Params:
    """Parameters, with their values as text."""

    values: dict[str, str]
    kind: Literal["params"] = "params"


@dataclass(frozen=True, config=_STRICT)
class Tags:
    """Tags; a later value replaces an earlier one."""

    values: dict[str, str]
    kind: Literal["tags"] = "tags"


@dataclass(frozen=True, config=_STRICT)
class Artifact:
    """A file, or a folder with its contents; `staged` is the copy in the journal's folder."""

    staged: Staged
    folder: Folder
    kind: Literal["artifact"] = "artifact"


@dataclass(frozen=True, config=_STRICT)
class Checkpoint:
    """A checkpoint folder that becomes an artifact and a model entry."""

    staged: Staged
    folder: Folder
    step: Whole
    metrics: dict[str, float]
    metric_times_ms: dict[str, Whole]
    """For each metric, the time with which the run already recorded the value."""
    kind: Literal["checkpoint"] = "checkpoint"

    @model_validator(mode="after")
    def _times_are_of_metrics(self) -> Self:
        if not self.metrics.keys() <= self.metric_times_ms.keys():
            raise ValueError("expected a time for each metric")
        return self


@dataclass(frozen=True, config=_STRICT)
class DataSet:
    """A data set that the run reads."""

    name: str
    fingerprint: str
    source: str
    context: str
    kind: Literal["dataset"] = "dataset"


@dataclass(frozen=True, config=_STRICT)
class Finish:
    """The end of the run."""

    status: Literal["FINISHED", "FAILED", "KILLED"]
    time_ms: Whole
    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, config=_STRICT)
class Unreadable:
    """A line of the journal that is not a valid message."""

    line: str
    reason: str
    kind: Literal["unreadable"] = "unreadable"


Message = Metrics | Params | Tags | Artifact | Checkpoint | DataSet | Finish | Unreadable
MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


@dataclass(frozen=True, config=_STRICT)
class Origin:
    """The run that a journal belongs to, and the address of its store without secrets."""

    tracking_uri: Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=1000)]
    run_id: Identity
    experiment_id: Identity
    schema_version: Literal[1] = 1


ORIGINS = TypeAdapter(Origin)
