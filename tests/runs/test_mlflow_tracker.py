"""Runs in a real MLflow database: opened, adopted, resumed, refused, ended."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Experiment

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs import hardware, store
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run, state_of
from clew.runs.spool import list_spools
from clew.runs.tracker import MAX_PARAM_CHARACTERS, MlflowTracker
from tests.runs.kept import read_mlflow, read_run

ROOT = Path(__file__).resolve().parents[3]
Open = Callable[..., MlflowTracker]


def experiment_of(tracker: MlflowTracker) -> Experiment:
    client = MlflowClient()
    return client.get_experiment(client.get_run(tracker.run_id).info.experiment_id)


def no_run_is_left_running() -> None:
    client = MlflowClient()
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    assert [run.info.status for run in client.search_runs(ids, "status = 'RUNNING'")] == []


def test_a_run_says_what_it_is(open_run: Open, tracking_store: Path) -> None:
    parent = open_run(kind=names.KIND_COMPARE, run_name="study")
    tracker = open_run(
        kind=names.KIND_TRACE,
        run_name="umls fp32",
        tags={names.TAG_SOURCE_RUN: "abc"},
        parent_run_id=parent.run_id,
    )
    run = MlflowClient().get_run(tracker.run_id)
    assert run.info.run_name == "umls fp32"
    assert run.info.status == "RUNNING"
    assert run.data.tags["clew.kind"] == "trace"
    assert run.data.tags["clew.source_run"] == "abc"
    assert run.data.tags["mlflow.parentRunId"] == parent.run_id
    assert experiment_of(tracker).name == "clew"
    assert run.info.artifact_uri.startswith((tracking_store / "mlartifacts" / "clew").as_uri())


def test_a_note_that_a_person_wrote_stays(open_run: Open) -> None:
    client, first, second = MlflowClient(), open_run(), open_run()
    client.set_tag(first.run_id, names.TAG_NOTE, "do not use")
    for tracker in (first, second):
        tracker.tags({names.TAG_NOTE: "quality", "other": "value"})
        tracker.finish("FINISHED")
    tags = [client.get_run(str(tracker.run_id)).data.tags for tracker in (first, second)]
    assert [each[names.TAG_NOTE] for each in tags] == ["do not use", "quality"]
    assert [each["other"] for each in tags] == ["value", "value"]


def test_the_experiment_is_the_configured_one_or_the_environments(
    open_run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    first, second = open_run(), open_run(tracking={"experiment": "a/b: c"})
    assert experiment_of(first).name == "from the environment"
    assert experiment_of(second).name == "a/b: c"


def test_the_run_of_mlflow_run_is_adopted_once(
    open_run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient()
    opened = client.create_run("0", tags={"mlflow.project.entryPoint": "train"})
    client.log_param(opened.info.run_id, "use_mixed_precision", "true")
    monkeypatch.setenv("MLFLOW_RUN_ID", opened.info.run_id)
    first = open_run(run_name="umls bf16")
    second = open_run(run_name="another")
    assert first.run_id == opened.info.run_id
    assert second.run_id != opened.info.run_id
    assert "MLFLOW_RUN_ID" not in os.environ
    first.params({"optimizations.use_mixed_precision": True})
    kept = read_mlflow(first)
    assert kept.params == {
        "use_mixed_precision": "true",
        "cfg.optimizations.use_mixed_precision": "true",
    }
    assert kept.tags["clew.kind"] == "train"


@pytest.mark.parametrize(
    ("given", "expected"), [("bold-fox-12", "umls bf16"), ("my own name", "my own name")]
)
def test_an_adopted_run_keeps_the_name_that_a_person_gave(
    open_run: Open, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    opened = MlflowClient().create_run("0", run_name=given)
    monkeypatch.setenv("MLFLOW_RUN_ID", opened.info.run_id)
    tracker = open_run(run_name="umls bf16")
    assert MlflowClient().get_run(tracker.run_id).info.run_name == expected


def test_an_ended_run_can_be_taken_up(open_run: Open) -> None:
    first = open_run()
    first.metrics({"train/loss": 1.0}, 1)
    first.warn("slow")
    first.finish("FAILED")
    second = open_run(run_id=first.run_id)
    assert MlflowClient().get_run(first.run_id).info.status == "RUNNING"
    second.metrics({"train/loss": 0.5}, 2)
    second.warn("slower")
    second.finish("FINISHED")
    kept = read_run(MlflowClient(), first.run_id)
    assert kept.metrics == {"train/loss": [(1.0, 1), (0.5, 2)]}
    assert kept.warnings == ["slow", "slower"]
    assert kept.status == "FINISHED"


def test_a_run_is_written_by_one_process(open_run: Open) -> None:
    tracker = open_run()
    with pytest.raises(TrackingError, match="being written by another process"):
        open_run(run_id=tracker.run_id)
    assert MlflowClient().get_run(tracker.run_id).info.status == "RUNNING"


@pytest.mark.parametrize("how", ["argument", "environment"])
@pytest.mark.parametrize("run_id", ["0" * 32, "not a run id"])
def test_a_run_that_does_not_exist_is_one_line(
    open_run: Open, monkeypatch: pytest.MonkeyPatch, how: str, run_id: str
) -> None:
    if how == "environment":
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    with pytest.raises(TrackingError, match=f"no run {run_id} in sqlite:") as caught:
        open_run(**({"run_id": run_id} if how == "argument" else {}))
    assert "\n" not in str(caught.value)
    no_run_is_left_running()


def test_a_deleted_run_is_one_line(open_run: Open) -> None:
    tracker = open_run()
    tracker.finish("FINISHED")
    MlflowClient().delete_run(tracker.run_id)
    with pytest.raises(TrackingError, match=f"mlflow runs restore --run-id {tracker.run_id}"):
        open_run(run_id=tracker.run_id)


def test_a_deleted_experiment_is_one_line(open_run: Open) -> None:
    tracker = open_run()
    tracker.finish("FINISHED")
    MlflowClient().delete_experiment(experiment_of(tracker).experiment_id)
    with pytest.raises(TrackingError, match=r"experiment 'clew' is deleted; bring it back") as got:
        open_run()
    assert "\n" not in str(got.value)
    no_run_is_left_running()


def test_a_spool_that_cannot_be_written_leaves_no_run(
    open_run: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "file"))
    with pytest.raises(TrackingError, match="set CLEW_SPOOL to a writable folder"):
        open_run()
    no_run_is_left_running()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp://somewhere", "tracking store ftp://somewhere: "),
        ("file:///tmp/mlruns", "tracking store file:///tmp/mlruns: "),
        ("nonsense", "tracking store nonsense: "),
    ],
)
def test_a_store_that_mlflow_does_not_take_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TrackingError) as caught:
        open_tracker(TrackingConfig(), kind="train")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_run_deleted_in_the_middle_does_not_stop_the_program(open_run: Open) -> None:
    client = MlflowClient()
    tracker = open_run()
    tracker.metrics({"train/loss": 1.0}, 1)
    tracker.flush()
    client.delete_run(tracker.run_id)
    tracker.metrics({"train/loss": 0.5}, 2)
    tracker.flush()
    tracker.metrics({"train/loss": 0.25}, 3)
    tracker.finish("FINISHED")
    client.restore_run(tracker.run_id)
    [result] = sync_spool()
    assert (result.run_id, result.num_sent, result.problem) == (tracker.run_id, 4, None), (
        "two values, the log, the end"
    )
    kept = read_run(client, tracker.run_id)
    assert kept.metrics == {"train/loss": [(1.0, 1), (0.5, 2), (0.25, 3)]}
    assert kept.status == "FINISHED"
    assert list_spools(store.spool_root()) == []


def test_refused_messages_are_a_warning_on_the_run(
    open_run: Open, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = open_run()
    tracker.params({"training.seed": 1})
    tracker.params({"training.seed": 2})
    tracker.finish("FINISHED")
    kept = read_run(MlflowClient(), tracker.run_id)
    assert kept.params == {"cfg.training.seed": "1"}
    assert kept.status == "FINISHED"
    assert [w for w in kept.warnings if "refused 1 " in w]
    assert "the store refuses" in caplog.text
    [result] = sync_spool()
    assert result.num_refused == 1
    assert "refused.jsonl" in (result.problem or "")


def test_long_values_say_that_they_were_cut(open_run: Open) -> None:
    tracker = open_run(tags={"clew.note": "n" * 9000})
    tracker.params({"data.names": ["x" * 100] * 100})
    kept = read_mlflow(tracker)
    value = kept.params["cfg.data.names"]
    assert len(value) == MAX_PARAM_CHARACTERS
    assert value.endswith("… (10400 characters in all)")
    assert kept.tags["clew.note"].endswith("… (9000 characters in all)")


def test_heartbeats_are_sent_without_being_asked_for(open_run: Open) -> None:
    tracker = open_run()
    beat = read_mlflow(tracker).tags[names.TAG_HEARTBEAT]
    assert abs(int(beat) - MlflowClient().get_run(tracker.run_id).info.start_time / 1000) < 60


def test_nothing_is_left_in_the_spool(open_run: Open, tracking_store: Path) -> None:
    tracker = open_run()
    tracker.metrics({"train/loss": 1.0}, 1)
    assert [path.name for path in list_spools(tracking_store / "spool")] == [tracker.run_id]
    tracker.finish("FINISHED")
    assert list_spools(tracking_store / "spool") == []


def test_an_ended_run_takes_no_more(open_run: Open) -> None:
    tracker = open_run()
    tracker.finish("FINISHED")
    tracker.finish("FAILED")
    assert MlflowClient().get_run(tracker.run_id).info.status == "FINISHED"
    with pytest.raises(RuntimeError, match="has ended; metrics cannot be recorded"):
        tracker.metrics({"train/loss": 1.0}, 1)


def test_checkpoints_are_not_stored_when_not_wanted(
    open_run: Open, checkpoint_folder: Path
) -> None:
    tracker = open_run(tracking={"log_checkpoints": False})
    tracker.checkpoint(checkpoint_folder, folder="checkpoints/e", step=1, metrics={})
    assert read_mlflow(tracker).artifacts == set()


def test_the_same_value_told_with_a_checkpoint_is_one_point(
    open_run: Open, checkpoint_folder: Path
) -> None:
    tracker = open_run()
    tracker.metrics({"valid/mrr": 0.5}, 5)
    tracker.checkpoint(
        checkpoint_folder, folder="checkpoints/e", step=5, metrics={"valid/mrr": 0.5}
    )
    assert read_mlflow(tracker).metrics == {"valid/mrr": [(0.5, 5)]}


def test_a_resumed_run_does_not_repeat_its_validations(
    open_run: Open, checkpoint_folder: Path
) -> None:
    """A value that is measured again after its checkpoint is equal, and stays one point."""
    first = open_run()
    for step in (5, 10):
        first.metrics({"valid/mrr": step / 100, "train/loss": 1.0}, step)
    first.finish("FAILED")
    again = open_run(run_id=first.run_id)
    again.metrics({"valid/mrr": 0.1, "valid/hits_at_1": 0.3}, 10)
    metrics = {"valid/mrr": 0.1}
    again.checkpoint(checkpoint_folder, folder="checkpoints/e", step=10, metrics=metrics)
    again.metrics({"valid/mrr": 0.2}, 15)
    found = read_mlflow(again).metrics
    assert found["valid/mrr"] == [(0.05, 5), (0.1, 10), (0.2, 15)]
    assert found["valid/hits_at_1"] == [(0.3, 10)]


def test_a_clock_that_is_set_back_does_not_stop_the_sign_of_life(
    open_run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_run()
    tracker.flush()
    real = time.time
    monkeypatch.setattr("clew.runs.tracker.time.time", lambda: real() - 3600)
    tracker._forwarder._next_beat = 0.0  # the next heartbeat is due, and this clock counts
    before = time.time()
    tracker.flush()
    run = find_run(tracker.run_id)
    assert float(run.tags[names.TAG_HEARTBEAT]) == pytest.approx(before, abs=60)
    assert state_of(run, before) == "running"


def test_system_metrics_are_sampled_unless_unwanted(
    open_run: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(hardware, "SAMPLING_SECONDS", 0.02)
    sampled = threading.Event()
    record = MlflowTracker._record

    def metrics_noticed(self: MlflowTracker, values: Mapping[str, float], step: int) -> None:
        record(self, values, step)
        sampled.set()

    monkeypatch.setattr(MlflowTracker, "_record", metrics_noticed)
    tracker = open_run()
    assert sampled.wait(60)
    tracker.finish("FINISHED")
    metrics = read_run(MlflowClient(), tracker.run_id).metrics
    cpu, disk = (
        metrics["system/cpu_utilization_percentage"],
        metrics["system/disk_usage_percentage"],
    )
    assert [step for _, step in cpu] == list(range(len(cpu)))
    assert len(cpu) == len(disk) > 0
    assert open_run(tracking={"log_system_metrics": False})._sampling is None


PROGRAM = """
import sys
from clew.config.services import TrackingConfig
from clew.runs.mlflow_store import open_tracker
tracker = open_tracker(TrackingConfig(), kind="train")
print(tracker.run_id, flush=True)
for step in range(int(sys.argv[1])):
    tracker.metrics({"train/loss": float(step)}, step)
"""


def run_program(ending: str, steps: int = 50) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM + ending, str(steps)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "platform")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_has_lost_nothing(tracking_store: Path) -> None:
    process = run_program("import os; os.kill(os.getpid(), 9)")
    run_id = process.communicate()[0].strip()
    assert process.returncode == -9
    [result] = sync_spool()
    assert (result.run_id, result.problem) == (run_id, None)
    kept = read_run(MlflowClient(), run_id)
    assert kept.metrics == {"train/loss": [(float(step), step) for step in range(50)]}
    assert kept.status == "FAILED"
    assert sync_spool() == []


def test_a_process_that_ends_without_a_word_has_failed(tracking_store: Path) -> None:
    process = run_program("sys.exit(0)")
    run_id, errors = process.communicate()
    assert process.returncode == 0, errors
    kept = read_run(MlflowClient(), run_id.strip())
    assert kept.status == "FAILED"
    assert len(kept.metrics["train/loss"]) == 50


def test_a_living_process_keeps_its_spool(open_run: Open) -> None:
    tracker = open_run()
    [result] = sync_spool()
    assert "being written by another process" in (result.problem or "")
    assert result.is_alive, "which is nothing that `clew sync` could change"
    tracker.finish("FINISHED")
