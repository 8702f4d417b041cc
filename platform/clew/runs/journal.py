"""The journal of a run: all its records are written to disk first, then sent from there.

    spool/<run id>/       a folder that only its owner can open
      run.json            the store and the run that the journal belongs to
      journal.jsonl       every message in order, one per line
      sent                how many bytes of the journal the store already has
      files/7/...         copies of unsent artifacts, by the position of their message
      refused.jsonl       messages that the store refused permanently, with the reason
      refused/7/...       the files of these messages
      lock                held by the process that writes to the run

`sent` is updated after the store has accepted a message. After a crash in between, the message is
sent again; every kind of message can be sent twice without harm (see `clew.runs.delivery`).
`run.json` and `sent` are first written under another name (`sent.new`), and a killed process can
leave such a file.

The contents are not trusted when they are read back, because a folder can be cloned, unpacked or
shared. The folder must belong to the user, no path may lead out of it, and only the files listed
above are removed.
"""

import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from pydantic import ValidationError

from clew.errors import TrackingError, described, quoted
from clew.runs.messages import (
    MESSAGES,
    ORIGINS,
    Artifact,
    Checkpoint,
    Message,
    Origin,
    Unreadable,
)

WRITTEN = ("journal.jsonl", "sent.new", "sent", "run.json.new", "run.json", "lock")
"""Files removed with a journal, in this order: a journal is found as long as `run.json` exists."""
FILES = (*WRITTEN, "refused.jsonl")
FOLDERS = ("files", "refused")


class JournalEntry(NamedTuple):
    """An unsent message, and the length of the journal up to the end of this message."""

    message: Message
    end: int


class JournalInUseError(TrackingError):
    """Another process is writing to the run."""


class UnusableMessageError(Exception):
    """A message can never be sent, for example because its file is missing."""


class Journal:
    """The messages of one run; one thread at a time writes them, another thread sends them."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder = folder
        self.origin = origin
        self._path = folder / "journal.jsonl"
        self._lock = FileLock(folder / "lock", timeout=0, mode=0o600)
        try:
            self._lock.acquire()
        except Timeout:
            raise JournalInUseError(
                f"run {origin.run_id} is being written by another process; wait for its end"
            ) from None
        try:
            if self._path.exists():
                content = self._path.read_bytes()
            else:  # the journal is new, or a process died while it removed the journal
                content = b""
                (folder / "sent").unlink(missing_ok=True)
            # A crash of the machine can leave an incomplete last line.
            self.length = content.rfind(b"\n") + 1
            self.sent = _read_sent(folder / "sent", self.length)
            self._file = open(self._path, "ab", buffering=0, opener=_private)  # noqa: SIM115
            self._file.truncate(self.length)
        except BaseException:
            self._lock.release()
            raise

    @classmethod
    def create(cls, root: Path, origin: Origin) -> "Journal":
        """Open the run's journal, and continue with what an earlier process left in it.

        Raises:
            TrackingError: The folder cannot be written or is not safe to use, or another process
                is writing to the run.
        """
        folder = root / origin.run_id
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            _require_own(folder)
            journal = cls(folder, origin)
            _write_whole(folder / "run.json", ORIGINS.dump_json(origin, indent=1))
        except OSError as error:
            raise TrackingError(
                f"spool folder {folder} cannot be written ({error}); set CLEW_SPOOL to a writable "
                "folder"
            ) from None
        return journal

    @classmethod
    def open(cls, folder: Path) -> "Journal":
        """Open an existing journal.

        Raises:
            TrackingError: The journal is not readable or not safe to use, or its process is still
                running.
        """
        file = folder / "run.json"
        try:
            _require_own(folder)
            origin = ORIGINS.validate_json(file.read_bytes())
            if origin.run_id != folder.name:
                raise TrackingError(
                    f"{file}: run_id is {origin.run_id!r}, expected the folder's name; delete the "
                    "folder if you do not know its origin"
                )
            file = folder
            return cls(folder, origin)
        except (OSError, ValidationError) as error:
            raise TrackingError(
                f"{file}: not readable ({described(error)}); expected a spool folder as this "
                "version of Clew writes it"
            ) from None

    @property
    def num_waiting_bytes(self) -> int:
        """Number of bytes of the journal that the store does not have yet."""
        return self.length - self.sent

    @property
    def num_refused(self) -> int:
        """Number of messages that the store refused permanently."""
        path = self.folder / "refused.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def append(self, message: Message) -> None:
        """Write a message completely or not at all; it is safe even if the process then dies.

        Raises:
            OSError: The message cannot be written; the disk may be full.
        """
        line = MESSAGES.dump_json(message) + b"\n"
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.length)
            raise
        self.length += len(line)

    def stage(self, path: Path, *, link: bool = False) -> str:
        """Keep a copy of a file or folder until the next message is sent; return the copy's name.

        With `link`, files are hard-linked if the file system supports it. Use it only for files
        that are always replaced, never written in place.

        Raises:
            OSError: The copy cannot be made; the disk may be full.
        """
        name = f"files/{self.length}/{path.name}"
        target = self.folder / name
        # A process that died before it wrote its message can leave files under this number.
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir(parents=True)
        copy = _link_or_copy if link else shutil.copy2
        try:
            if path.is_dir():
                shutil.copytree(path, target, copy_function=copy)
            else:
                copy(path, target)
        except OSError:  # on a full disk, the end of the run needs the space
            shutil.rmtree(target.parent, ignore_errors=True)
            raise
        return name

    def staged_path(self, message: Artifact | Checkpoint) -> Path:
        """Return the path of a message's files.

        Raises:
            UnusableMessageError: A file is missing or is a link, or a checkpoint is not a folder.
        """
        path = self.folder / message.staged
        for part in itertools.chain((path.parent, path), path.rglob("*")):
            if not _is_plain(part):
                raise UnusableMessageError(
                    f"{quoted(str(part))}: not a regular file or folder in the spool"
                )
        if isinstance(message, Checkpoint) and not path.is_dir():
            raise UnusableMessageError(f"{quoted(str(path))}: a file; expected a checkpoint folder")
        return path

    def waiting(self) -> Iterator[JournalEntry]:
        """Yield the messages that the store does not have yet, in order."""
        end = self.sent
        with self._path.open("rb") as file:
            file.seek(end)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                try:
                    yield JournalEntry(MESSAGES.validate_json(line), end)
                except ValidationError as error:
                    yield JournalEntry(
                        Unreadable(line.decode(errors="replace"), described(error)), end
                    )

    def mark_sent(self, entry: JournalEntry) -> None:
        """Record that the store has everything up to `entry`, and delete its staged files."""
        _write_whole(self.folder / "sent", b"%d" % entry.end)
        self.sent = entry.end
        if isinstance(entry.message, Artifact | Checkpoint):
            shutil.rmtree((self.folder / entry.message.staged).parent, ignore_errors=True)

    def refuse(self, message: Message, reason: str) -> None:
        """Move a message that the store refused permanently, with its files, out of the queue."""
        if isinstance(message, Artifact | Checkpoint):
            files = (self.folder / message.staged).parent
            if files.exists():
                (self.folder / "refused").mkdir(exist_ok=True)
                files.rename(self.folder / "refused" / files.name)
        with open(self.folder / "refused.jsonl", "a", opener=_private) as file:
            record = {"reason": reason, "message": MESSAGES.dump_python(message)}
            file.write(json.dumps(record) + "\n")

    def close(self, *, keep: bool = False) -> None:
        """Close the journal, and remove it if the store has everything, unless `keep` is True."""
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


def list_journals(root: Path) -> list[Path]:
    """Return the folders of journals under `root`."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if os.access(path / "run.json", os.F_OK))


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
        other_kind = (
            path.is_dir() if path.name in FILES else path.name in FOLDERS and path.is_file()
        )
        if other_kind or not _is_plain(path):
            raise TrackingError(f"{path} is not a regular file or folder; delete {folder}")


def _is_plain(path: Path) -> bool:
    # The methods of Path raise an error if a name is too long.
    return not os.path.islink(path) and (os.path.isfile(path) or os.path.isdir(path))


def _read_sent(path: Path, length: int) -> int:
    text = path.read_text(errors="replace") if path.exists() else "0"
    if text.isdecimal() and len(text) < 20 and int(text) <= length:
        return int(text)
    raise TrackingError(
        f"{path} holds {text[:20]!r}, expected a number up to {length}; delete this file to send "
        "the whole journal again"
    )


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all; the lock protects its temporary name."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb", opener=_private) as file:
        file.write(content)
    new.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _link_or_copy(source: str | Path, target: str | Path) -> object:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system, or one without hard links
        return shutil.copy2(source, target)
    return target
