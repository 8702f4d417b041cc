"""The journal loses nothing and keeps the order, even after interruptions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import TrackingError
from clew.runs.base import (
    RECORDS,
    Artifact,
    Checkpoint,
    DataSet,
    Finish,
    Metrics,
    Params,
    Record,
    Tags,
)
from clew.runs.spool import Origin, Spool, SpoolInUseError, list_spools

ORIGIN = Origin("sqlite:////nowhere/mlflow.db", "abc123", "1")
TEXT = st.text(max_size=20)
VALUES = st.dictionaries(TEXT, TEXT, max_size=3)
NUMBERS = st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3)
TIME = st.integers(0, 2**41)
STAGED = st.sampled_from(["files/0/a.txt", "files/120/ein Blatt Grün.csv", "files/7/epoch-0005"])
FOLDER = st.sampled_from(["", "checkpoints/epoch-0005", "profile"])
ANY = st.one_of(
    st.builds(Metrics, NUMBERS, TIME, TIME),
    st.builds(Params, VALUES),
    st.builds(Tags, VALUES),
    st.builds(Artifact, STAGED, FOLDER),
    st.builds(
        lambda staged, folder, step, metrics: Checkpoint(
            staged, folder, step, metrics, dict.fromkeys(metrics, step)
        ),
        STAGED,
        FOLDER,
        TIME,
        NUMBERS,
    ),
    st.builds(DataSet, TEXT, TEXT, TEXT, TEXT),
    st.builds(Finish, st.sampled_from(["FINISHED", "FAILED", "KILLED"]), TIME),
)


def point(step: int) -> Metrics:
    return Metrics({"train/loss": 0.5}, step, 1000 + step)


def waiting(journal: Spool) -> list[Record]:
    return [entry.record for entry in journal.waiting()]


@given(ANY)
def test_a_message_survives_its_line(message: Record) -> None:
    line = RECORDS.dump_json(message)
    assert b"\n" not in line
    assert RECORDS.validate_json(line) == message


def test_messages_wait_in_order_until_they_are_sent(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    for step in range(4):
        journal.append(point(step))
    entries = list(journal.waiting())
    assert [entry.record for entry in entries] == [point(step) for step in range(4)]
    journal.mark_sent(entries[1])
    assert waiting(journal) == [point(2), point(3)]
    journal.close()


def test_another_process_goes_on_where_the_last_one_died(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path\n"
        "from clew.runs.base import Metrics\n"
        "from clew.runs.spool import Origin, Spool\n"
        f"origin = Origin({ORIGIN.tracking_uri!r}, 'abc123', '1')\n"
        f"journal = Spool.create(Path({str(tmp_path)!r}), origin)\n"
        "for step in range(3): journal.append(Metrics({'train/loss': 0.5}, step, 1000 + step))\n"
        "journal.mark_sent(next(iter(journal.waiting())))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False)
    assert result.returncode == -9
    journal = Spool.create(tmp_path, ORIGIN)
    journal.append(point(3))
    assert waiting(journal) == [point(1), point(2), point(3)]
    journal.close()


def test_a_process_that_dies_in_the_middle_of_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path\n"
        "from clew.runs.base import Tags\n"
        "from clew.runs.spool import Origin, Spool\n"
        f"origin = Origin({ORIGIN.tracking_uri!r}, 'abc123', '1')\n"
        f"journal = Spool.create(Path({str(tmp_path)!r}), origin)\n"
        "journal.append(Tags({'clew.unit': 'K'}))\n"
        "Path.replace = lambda self, target: os.kill(os.getpid(), 9)\n"
        "journal.mark_sent(next(iter(journal.waiting())))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    journal = Spool.open(tmp_path / "abc123")
    for entry in journal.waiting():
        journal.mark_sent(entry)
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_while_it_removes_its_journal_keeps_nobody_from_the_run(
    tmp_path: Path,
) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    journal.append(point(0))
    journal.mark_sent(next(iter(journal.waiting())))
    journal.close(keep=True)
    (tmp_path / "abc123" / "journal.jsonl").unlink()  # the first that goes
    journal = Spool.open(tmp_path / "abc123")
    for step in range(3):
        journal.append(point(step))
    journal.close(keep=True)
    journal = Spool.open(tmp_path / "abc123")
    assert waiting(journal) == [point(0), point(1), point(2)]
    journal.close(keep=True)


def test_half_a_line_is_cut_off_and_never_sent(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    journal.append(point(0))
    journal.close()
    journal = tmp_path / "abc123" / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"kind": "metrics", "val')
    journal = Spool.open(tmp_path / "abc123")
    journal.append(point(1))
    assert waiting(journal) == [point(0), point(1)]
    journal.close()


def test_a_reader_does_not_see_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    journal.append(point(0))
    with (tmp_path / "abc123" / "journal.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "val')
    assert waiting(journal) == [point(0)]
    journal.close(keep=True)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    with pytest.raises(SpoolInUseError, match="abc123 is being written by another process"):
        Spool.open(tmp_path / "abc123")
    journal.close(keep=True)
    Spool.open(tmp_path / "abc123").close()


def test_a_forked_child_does_not_keep_the_spool_locked(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # this process holds the journal's open file until the pipe is closed
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    journal.close(keep=True)
    Spool.open(tmp_path / "abc123").close()
    os.close(reading)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_sent_is_removed_and_what_waits_is_not(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, ORIGIN)
    journal.append(point(0))
    journal.close()
    assert [path.name for path in list_spools(tmp_path)] == ["abc123"]
    journal = Spool.open(tmp_path / "abc123")
    for entry in journal.waiting():
        journal.mark_sent(entry)
    journal.close()
    assert list_spools(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_staged_files_are_copies_unless_links_are_right(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path / "spool", ORIGIN)
    original = tmp_path / "history.parquet"
    original.write_text("first")
    copied = journal.stage(original)
    journal.append(Artifact(copied, ""))
    linked = journal.stage(original, link=True)
    journal.append(Artifact(linked, ""))
    assert copied != linked
    original.write_text("second")  # this keeps the inode
    assert (journal.folder / copied).read_text() == "first"
    assert (journal.folder / linked).samefile(original)
    original.unlink()
    assert (journal.folder / linked).read_text() == "second"
    journal.close(keep=True)


def test_staged_files_go_when_they_are_sent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    journal = Spool.create(tmp_path / "spool", ORIGIN)
    staged = journal.stage(tmp_path / "a.txt")
    journal.append(Artifact(staged, ""))
    journal.mark_sent(next(iter(journal.waiting())))
    assert not (journal.folder / staged).exists()
    journal.close()


def test_a_refused_message_is_put_aside_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    journal = Spool.create(tmp_path / "spool", ORIGIN)
    message = Artifact(journal.stage(tmp_path / "a.txt"), "")
    journal.append(message)
    journal.refuse(message, "no such run")
    journal.mark_sent(next(iter(journal.waiting())), keep_files=True)
    assert journal.num_refused == 1
    record = json.loads((journal.folder / "refused.jsonl").read_text())
    assert record["reason"] == "no such run"
    assert [path.read_text() for path in (journal.folder / "files").rglob("a.txt")] == ["a"]
    journal.close()
    assert list_spools(tmp_path / "spool"), "refused messages are for a person to look at"


class Disk:
    """What a machine that stops still has: the bytes and the names that were flushed before."""

    def __init__(self, root: Path) -> None:
        self.root, self.flushed, self.names = root, dict[int, bytes](), dict[Path, int]()
        self.states: list[dict[str, bytes]] = []
        self.kept = root.with_name("kept")
        """Links to all files, so that no new file gets the number of a removed one."""
        self.kept.mkdir()

    def flush(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            self.names = {name: i for name, i in self.names.items() if name.parent != path}
            self.names |= {child: child.stat().st_ino for child in path.iterdir()}
            for child in path.iterdir():
                link = self.kept / str(child.stat().st_ino)
                if child.is_file() and not link.exists():
                    link.hardlink_to(child)
        else:
            self.flushed[path.stat().st_ino] = path.read_bytes()
        found = {
            str(name.relative_to(self.root)): self.flushed.get(inode, b"")
            for name, inode in self.names.items()
            if all(parent in self.names for parent in name.parents[: -len(self.root.parents) - 1])
        }
        self.states.append({name: found[name] for name in found if "." in name or "sent" in name})


def test_a_machine_that_stops_at_any_point_leaves_a_spool_that_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, original = tmp_path / "spool", tmp_path / "history.parquet"
    root.mkdir()
    original.write_text("rows")
    disk = Disk(root)
    monkeypatch.setattr(os, "fsync", disk.flush)
    journal = Spool.create(root, ORIGIN)
    records: list[Record] = [point(0), point(1)]
    for record in records:
        journal.append(record)
    first, second = journal.waiting()
    journal.mark_sent(first)
    records.append(Artifact(journal.stage(original), ""))
    journal.append(records[-1])
    journal.mark_sent(second)
    journal.append(point(2))
    journal.mark_sent(next(iter(journal.waiting())))
    journal.close(keep=True)
    monkeypatch.undo()
    nums_sent = []
    for number, state in enumerate(disk.states):
        left = tmp_path / str(number)
        (left / "abc123").mkdir(mode=0o700, parents=True)
        for name, content in state.items():
            path = left / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for folder in list_spools(left):
            found = Spool.open(folder)
            kept = [entry.record for entry in found.waiting(0)]
            assert kept == [*records, point(2)][: len(kept)]
            waits = waiting(found)
            nums_sent.append(len(kept) - len(waits))
            for record in waits:
                if isinstance(record, Artifact):
                    assert found.staged_path(record).read_text() == "rows"
            found.close(keep=True)
    assert nums_sent == sorted(nums_sent)
    assert {0, 1, 2, 3} <= set(nums_sent)


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("not a folder")
    with pytest.raises(TrackingError, match=r"cannot be written .*set CLEW_SPOOL"):
        Spool.create(tmp_path / "spool", ORIGIN)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not readable"),
        ('{"surprise": 1}', "not readable"),
        (
            '{"tracking_uri": "x", "run_id": "y", "experiment_id": "1", "schema_version": 9}',
            "schema_version: expected 1.*as this version of Clew writes it",
        ),
    ],
)
def test_a_foreign_spool_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    tmp_path.chmod(0o700)
    with pytest.raises(TrackingError, match=message):
        Spool.open(tmp_path)
