"""Journals written or changed by somebody else: no foreign file is sent or deleted."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew.errors import TrackingError
from clew.runs import store
from clew.runs.delivery import SyncResult, sync_spool
from clew.runs.spool import Origin, Spool
from clew.runs.tracker import MlflowTracker
from tests.runs.kept import Kept, read_run

ORIGIN = Origin("sqlite:////nowhere/mlflow.db", "abc123", "1")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file that belongs to no run."""
    path = tmp_path / "private" / "diary.txt"
    path.parent.mkdir()
    path.write_text("secret")
    return path


@pytest.fixture
def copied(open_run: Callable[..., MlflowTracker], tmp_path: Path) -> Path:
    """Return a copy of the folder of a real run's journal, as in a cloned project."""
    tracker = open_run()
    tracker.metrics({"train/loss": 0.5}, 1)
    tracker.flush()
    folder = tmp_path / "cloned" / tracker.run_id
    shutil.copytree(store.spool_root() / tracker.run_id, folder)
    tracker.finish("FINISHED")
    return folder


def add_message(folder: Path, message: object) -> None:
    with (folder / "journal.jsonl").open("a") as file:
        file.write(json.dumps(message) + "\n")


def sync(folder: Path) -> tuple[SyncResult, Kept]:
    [result] = sync_spool(folder.parent)
    return result, read_run(MlflowClient(), folder.name)


def change_origin(folder: Path, **values: str) -> None:
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(content | values))


@pytest.mark.parametrize("kind", ["relative", "absolute", "a folder"])
def test_a_file_outside_is_neither_sent_nor_deleted(copied: Path, victim: Path, kind: str) -> None:
    staged = {
        "relative": f"../../{victim.parent.name}/{victim.name}",
        "absolute": str(victim),
        "a folder": f"../../{victim.parent.name}",
    }[kind]
    add_message(copied, {"kind": "artifact", "staged": staged, "folder": ""})
    result, kept = sync(copied)
    assert kept.artifacts == set()
    assert victim.read_text() == "secret"
    assert result.num_refused == 1
    assert "files/" in (copied / "refused.jsonl").read_text()


@pytest.mark.parametrize("linked", ["files/7/diary.txt", "files/7/folder/diary.txt", "files/7"])
def test_a_link_to_a_file_outside_is_not_followed(copied: Path, victim: Path, linked: str) -> None:
    link = copied / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(victim.parent if linked == "files/7" else victim)
    staged = "files/7/folder" if "folder" in linked else "files/7/diary.txt"
    add_message(copied, {"kind": "artifact", "staged": staged, "folder": ""})
    _, kept = sync(copied)
    assert not any("diary" in path for path in kept.artifacts)
    assert victim.read_text() == "secret"


@pytest.mark.parametrize("name", ["files", "journal.jsonl", "sent", "run.json", "lock", "other"])
def test_a_link_in_the_folder_is_one_line(copied: Path, victim: Path, name: str) -> None:
    target = victim.parent if name == "files" else victim
    if name == "files":
        (target / "7").mkdir()
        (target / "7" / "diary.txt").write_text("secret")
        add_message(copied, {"kind": "artifact", "staged": "files/7/diary.txt", "folder": ""})
        shutil.rmtree(copied / "files", ignore_errors=True)
    else:
        (copied / name).unlink(missing_ok=True)
    if name == "run.json":  # a link to a copy of the original file
        target = shutil.copy(store.spool_root().parent / "mlflow.db", victim.parent / "run.json")
    (copied / name).symlink_to(target)
    result, kept = sync(copied)
    assert "not a regular file" in (result.problem or "")
    assert "\n" not in (result.problem or "")
    assert kept.artifacts == set()
    assert victim.read_text() == "secret"
    assert name != "files" or (target / "7" / "diary.txt").exists()


def test_a_folder_that_others_can_open_is_one_line(copied: Path) -> None:
    copied.chmod(0o755)
    add_message(copied, {"kind": "tags", "values": {"clew.unit": "K"}})
    result, kept = sync(copied)
    assert "mode 755, expected a folder of yours with mode 700; if Clew" in (result.problem or "")
    assert f"`chmod 700 {copied}`" in (result.problem or "")
    assert "clew.unit" not in kept.tags
    with pytest.raises(TrackingError, match="mode 755"):
        Spool.create(copied.parent, Origin("sqlite:///x.db", copied.name, "1"))


def test_a_folder_of_somebody_else_is_one_line(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_message(copied, {"kind": "tags", "values": {"clew.unit": "K"}})
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    result, kept = sync(copied)
    assert f"has owner {owner} and mode 700" in (result.problem or "")
    assert "clew.unit" not in kept.tags


@pytest.mark.parametrize("run_id", ["../../private", "/tmp/x", "..", "", "0" * 32])
def test_a_run_that_is_not_the_folders_is_one_line(copied: Path, victim: Path, run_id: str) -> None:
    add_message(copied, {"kind": "tags", "values": {"clew.unit": "K"}})
    change_origin(copied, run_id=run_id)
    result, kept = sync(copied)
    assert "run_id" in (result.problem or "")
    assert "clew.unit" not in kept.tags
    assert victim.exists()


@pytest.mark.parametrize("run_id", ["../../private", "a/b", "..", ""])
def test_a_run_that_would_leave_the_spool_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        Spool.create(tmp_path / "spool", Origin("sqlite:///x.db", run_id, "1"))
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_another_store_waits(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_message(copied, {"kind": "tags", "values": {"clew.unit": "K"}})
    here = store.tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    [result] = sync_spool(copied.parent)
    assert f"it belongs to {here}, but the store in use is" in (result.problem or "")
    assert not (tmp_path / "other.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", here)
    result, kept = sync(copied)
    assert (result.num_sent, result.problem) == (1, None)
    assert kept.tags["clew.unit"] == "K"


def test_only_what_clew_wrote_is_removed(copied: Path) -> None:
    (copied / "thesis.tex").write_text("years of work")
    (copied / "files").mkdir(exist_ok=True)
    (copied / "files" / "figure.pdf").write_text("weeks of work")
    result, _ = sync(copied)
    assert result.problem is None
    names = {str(path.relative_to(copied)) for path in copied.rglob("*")}
    assert names == {"thesis.tex", "files", "files/figure.pdf"}


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '{"kind": "metrics", "values": {"train/loss": "high"}, "step": 1, "time_ms": 1}',
        '{"kind": "metrics", "values": {"train/loss": NaN}, "step": 1, "time_ms": 1}',
        '{"kind": "delete everything"}',
        "[" * 100_000,
        '{"kind": "artifact", "staged": "files/1/a", "folder": "../../up"}',
    ],
    ids=["text", "words for numbers", "not a number", "kind", "brackets", "folder"],
)
def test_a_line_that_is_no_message_goes_aside_and_the_next_arrives(copied: Path, line: str) -> None:
    with (copied / "journal.jsonl").open("a") as file:
        file.write(line + "\n")
    add_message(copied, {"kind": "tags", "values": {"clew.unit": "K"}})
    result, kept = sync(copied)
    assert kept.tags["clew.unit"] == "K"
    assert result.num_refused == 1
    [record] = map(json.loads, (copied / "refused.jsonl").read_text().splitlines())
    assert record["message"]["line"].startswith(line[:20])


@pytest.mark.parametrize("content", ["", "-5", "1e3", "9" * 5000, "999999"])
def test_a_count_that_is_none_is_one_line(copied: Path, content: str) -> None:
    (copied / "sent").write_text(content)
    result, _ = sync(copied)
    assert "delete this file to send the whole journal again" in (result.problem or "")
    (copied / "sent").unlink()
    result, kept = sync(copied)
    assert result.problem is None
    assert kept.metrics["train/loss"] == [(0.5, 1)]


def test_files_of_a_message_that_was_never_written_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "epoch-0005").mkdir()
    (tmp_path / "epoch-0005" / "new.txt").write_text("new")
    journal = Spool.create(tmp_path / "spool", ORIGIN)
    stale = journal.folder / "files" / "0" / "epoch-0005"
    stale.mkdir(parents=True)
    (stale / "stale.txt").write_text("of a process that died here")
    staged = journal.stage(tmp_path / "epoch-0005")
    assert [path.name for path in (journal.folder / staged).iterdir()] == ["new.txt"]
    journal.close()


def test_only_the_owner_can_read_a_journal(
    open_run: Callable[..., MlflowTracker], checkpoint_folder: Path
) -> None:
    before = os.umask(0)
    try:
        tracker = open_run()
        tracker.params({"training.seed": 1})
        tracker.flush()
        folder = store.spool_root() / tracker.run_id
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert {modes[name] for name in ("run.json", "journal.jsonl", "sent", "lock")} == {0o600}
    finally:
        os.umask(before)
