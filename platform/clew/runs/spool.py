"""The spool: everything a run tells is on the disk first and in the store after.

    spool/<run id>/
      run.json        the store and the run that it belongs to
      journal.jsonl   every message in order, appended
      sent            how many bytes of the journal the store has
      files/7/…       copies of artifacts that wait, by the number of their message
      refused.jsonl   messages that the store refused for good, with its reason

A message is sent at least once and in order: `sent` moves after the store has taken a message, so
a crash in between repeats it, and every kind of message may be repeated without harm (see
`clew.runs.delivery`). While a process holds a spool, it holds a lock on its journal.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from clew.errors import TrackingError
from clew.runs.messages import Message, decode, encode

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """The run whose messages a spool holds."""

    tracking_uri: str
    run_id: str
    experiment_id: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Entry:
    """A waiting message and the journal's length up to and including it."""

    message: Message
    end: int


class SpoolInUseError(TrackingError):
    """Another process holds the spool."""


class Spool:
    """The messages of one run; appended by one thread at a time, sent by another."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder = folder
        self.origin = origin
        self._journal = (folder / "journal.jsonl").open("ab")
        self._lock()
        self._drop_torn_line()
        self.sent = self._read_sent()
        self.length = self._journal.seek(0, os.SEEK_END)

    @classmethod
    def create(cls, root: Path, origin: Origin) -> "Spool":
        """Open the run's spool, and go on with what an earlier process left in it.

        Raises:
            TrackingError: the folder cannot be written, or another process writes to the run.
        """
        folder = root / origin.run_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write_whole(folder / "run.json", json.dumps(asdict(origin), indent=1))
            return cls(folder, origin)
        except OSError as error:
            raise TrackingError(
                f"spool folder {folder} cannot be written ({error}); set CLEW_SPOOL to a folder "
                "that can"
            ) from None

    @classmethod
    def open(cls, folder: Path) -> "Spool":
        """Open a spool that is there.

        Raises:
            TrackingError: it is not readable, or its process is still alive.
        """
        try:
            content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            origin = Origin(**content)
        except (OSError, ValueError, TypeError) as error:
            raise TrackingError(
                f"{folder / 'run.json'}: not readable ({error}); expected a spool folder as Clew "
                "writes it"
            ) from None
        if origin.schema_version != SCHEMA_VERSION:
            raise TrackingError(
                f"{folder / 'run.json'}: schema_version is {origin.schema_version!r}, this version "
                f"of Clew reads {SCHEMA_VERSION}"
            )
        return cls(folder, origin)

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of the journal that the store does not have yet."""
        return self.length - self.sent

    def append(self, message: Message) -> None:
        """Write a message; a process that dies right after has not lost it."""
        line = encode(message).encode() + b"\n"
        self._journal.write(line)
        self._journal.flush()
        self.length += len(line)

    def stage(self, path: Path, *, link: bool = False) -> str:
        """Keep a file or folder until it is sent, and return its name in the spool.

        With `link`, files are hard-linked where the file system can: right for files that are
        replaced whole, never written in place.
        """
        name = f"files/{self.length}/{path.name}"
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = _link_or_copy if link else shutil.copy2
        if path.is_dir():
            shutil.copytree(path, target, copy_function=copy, dirs_exist_ok=True)
        else:
            copy(path, target)
        return name

    def waiting(self) -> Iterator[Entry]:
        """Yield the messages that the store does not have yet, in order."""
        end = self.sent
        with (self.folder / "journal.jsonl").open("rb") as journal:
            journal.seek(end)
            for line in journal:
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                yield Entry(decode(line.decode()), end)

    def mark_sent(self, entry: Entry) -> None:
        """Remember that the store has everything up to `entry`, and drop its staged files."""
        _write_whole(self.folder / "sent", str(entry.end))
        self.sent = entry.end
        staged = getattr(entry.message, "staged", None)
        if staged:
            shutil.rmtree((self.folder / staged).parent, ignore_errors=True)

    def refuse(self, message: Message, reason: str) -> None:
        """Put a message aside that the store will never take; its files stay with it."""
        staged = getattr(message, "staged", None)
        if staged and (self.folder / staged).exists():
            kept = self.folder / "refused" / Path(staged).parent.name
            kept.parent.mkdir(exist_ok=True)
            (self.folder / staged).parent.rename(kept)
        with (self.folder / "refused.jsonl").open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"reason": reason, "message": json.loads(encode(message))}) + "\n"
            )

    @property
    def num_refused(self) -> int:
        """How many messages were put aside."""
        path = self.folder / "refused.jsonl"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def close(self, *, keep: bool = False) -> None:
        """Let go of the spool; if the store has it all, remove it unless told to `keep` it."""
        if not keep and self.num_waiting_bytes == 0 and self.num_refused == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        # A forked worker may hold a copy of the file: unlock it, closing alone would not.
        fcntl.flock(self._journal, fcntl.LOCK_UN)
        self._journal.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise SpoolInUseError(
                f"run {self.origin.run_id} is being written by another process; wait for its end"
            ) from None

    def _drop_torn_line(self) -> None:
        """Cut off what a crash of the machine left of a line."""
        content = (self.folder / "journal.jsonl").read_bytes()
        self._journal.truncate(content.rfind(b"\n") + 1)

    def _read_sent(self) -> int:
        path = self.folder / "sent"
        return int(path.read_text()) if path.exists() else 0


def list_spools(root: Path) -> list[Path]:
    """Return the folders of spools under `root`."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if (path / "run.json").is_file())


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _link_or_copy(source: str | Path, target: str | Path) -> object:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        return shutil.copy2(source, target)
    return target
