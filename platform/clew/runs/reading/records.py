"""What people say of a run, kept with it for good: a JSON file each, under a name nobody else has.

So two people at once lose nothing, and nothing is ever overwritten.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.errors import DataError, TrackingError, described
from clew.runs import store
from clew.runs.reading.runs import client, fetched, find_run, list_artifact_folders

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class Record(DataclassInstance, Protocol):
        """What a person said."""

        @property
        def run_id(self) -> str:
            """The run that it is kept with."""

        @property
        def comment(self) -> str:
            """Why it was said."""

        @property
        def created(self) -> str:
            """When it was said, as `stamp` gives it."""


SCHEMA_VERSION = 1
MAX_COMMENT_CHARACTERS = 10_000

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="Record")


@dataclass(frozen=True)
class Kept(Generic[T]):
    """What people said of a run, oldest first, and what is wrong with files that hold no record."""

    records: tuple[T, ...]
    problems: tuple[str, ...] = ()


def stamp() -> tuple[str, str]:
    """Return the time, in ISO 8601 with its zone, and an id that nothing else has."""
    return datetime.now(UTC).isoformat(), uuid.uuid4().hex


def append(record: "Record", folder: str, record_id: str) -> None:
    """Write a record to a folder of its run, under a new name, and mark the run as reviewed.

    Raises:
        DataError: the comment is too long.
        TrackingError: the run is gone or its artifacts cannot be written.
    """
    if len(record.comment) > MAX_COMMENT_CHARACTERS:
        raise DataError(
            f"comment of {len(record.comment)} characters; at most {MAX_COMMENT_CHARACTERS} fit"
        )
    content = {"schema_version": SCHEMA_VERSION} | asdict(record)
    name = f"{folder}/{datetime.fromisoformat(record.created):%Y%m%dT%H%M%S}-{record_id}.json"
    text = json.dumps(content, ensure_ascii=False, indent=1)
    _mark_reviewed(record.run_id)
    try:
        client().log_text(record.run_id, text, name)
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"{folder} of run {record.run_id} could not be written ({described(error)}); is its "
            "artifact store writable from here?"
        ) from None


def _mark_reviewed(run_id: str) -> None:
    """Tag a run, so that its reviews are found however old it is."""
    if names.TAG_REVIEWED in find_run(run_id).tags:
        return
    try:
        with store.using(f"marking run {run_id} as reviewed"):
            client().set_tag(run_id, names.TAG_REVIEWED, "true")
    except TrackingError:
        if names.TAG_REVIEWED not in find_run(run_id).tags:  # else another was faster
            raise


def validated(content: Any, adapter: TypeAdapter[T], kind: str) -> T:
    """Return the record that parsed JSON holds.

    Raises:
        DataError: it holds none, or one of another schema version.
    """
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"no {kind} of schema {SCHEMA_VERSION}")
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise DataError(f"not a whole {kind} ({described(error)})") from None


def read(run_id: str, folder: str, decode: Callable[[Any], RecordT]) -> Kept[RecordT]:
    """Return all records in a folder of a run.

    Raises:
        TrackingError: the run is gone or its artifacts cannot be read.
    """
    if folder not in list_artifact_folders(run_id):
        return Kept(())
    with fetched(run_id, folder) as path:
        return _read_folder(path, decode)


def _read_folder(folder: Path, decode: Callable[[Any], RecordT]) -> Kept[RecordT]:
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(decode(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path.name}: {described(error)}")
    return Kept(tuple(sorted(found, key=lambda each: each.created)), tuple(problems))
