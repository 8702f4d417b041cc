"""What a run records, as its journal holds it: one message per line of JSON.

A journal is read back from a disk where anything may have happened to it: everything is checked.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Staged = Annotated[str, Field(pattern=r"^files/[0-9]+/[^/]+$")]
Folder = Annotated[str, Field(pattern=r"^(\w[\w.\- :]*(/\w[\w.\- :]*)*)?$")]
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class Metrics:
    """Values of metrics at an optimizer step."""

    values: dict[str, float]
    step: int
    time_ms: int
    """When the value was recorded; a message that is sent late, or twice, says the same."""
    kind: Literal["metrics"] = "metrics"


@dataclass(frozen=True, config=_STRICT)
class Params:
    """Parameters, as text."""

    values: dict[str, str]
    kind: Literal["params"] = "params"


@dataclass(frozen=True, config=_STRICT)
class Tags:
    """Tags; a later value replaces an earlier one."""

    values: dict[str, str]
    kind: Literal["tags"] = "tags"


@dataclass(frozen=True, config=_STRICT)
class Artifact:
    """A file, or a folder with all that is in it; `staged` is its copy in the journal's folder."""

    staged: Staged
    folder: Folder
    kind: Literal["artifact"] = "artifact"


@dataclass(frozen=True, config=_STRICT)
class Checkpoint:
    """A checkpoint folder that becomes an artifact and a model entry."""

    staged: Staged
    folder: Folder
    step: int
    metrics: dict[str, float]
    metric_times_ms: dict[str, int]
    """For each metric, the time under which the run already has the value."""
    kind: Literal["checkpoint"] = "checkpoint"


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
    time_ms: int
    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, config=_STRICT)
class Unreadable:
    """A line of the journal that is no message."""

    line: str
    reason: str
    kind: Literal["unreadable"] = "unreadable"


Message = Metrics | Params | Tags | Artifact | Checkpoint | DataSet | Finish | Unreadable
MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


@dataclass(frozen=True, config=_STRICT)
class Origin:
    """The run that a journal belongs to, and its store's address without secrets."""

    tracking_uri: str
    run_id: Identity
    experiment_id: Identity
    schema_version: Literal[1] = 1


ORIGINS = TypeAdapter(Origin)
