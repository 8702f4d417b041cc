"""A journal on a full disk: no partial message is written, and the run still ends."""

import errno
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew import names
from clew.errors import Interrupted
from clew.runs import hardware
from clew.runs.base import Record, Tags
from clew.runs.delivery import sync_spool
from clew.runs.spool import Origin, Spool
from clew.runs.tracker import Forwarder, MlflowTracker
from tests.runs.kept import read_run

Open = Callable[..., MlflowTracker]


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Make the system refuse to enlarge files of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def messages_in(journal: Spool) -> list[Record]:
    return [entry.record for entry in journal.waiting()]


def test_a_message_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path, Origin("sqlite:////nowhere/mlflow.db", "abc", "1"))
    journal.append(Tags({"first": "1"}))
    with largest_file(journal.length + 10), pytest.raises(OSError, match="File too large"):
        journal.append(Tags({"second": "2" * 100}))
    assert messages_in(journal) == [Tags({"first": "1"})]
    journal.append(Tags({"third": "3"}))
    assert messages_in(journal) == [Tags({"first": "1"}), Tags({"third": "3"})]
    assert (tmp_path / "abc" / "journal.jsonl").stat().st_size == journal.length
    journal.close(keep=True)


def test_files_that_do_not_fit_leave_their_place_free(tmp_path: Path) -> None:
    journal = Spool.create(tmp_path / "spool", Origin("sqlite:////nowhere/m.db", "abc", "1"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(100_000))
    with largest_file(50_000), pytest.raises(OSError, match="File too large"):
        journal.stage(tmp_path / "model")
    assert list((tmp_path / "spool" / "abc" / "files").iterdir()) == []
    journal.close(keep=True)


@contextmanager
def full_disk(*calls: str) -> Iterator[None]:
    """Make journals refuse messages, and calls of MLflow's client fail."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "append", refuse)
        for name in calls:
            patch.setattr(MlflowClient, name, refuse)
        yield


def test_a_run_ends_in_the_store_though_its_journal_is_full(
    open_run: Open, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = open_run()
    tracker.metrics({"train/loss": 1.0}, 1)
    with full_disk(), pytest.raises(OSError, match="No space left"), tracker:
        tracker.metrics({"train/loss": 0.5}, 2)
    kept = read_run(MlflowClient(), tracker.run_id)
    assert kept.status == "FAILED"
    assert kept.metrics == {"train/loss": [(1.0, 1)]}
    assert any(tracker.run_id in message for message in caplog.messages)


def test_where_the_store_is_full_too_the_run_can_be_ended_later(
    open_run: Open, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = open_run(kind=names.KIND_TRACE)
    tracker.flush()
    full = full_disk("log_batch", "set_terminated")
    with full, pytest.raises(OSError, match="No space left"), tracker:
        tracker.metrics({"train/loss": 0.5}, 2)
    client = MlflowClient()
    assert client.get_run(tracker.run_id).info.status == "RUNNING"
    assert f"run {tracker.run_id} is still shown as running in the store" in caplog.text
    [result] = sync_spool()
    assert result.problem is None
    assert client.get_run(tracker.run_id).info.status == "FAILED"


def test_system_metrics_end_quietly_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hardware, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(hardware, "SAMPLING_SECONDS", 0.01)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hardware.sample_machine(refuse, threading.Event())
    assert "system metrics are no longer recorded: [Errno 28] No space left" in caplog.text


@pytest.mark.parametrize("status", ["FINISHED", "KILLED"])
def test_a_ctrl_c_near_the_end_does_not_change_how_the_run_ends(
    open_run: Open, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    tracker = open_run()
    tracker.metrics({"train/loss": 1.0}, 1)
    flush, calls = Forwarder.flush, []

    def interrupted(self: Forwarder) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        flush(self)

    die_with = {"FINISHED": None, "KILLED": Interrupted("stopped")}[status]
    with pytest.raises(KeyboardInterrupt), tracker:  # noqa: PT012
        tracker._forwarder._closing.set()  # not the forwarder's thread is interrupted
        tracker._forwarder.join()
        monkeypatch.setattr(Forwarder, "flush", interrupted)
        if die_with is not None:
            raise die_with
    kept = read_run(MlflowClient(), tracker.run_id)
    assert kept.status == status
    assert kept.metrics == {"train/loss": [(1.0, 1)]}
    assert sync_spool() == []


def test_tracebacks_of_the_database_are_in_the_log_of_the_run(open_run: Open) -> None:
    tracker = open_run()
    logging.getLogger("mlflow.store.db.utils").error("disk I/O error")
    log = tracker._spool.log.read_text()
    assert "disk I/O error" in log
