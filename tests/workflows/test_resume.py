"""Which runs can be resumed; the trainer's tests check the resumed training itself."""

import errno
import fcntl
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from filelock import FileLock
from mlflow import MlflowClient

from clew import names
from clew.__main__ import run as run_command
from clew.config.load import to_yaml
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.errors import CheckpointError, ClewError, ConfigError, Interrupted, TrackingError
from clew.runs import store
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import RunRecord, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.spool import Spool
from clew.training.checkpointing import Checkpointer
from clew.training.distributed import World
from clew.training.manifest import read_manifest
from clew.training.progress import Watch
from clew.workflows.outputs import check_new_folder
from clew.workflows.resume import ResumePoint, find_in_folder, find_newest, find_resume_point
from clew.workflows.train import train
from clew.workflows.training_run import lock_of, only_training_in
from tests.workflows.trained import ROOT, small_config


def run_of_elsewhere(*, kind: str = names.KIND_TRAIN, silent: float = 0.0) -> RunRecord:
    """Return a RUNNING run whose last heartbeat was `silent` seconds ago."""
    beat = str(time.time() - silent)
    client = MlflowClient(store.tracking_uri())
    run = client.create_run("0", tags={names.TAG_KIND: kind, names.TAG_HEARTBEAT: beat})
    return find_run(run.info.run_id)


def test_a_run_that_is_alive_here_stays_as_it_is(tracking_store: Path, tmp_path: Path) -> None:
    with open_tracker(TrackingConfig(), kind=names.KIND_TRAIN) as tracker:
        tracker.flush()
        with pytest.raises(TrackingError, match="is being written by another process"):
            find_resume_point(tracker.run_id, {}, tmp_path)
        assert find_run(tracker.run_id).status == "RUNNING"


def test_a_run_that_is_alive_elsewhere_stays_as_it_is(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere()
    with pytest.raises(TrackingError, match=r"was alive \d+ s ago.* silent for 120 s"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id) == run


def test_a_run_that_has_long_been_silent_is_ended(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere(silent=130.0)
    with pytest.raises(CheckpointError, match=r"before it wrote its configuration.*start again"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id).status == "KILLED"


def test_only_a_training_run_is_taken_up(tracking_store: Path, tmp_path: Path) -> None:
    run = run_of_elsewhere(kind=names.KIND_TRACE, silent=4000.0)
    with pytest.raises(ConfigError, match=r"its clew\.kind is 'trace', expected 'train'"):
        find_resume_point(run.run_id, {}, tmp_path)
    assert find_run(run.run_id) == run


def interrupt(config: RunConfig, *, after: int = 1, **named: Any) -> str:
    """Train, stop after some checkpoints, and return the run."""
    write, calls = Checkpointer.write, []

    def write_some(self: Checkpointer, *arguments: Any) -> None:
        calls.append(self)
        if len(calls) > after:
            raise KeyboardInterrupt
        write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "write", write_some)
        with pytest.raises(KeyboardInterrupt):
            train(config, **named)
    return newest_run()


def newest_run() -> str:
    return search_runs(RunQuery(kind=names.KIND_TRAIN), limit=1).runs[0].run_id


def config_of(**overrides: object) -> RunConfig:
    return small_config(training__checkpoint_frequency=1, **overrides)


def test_the_newest_unfinished_run_of_this_configuration_is_taken_up(
    tracking_store: Path, tmp_path: Path
) -> None:
    first = interrupt(config_of())
    second = interrupt(config_of())
    other = interrupt(config_of(training__seed=5))
    assert find_newest(config_of(), {}, tmp_path).run_id == second
    assert find_newest(config_of(training__seed=5), {}, tmp_path).run_id == other
    assert first != second


def test_a_run_that_another_completed_is_not_taken_up_again(
    tracking_store: Path, tmp_path: Path
) -> None:
    stopped = interrupt(config_of())
    done = train(lambda folder: find_newest(config_of(), {}, folder))
    assert find_run(done.run_id or "").tags[names.TAG_RESUMED_FROM] == stopped
    with pytest.raises(TrackingError, match="no unfinished run with this configuration"):
        find_newest(config_of(), {}, tmp_path)
    epochs = config_of().training.num_epochs
    with pytest.raises(ConfigError, match=f"num_epochs, {epochs}"):
        find_resume_point(done.run_id or "", {}, tmp_path / "done")
    more = find_resume_point(done.run_id or "", {"epochs": epochs + 1}, tmp_path / "more")
    assert more.manifest.epoch == epochs


def test_a_run_without_a_checkpoint_is_passed_over(
    tracking_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = interrupt(config_of())
    tags = {names.TAG_CONFIG_HASH: config_of().config_hash}
    with open_tracker(TrackingConfig(), kind=names.KIND_TRAIN, tags=tags) as empty:
        empty.finish("FAILED")
    assert find_newest(config_of(), {}, tmp_path).run_id == good
    assert f"run {empty.run_id} ended before it wrote its configuration" in caplog.text


def test_a_run_whose_batch_size_was_chosen_is_found_by_auto(
    tracking_store: Path, tmp_path: Path
) -> None:
    chosen = config_of(training__batch_size=64, training__gradient_accumulation=2)
    stopped = interrupt(chosen)
    automatic = config_of(training__batch_size="auto", training__effective_batch_size=128)
    point = find_newest(automatic, {}, tmp_path)
    assert point.run_id == stopped
    assert point.config == chosen


def test_the_copy_of_a_run_is_completed_where_it_is(tracking_store: Path, tmp_path: Path) -> None:
    whole, kept = tmp_path / "whole", tmp_path / "kept"
    even = {"schedule__kind": "constant"}  # other schedules depend on the number of epochs
    train(config_of(**even), output_dir=whole)
    begun = train(config_of(**even, training__num_epochs=2), output_dir=kept).run_id or ""
    longer = {"training.num_epochs": 4}

    def find(folder: Path) -> ResumePoint:
        return find_resume_point(begun, longer, folder)

    train(find, output_dir=kept)
    for name in ("best/model.safetensors", "checkpoints/epoch-0004/model.safetensors"):
        assert (whole / name).read_bytes() == (kept / name).read_bytes(), name
    assert {path.name for path in kept.iterdir()} == {path.name for path in whole.iterdir()}
    before = (kept / "history.parquet").read_bytes()
    for folder in (kept, whole):  # of a training that has gone further, and of another one
        with pytest.raises(ConfigError, match=r"--output-dir .*: exists and is not empty; name"):
            train(find, output_dir=folder)
    assert (kept / "history.parquet").read_bytes() == before


def test_a_folder_of_checkpoints_equals_the_uninterrupted_run(
    tracking_store: Path, tmp_path: Path
) -> None:
    whole, kept = tmp_path / "whole", tmp_path / "kept"
    train(config_of(), output_dir=whole)
    stopped = interrupt(config_of(), checkpoint_dir=kept)
    assert (kept / "checkpoints" / "epoch-0001").is_dir()
    train(lambda _: find_in_folder(kept, config_of(), {}), checkpoint_dir=kept)
    for name in ("best/model.safetensors", "checkpoints/epoch-0004/model.safetensors"):
        assert (whole / name).read_bytes() == (kept / name).read_bytes(), name
    folders = {path.name for path in (kept / "checkpoints").iterdir()}
    assert folders == {f"epoch-{epoch:04d}" for epoch in range(1, 5)}
    assert find_run(newest_run()).tags[names.TAG_RESUMED_FROM] == stopped
    for key, reached in (("num_epochs", 4), ("max_steps", 40)):
        changes = {f"training.{key}": reached - 1}
        with pytest.raises(
            ConfigError, match=rf"training\.{key} is .*, but epoch-0004 has \d+; give"
        ):
            find_in_folder(kept, None, changes)


def test_a_folder_is_continued_without_news_of_options_that_stay_switched_off(
    tracking_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run records what it trained with; the configuration names what it asked for."""
    config = config_of(optimizations__use_tf32=True, training__device="cpu")
    interrupt(config, checkpoint_dir=tmp_path / "kept")
    caplog.clear()
    with caplog.at_level("INFO", logger="clew"):
        find_in_folder(tmp_path / "kept", config, {})
    assert not any("resumed with" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("lost", "settings", "given"),
    [
        ("best", {}, ""),
        ("epoch-0004", {}, ""),
        ("epoch-0004", {"training__checkpoint_frequency": 1}, "kept"),
        ("history.parquet", {"tracking__log_checkpoints": False}, ""),
    ],
)
def test_a_checkpoint_that_the_full_disk_of_the_spool_does_not_take_is_kept(
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: str,
    settings: dict[str, object],
    given: str,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    stage = Spool.stage
    (tmp_path / "config.yaml").write_text(to_yaml(small_config(**settings)))

    def stage_some(self: Spool, path: Path, *, link: bool = False) -> str:
        if path.name == lost:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return stage(self, path, link=link)

    options = ["--checkpoint-dir", str(tmp_path / given)] if given else []
    with pytest.MonkeyPatch.context() as full:
        full.setattr(Spool, "stage", stage_some)
        assert run_command(["train", "--config", str(tmp_path / "config.yaml"), *options]) == 3
    stopped = find_run(newest_run())
    line = capsys.readouterr().err.splitlines()[-1]
    assert "/spool: No space left on device; free some space there. " in line
    assert line.endswith(stopped.tags[names.TAG_STOPPED_BECAUSE].split("; ")[-1])
    command = shlex.split(line.partition(", use clew ")[2])
    kept = Path(command[-1])
    assert list(work.iterdir()) == ([] if given else [kept])
    assert run_command(command) == 0
    resumed = find_run(newest_run())
    assert (stopped.status, resumed.status) == ("FAILED", "FINISHED")
    assert resumed.tags[names.TAG_RESUMED_FROM] == stopped.run_id
    assert (kept / "checkpoints" / "epoch-0004").is_dir()


def test_a_folder_in_which_another_process_trains_is_refused(
    tracking_store: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    interrupt(config_of(), checkpoint_dir=kept)
    with (
        FileLock(lock_of(kept)),
        pytest.raises(ConfigError, match="kept: another process trains there"),
    ):
        train(lambda _: find_in_folder(kept, config_of(), {}), checkpoint_dir=kept)
    assert find_run(newest_run()).status == "FAILED"
    train(lambda _: find_in_folder(kept, config_of(), {}), checkpoint_dir=kept)


def test_an_output_folder_that_another_process_will_fill_is_refused_at_the_start(
    tracking_store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    with (
        FileLock(lock_of(folder)),
        pytest.raises(ConfigError, match=r"--output-dir .*out: another process trains there"),
    ):
        train(config_of(), output_dir=folder)
    assert "train/loss" not in find_run(newest_run()).metrics
    train(config_of(training__num_epochs=1), output_dir=folder)
    assert (folder / "config.yaml").is_file()


HOLDS = """
import sys
from pathlib import Path
from clew.training.distributed import World
from clew.workflows.training_run import only_training_in
with only_training_in("--output-dir", Path(sys.argv[1]), World()):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_command_with_another_temporary_folder_is_refused(
    tracking_store: Path, tmp_path: Path
) -> None:
    folder, other = tmp_path / "new" / "out", tmp_path / "other"
    other.mkdir()
    environment = os.environ | {"TMPDIR": str(other), "PYTHONPATH": str(ROOT / "platform")}
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=r"--output-dir .*out: another process trains there"):
            train(config_of(), output_dir=folder)
        holder.kill()
    check_new_folder("--output-dir", folder.parent)  # though the killed process left its lock
    train(config_of(training__num_epochs=1), output_dir=folder)
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS])
def test_a_folder_beside_which_nothing_can_be_locked_is_locked_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    flock, folder, temporary = fcntl.flock, tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def refuse(descriptor: int, operation: int) -> None:
        lock = lock_of(folder)
        if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.stat()):
            raise OSError(number, os.strerror(number))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_training_in("--output-dir", folder, World()):
        assert len(list(temporary.glob("clew-training-*.lock"))) == 1
        second = only_training_in("--output-dir", folder, World())
        with pytest.raises(ConfigError, match="another process trains there"), second:
            pass
    assert not list(temporary.glob("clew-training-*.lock"))
    assert not lock_of(folder).exists()


def test_one_folder_in_the_other(tracking_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    train(
        config_of(training__num_epochs=1), output_dir=folder, checkpoint_dir=folder / "checkpoint"
    )
    assert (folder / "config.yaml").is_file()
    assert (folder / "checkpoint" / "best").is_dir()


def test_one_folder_is_not_both(tracking_store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(ConfigError, match=r"are both .*; name two folders"):
        train(lambda _: find_newest(config_of(), {}, new), output_dir=new, checkpoint_dir=new)
    with pytest.raises(ConfigError, match=r"are both .*; name two folders"):
        train(config_of(), output_dir=tmp_path / "new", checkpoint_dir=tmp_path / "a/../new")


def test_a_run_that_cannot_write_event_files_has_ended(
    tracking_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    wrong = config_of(tracking__tensorboard=True, tracking__tensorboard_dir=str(tmp_path / "file"))
    with pytest.raises((OSError, ClewError)):
        train(wrong)
    assert find_run(newest_run()).status == "FAILED"


def test_a_folder_does_not_say_where_events_are_written(
    tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder can be somebody else's; what the user gives, or the run has used, is followed."""
    kept, elsewhere = tmp_path / "kept", str(tmp_path / "elsewhere")
    events = {"tracking__tensorboard": True, "tracking__tensorboard_dir": elsewhere}
    run_id = interrupt(config_of(**events), checkpoint_dir=kept)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def of_folder(changes: dict[str, Any]) -> ResumePoint:
        return find_in_folder(kept, None, changes)

    def of_run(changes: dict[str, Any]) -> ResumePoint:
        return find_resume_point(run_id, changes, tmp_path / "downloads")

    for find in (of_folder, of_run):
        assert find({}).run_id == run_id
        Path(elsewhere).rename(tmp_path / "away")
        with pytest.raises(ConfigError) as refused:
            find({})
        Path(tmp_path / "away").rename(elsewhere)
        assert "tracking.tensorboard_dir" in str(refused.value)
        assert elsewhere in str(refused.value)
        for allowed in ({"tracking.tensorboard_dir": elsewhere}, {"tracking.tensorboard": "false"}):
            assert find(allowed).run_id == run_id
    assert find_in_folder(kept, config_of(**events), {}).run_id == run_id
    assert find_newest(config_of(**events), {}, tmp_path / "newest").run_id == run_id


def test_a_folder_is_not_resumed_with_another_model(tracking_store: Path, tmp_path: Path) -> None:
    interrupt(config_of(), checkpoint_dir=tmp_path / "kept")
    with pytest.raises(ConfigError, match=r"model\.embedding_dim: run"):
        find_in_folder(tmp_path / "kept", config_of(model__embedding_dim=32), {})
    with pytest.raises(ConfigError, match=r"training\.shuffle_block: run .* has None, 64 given"):
        find_in_folder(tmp_path / "kept", config_of(training__shuffle_block=64), {})
    with pytest.raises(CheckpointError, match="empty has no checkpoint to resume from"):
        find_in_folder(tmp_path / "empty", None, {})
    with pytest.raises(ConfigError):
        train(config_of(), checkpoint_dir=tmp_path / "kept")


def test_a_resumed_run_has_each_value_of_validation_once(tracking_store: Path) -> None:
    stopped = interrupt(config_of(evaluation__every_epochs=1), after=3)
    done = train(lambda folder: find_resume_point(stopped, {}, folder)).run_id or ""
    client = MlflowClient()
    for key in ("valid/mrr", "valid/mean_rank"):
        steps = [point.step for point in client.get_metric_history(done, key)]
        assert steps == [13, 26, 39, 52]


class Stopping(Watch):
    """Stops the training as a person does, before its first step."""

    def before_step(self) -> None:
        """Send the signal."""
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_stopped_training_says_how_it_goes_on_if_it_can(
    tracking_store: Path, tmp_path: Path, stored: bool, kept: bool
) -> None:
    config, folder = small_config(tracking__log_checkpoints=stored), tmp_path / "check points"
    with pytest.raises(Interrupted) as stopped:
        train(config, checkpoint_dir=folder if kept else None, watch=Stopping())
    (run,) = search_runs(RunQuery(), limit=2).runs
    said = str(stopped.value)
    if stored:
        assert said.endswith(f"continue with --resume {run.run_id}")
        assert find_resume_point(run.run_id, {}, tmp_path / "found").manifest.step == 1
    elif kept:
        assert said.endswith(f"continue with --resume --checkpoint-dir '{folder}'")
        assert find_in_folder(folder, None, {}).manifest.step == 1
    else:
        assert re.search("no checkpoint is kept: .* tracking.log_checkpoints=true", said)


def test_a_second_training_goes_beside_the_finished_one_in_its_output_folder(
    tracking_store: Path, tmp_path: Path
) -> None:
    config, folder = small_config(training__num_epochs=1), tmp_path / "conve"
    first = train(config, output_dir=folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (tmp_path / "conve-2").write_text("mine")
    second = train(config, output_dir=folder)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert after == before
    assert read_manifest(folder / "best").run_id == first.run_id
    assert read_manifest(tmp_path / "conve-3" / "best").run_id == second.run_id
    warned = find_run(str(second.run_id)).tags[names.TAG_WARNINGS]
    assert warned.endswith(f"this one goes into {tmp_path / 'conve-3'}")
