"""What a run tells its store, as it waits in the spool: one message a line of JSON.

Times are milliseconds since the epoch, taken when the message was made, so that a message sent
late, or sent twice, says the same.
"""

import json
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Metrics:
    """Values of metrics at an optimizer step."""

    kind: ClassVar[str] = "metrics"
    values: dict[str, float]
    step: int
    time_ms: int


@dataclass(frozen=True)
class Params:
    """Parameters, as text."""

    kind: ClassVar[str] = "params"
    values: dict[str, str]


@dataclass(frozen=True)
class Tags:
    """Tags; a later value replaces an earlier one."""

    kind: ClassVar[str] = "tags"
    values: dict[str, str]


@dataclass(frozen=True)
class Artifact:
    """A file, or a folder with all that is in it; `staged` is its name in the spool."""

    kind: ClassVar[str] = "artifact"
    staged: str
    folder: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that becomes an artifact and a model entry.

    `metric_times_ms` holds, for each metric, the time under which the run already has the value.
    """

    kind: ClassVar[str] = "checkpoint"
    staged: str
    folder: str
    step: int
    metrics: dict[str, float]
    metric_times_ms: dict[str, int]


@dataclass(frozen=True)
class DataSet:
    """A data set that the run reads."""

    kind: ClassVar[str] = "dataset"
    name: str
    fingerprint: str
    source: str
    context: str


@dataclass(frozen=True)
class Finish:
    """The end of the run."""

    kind: ClassVar[str] = "finish"
    status: Literal["FINISHED", "FAILED", "KILLED"]
    time_ms: int


Message = Metrics | Params | Tags | Artifact | Checkpoint | DataSet | Finish
_CLASSES: dict[str, type[Message]] = {
    c.kind: c for c in (Metrics, Params, Tags, Artifact, Checkpoint, DataSet, Finish)
}


def encode(message: Message) -> str:
    """Return the message as one line of JSON, without the line's end."""
    return json.dumps({"kind": message.kind} | asdict(message), separators=(",", ":"))


def decode(line: str) -> Message:
    """Return the message that a line holds."""
    content = json.loads(line)
    return _CLASSES[content.pop("kind")](**content)
