"""The folder of a run: everything it records is written there first, then sent to the store.

    spool/<run id>/       a folder that only its owner can open
      run.json            the store and the run that the records belong to
      journal.jsonl       every record in order, one JSON object per line
      log.txt             the messages of the run
      sent                how many bytes of the journal the store already has
      files/7/...         copies of unsent artifacts, by the position of their record
      refused.jsonl       records that the store refused permanently, with the reason
      lock                held by the process that writes to the run

`sent` is updated after the store has accepted a record. After a crash in between, the record is
sent again; every kind of record can be sent twice without harm (see `clew.runs.delivery`). Before
`sent` counts records, they are on the disk, and copies are there before their records. So if the
machine stops, what was not sent is lost at most back to the last time that something was.

The contents are not trusted when they are read back, because a folder can be cloned, unpacked or
shared. The folder must belong to the user, no path may lead out of it, every record is validated,
and only the files listed above are removed.
"""

import itertools
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from clew.errors import TrackingError, described, quoted, refusing
from clew.files import sync
from clew.runs.base import RECORDS, STRICT, Artifact, Checkpoint, Record, Unreadable

WRITTEN = ("journal.jsonl", "log.txt", "sent.new", "sent", "run.json.new", "run.json", "lock")
"""Files removed with a spool, in this order; as long as one of them exists, a spool is found."""
FILES = (*WRITTEN, "refused.jsonl")
VALUES_PER_GROUP = 1000
_NAME = re.compile(r"[0-9a-f]{32}")
Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@dataclass(frozen=True, config=STRICT)
class Origin:
    """The run that a spool belongs to, and the address of its store without secrets."""

    tracking_uri: Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=1000)]
    run_id: Identity
    experiment_id: Identity
    schema_version: Literal[1] = 1


ORIGINS = TypeAdapter(Origin)


class SpoolInUseError(TrackingError):
    """Another process is writing to the run."""


class LostOriginError(TrackingError):
    """The file `run.json` of a spool is missing, or its end is."""


class UnusableRecordError(Exception):
    """A record can never be sent, for example because its file is missing."""


class Entry(NamedTuple):
    """An unsent record, and the length of the journal up to its end."""

    record: Record
    end: int


class Spool:
    """The records of one run; one thread at a time writes them, another thread sends them."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder = folder
        self.origin = origin
        self._path = folder / "journal.jsonl"
        self._lock = FileLock(folder / "lock", timeout=0, mode=0o600)
        try:
            self._lock.acquire()
        except Timeout:
            raise SpoolInUseError(
                f"run {origin.run_id} is being written by another process; wait for its end"
            ) from None
        try:
            if self._path.exists():
                content = self._path.read_bytes()
            else:  # the spool is new, or a process died while it removed the spool
                content = b""
                (folder / "sent").unlink(missing_ok=True)
            # If the machine stops, the end can be an incomplete line, or zeros.
            self.length = content.partition(b"\0")[0].rfind(b"\n") + 1
            self.sent = _read_sent(folder / "sent", self.length)
            self._file = open(self._path, "ab", buffering=0, opener=_private)  # noqa: SIM115
            self._file.truncate(self.length)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def create(cls, root: Path, origin: Origin) -> "Spool":
        """Open the run's spool, and continue with what an earlier process left in it."""
        folder = root / origin.run_id
        make_root(root)
        with _writing(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync(root)
            _require_own(folder)
            spool = cls(folder, origin)
            _write_whole(folder / "run.json", ORIGINS.dump_json(origin, indent=1))
        return spool

    @classmethod
    def open(cls, folder: Path) -> "Spool":
        file = folder / "run.json"
        try:
            _require_own(folder)
            origin = ORIGINS.validate_json(file.read_bytes())
            if origin.run_id != folder.name:
                problem = f"{file}: run_id is {origin.run_id!r}, expected the folder's name"
                raise TrackingError(f"{problem}; delete the folder if you do not know its origin")
            file = folder
            return cls(folder, origin)
        except (OSError, ValidationError) as error:
            problem = error.errors()[0]["type"] if isinstance(error, ValidationError) else ""
            is_lost = isinstance(error, FileNotFoundError) or problem == "json_invalid"
            raise (LostOriginError if is_lost else TrackingError)(
                f"{file}: not readable ({described(error)}); expected a spool folder as this "
                "version of Clew writes it; if this file is damaged, delete it: `clew sync` makes "
                "it again"
            ) from None

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def num_waiting_bytes(self) -> int:
        return self.length - self.sent

    @property
    def num_refused(self) -> int:
        path = self.folder / "refused.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def append(self, message: Record) -> None:
        """Write a record completely or not at all; it is safe even if the process then dies.

        Raises:
            OSError: The record cannot be written; the disk may be full.
        """
        line = RECORDS.dump_json(message) + b"\n"
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.length)
            raise
        self.length += len(line)

    def stage(self, path: Path, *, link: bool = False) -> str:
        """Keep a copy of a file or folder until the next record is sent; return the copy's name.

        With `link`, files are hard-linked if the file system supports it. Use it only for files
        that are always replaced, never written in place.

        Raises:
            OSError: The copy cannot be made; the disk may be full.
        """
        name = f"files/{self.length}/{path.name}"
        target = self.folder / name
        # A process that died before it wrote its record can leave files under this number.
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir(parents=True)
        copy = _link_or_copy if link else shutil.copy2
        try:
            if path.is_dir():
                shutil.copytree(path, target, copy_function=copy)
            else:
                copy(path, target)
            for copied in (*target.rglob("*"), target, *target.parents[:3]):
                sync(copied)
        except OSError:  # on a full disk, the end of the run needs the space
            shutil.rmtree(target.parent, ignore_errors=True)
            raise
        return name

    def staged_path(self, message: Artifact | Checkpoint) -> Path:
        """Return the path of a record's files."""
        path = self.folder / message.staged
        for part in itertools.chain((path.parent, path), path.rglob("*")):
            if not _is_plain(part):
                raise UnusableRecordError(
                    f"{quoted(str(part))}: not a regular file or folder in the spool"
                )
        if isinstance(message, Checkpoint) and not path.is_dir():
            raise UnusableRecordError(f"{quoted(str(path))}: a file; expected a checkpoint folder")
        return path

    def waiting(self, start: int | None = None) -> Iterator[Entry]:
        """Yield the records from a position on, in order; without one, those not yet sent."""
        end = self.sent if start is None else start
        with self._path.open("rb") as file:
            file.seek(end)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                try:
                    yield Entry(RECORDS.validate_json(line), end)
                except ValidationError as error:
                    yield Entry(Unreadable(line.decode(errors="replace"), described(error)), end)

    def mark_sent(self, entry: Entry, *, keep_files: bool = False) -> None:
        """Record that the store has everything up to `entry`, and delete its staged files."""
        os.fsync(self._file.fileno())
        _write_whole(self.folder / "sent", b"%d" % entry.end)
        self.sent = entry.end
        if isinstance(entry.record, Artifact | Checkpoint) and not keep_files:
            shutil.rmtree((self.folder / entry.record.staged).parent, ignore_errors=True)

    def refuse(self, message: Record, reason: str) -> None:
        with open(self.folder / "refused.jsonl", "a", opener=_private) as file:
            refused = {"reason": reason, "message": RECORDS.dump_python(message)}
            file.write(json.dumps(refused) + "\n")

    def close(self, *, keep: bool = False) -> None:
        """Close the spool, and remove it if the store has everything, unless `keep` is True."""
        self._file.close()
        if not keep and self.num_waiting_bytes == 0 and self.num_refused == 0:
            for name in WRITTEN:
                (self.folder / name).unlink(missing_ok=True)
            for path in self.folder.glob("files/[0-9]*"):
                shutil.rmtree(path, ignore_errors=True)
            for path in (self.folder / "files", self.folder):
                if path.exists() and not any(path.iterdir()):
                    path.rmdir()
        self._lock.release()


def groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield groups of consecutive metrics, parameters and tags; others are alone."""
    group: list[Entry] = []
    num_values = 0
    for entry in entries:
        size = len(getattr(entry.record, "values", ())) or VALUES_PER_GROUP
        if group and num_values + size > VALUES_PER_GROUP:
            yield group
            group, num_values = [], 0
        group.append(entry)
        num_values += size
    if group:
        yield group


def make_root(root: Path) -> None:
    """Make the folder of all spools, before there is a run that could not be recorded."""
    with _writing(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()


def _writing(folder: Path) -> AbstractContextManager[None]:
    what, advice = f"spool folder {folder} cannot be written", "set CLEW_SPOOL to a writable folder"
    return refusing(what, OSError, advice=f"; {advice}", error=TrackingError)


def list_spools(root: Path) -> list[Path]:
    """Return the folders of spools, and others with a `run.json`, which cannot be opened."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        own = (*WRITTEN, "files") if _NAME.fullmatch(folder.name) else ("run.json",)
        if any(os.access(folder / name, os.F_OK) for name in own):
            found.append(folder)
    return found


def _require_own(folder: Path) -> None:
    """Refuse a folder that another user could have written, and a folder that contains links."""
    info = folder.lstat()
    mode = stat.S_IMODE(info.st_mode)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or mode & 0o077:
        raise TrackingError(
            f"spool folder {folder} has owner {info.st_uid} and mode {mode:03o}, expected a folder "
            f"of yours with mode 700; if Clew wrote it on this machine, `chmod 700 {folder}`, else "
            "delete it"
        )
    for path in folder.iterdir():
        is_other = path.is_dir() if path.name in FILES else path.name == "files" and path.is_file()
        if is_other or not _is_plain(path):
            raise TrackingError(f"{path} is not a regular file or folder; delete {folder}")


def _is_plain(path: Path) -> bool:
    # The methods of Path raise an error if a name is too long.
    return not os.path.islink(path) and (os.path.isfile(path) or os.path.isdir(path))


def _read_sent(path: Path, length: int) -> int:
    text = path.read_text(errors="replace") if path.exists() else "0"
    if text.isdecimal() and len(text) < 20 and int(text) <= length:
        return int(text)
    advice = "delete this file to send the whole journal again"
    raise TrackingError(f"{path} holds {text[:20]!r}, expected a number up to {length}; {advice}")


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file to the disk completely or not at all; the lock protects its temporary name."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _link_or_copy(source: str | Path, target: str | Path) -> object:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system, or one without hard links
        return shutil.copy2(source, target)
    return target
