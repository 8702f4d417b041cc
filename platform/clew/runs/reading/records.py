"""Stores what people say about a run permanently with the run.

Each record is a JSON file with a unique name. Two people can therefore write at the same time, and
no record is ever overwritten.
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
        """A review or a decision of a person."""

        @property
        def run_id(self) -> str:
            """Id of the run that the record is stored with."""

        @property
        def comment(self) -> str:
            """The person's reason."""

        @property
        def created(self) -> str:
            """Time of the record, as `stamp` returns it."""


SCHEMA_VERSION = 1
MAX_COMMENT_CHARACTERS = 10_000

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="Record")


@dataclass(frozen=True)
class Kept(Generic[T]):
    """The records of a run, oldest first, and the problems of files that contain no record."""

    records: tuple[T, ...]
    problems: tuple[str, ...] = ()


def stamp() -> tuple[str, str]:
    """Return the current time in ISO 8601 with time zone, and a unique id."""
    return datetime.now(UTC).isoformat(), uuid.uuid4().hex


def append(record: "Record", folder: str, record_id: str) -> None:
    """Write a record as a new file in a folder of its run, and mark the run as reviewed.

    Raises:
        DataError: The comment is too long.
        TrackingError: The run no longer exists, or its artifacts cannot be written.
    """
    if len(record.comment) > MAX_COMMENT_CHARACTERS:
        raise DataError(
            f"the comment has {len(record.comment)} characters; write at most "
            f"{MAX_COMMENT_CHARACTERS}"
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
    """Tag a run, so that its reviews can be found without reading all runs."""
    if names.TAG_REVIEWED in find_run(run_id).tags:
        return
    try:
        with store.using(f"marking run {run_id} as reviewed"):
            client().set_tag(run_id, names.TAG_REVIEWED, "true")
    except TrackingError:
        if names.TAG_REVIEWED not in find_run(run_id).tags:  # another process may have set it
            raise


def validated(content: Any, adapter: TypeAdapter[T], kind: str) -> T:
    """Return the record in parsed JSON.

    Raises:
        DataError: The content is not a record, or it has another schema version.
    """
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"not a {kind} of schema version {SCHEMA_VERSION}")
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise DataError(f"not a complete {kind} ({described(error)})") from None


def read(run_id: str, folder: str, decode: Callable[[Any], RecordT]) -> Kept[RecordT]:
    """Return all records in a folder of a run.

    Raises:
        TrackingError: The run no longer exists, or its artifacts cannot be read.
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
