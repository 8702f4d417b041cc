"""Searches on a real graph: tried, pruned, saved and resumed trials, and an unused test split."""

import csv
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clew import names
from clew.__main__ import run as run_command
from clew.config.load import from_mapping, load, to_yaml, with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError, Interrupted, UsageError
from clew.runs import store
from clew.training.progress import Watch
from clew.workflows import trials
from clew.workflows.train import train
from clew.workflows.trials import LOCK_FILE, STUDY_FILE, TrialWatch
from clew.workflows.tune import MOST_FAILURES, TuneRequest, TuneResult, tune
from tests.workflows.trained import ROOT, small_config

pytestmark = pytest.mark.slow

RATE = "optimizer.learning_rate"
WIDE = {
    RATE: {"low": 1e-6, "high": 0.03, "log": True},
    "loss.label_smoothing": {"choices": [0, 0.1]},
}


@pytest.fixture
def folder(tracking_store: Path, tmp_path: Path) -> Path:
    return tmp_path / "search"


def config_of(**overrides: object) -> RunConfig:
    return small_config(evaluation__every_epochs=1, training__num_epochs=3, **overrides)


def request_of(folder: Path, parameters: dict[str, Any] = WIDE, **settings: Any) -> TuneRequest:
    space = folder.parent / f"{folder.name}-space.yaml"
    space.write_text(yaml.safe_dump({"parameters": parameters, "unpruned_trials": 2}))
    return TuneRequest(config=config_of(), space=str(space), output_dir=folder, **settings)


def changed(request: TuneRequest, **settings: Any) -> TuneRequest:
    return request.model_copy(update=settings)


def runs_of(result: TuneResult) -> dict[int, Run]:
    """Return the trials' runs by number, and check that they are children of the search's run."""
    client = MlflowClient(store.tracking_uri())
    own = client.get_run(result.run_id)
    found = client.search_runs(
        [own.info.experiment_id], f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{result.run_id}'"
    )
    return {int(run.data.tags[names.TAG_TRIAL]): run for run in found}


def validations(run_id: str) -> list[float]:
    history = MlflowClient(store.tracking_uri()).get_metric_history(run_id, "valid/mrr")
    return [entry.value for entry in history]


def outcome(result: TuneResult) -> list[tuple[object, ...]]:
    """Return the decision about each trial, in order."""
    return [
        (record.state, dict(record.settings), record.value, record.epoch)
        for record in result.trials
        if record.state != "stopped"
    ]


def test_a_search_leaves_runs_a_table_a_chart_and_a_configuration_that_repeats_the_best(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "FEWEST_TRIALS", 2)
    lines: list[str] = []
    result = tune(request_of(folder, trials=6), say=lines.append)

    runs, client = runs_of(result), MlflowClient(store.tracking_uri())
    parent = client.get_run(result.run_id)
    assert (parent.info.status, parent.data.tags[names.TAG_KIND]) == ("FINISHED", names.KIND_TUNE)
    assert parent.data.tags[names.TAG_BEST_RUN] == result.best.run_id
    own = {k: v for k, v in parent.data.metrics.items() if not k.startswith("system/")}
    assert own.pop("valid/mrr") == result.best.value
    assert set(own) == {f"importance/{key}" for key in result.best.settings}
    assert sum(own.values()) == pytest.approx(1)
    assert parent.data.params["cfg.tune.seed"] == "0"
    uploaded = {info.path for info in client.list_artifacts(result.run_id, names.ARTIFACT_TUNE)}
    assert uploaded == {"tune/best.yaml", "tune/trials.csv"}

    assert sorted(runs) == list(range(6)) == [record.number for record in result.trials]
    assert {"complete", "pruned"} == {record.state for record in result.trials}
    for record in result.trials:
        run = runs[record.number]
        values = validations(run.info.run_id)
        assert run.info.run_id == record.run_id
        assert run.data.tags[names.TAG_KIND] == names.KIND_TRAIN
        assert not any(key.startswith("test/") for key in run.data.metrics), "of no trial"
        assert float(run.data.params[f"cfg.{RATE}"]) == record.settings[RATE]
        if record.state == "complete":
            assert (run.info.status, len(values)) == ("FINISHED", 3)
            assert (record.value, record.epoch) == (max(values), values.index(max(values)) + 1)
    complete = [record for record in result.trials if record.state == "complete"]
    assert result.best.value == max(record.value for record in complete if record.value)

    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run_id"] for row in rows] == [record.run_id for record in result.trials]
    assert [float(row[RATE]) for row in rows] == [r.settings[RATE] for r in result.trials]

    assert len(lines) == 6
    assert sum("best so far" in line for line in lines) >= 1
    assert f"--config {folder / 'best.yaml'}" in result.table()
    text = result.best_file.read_text()
    assert f"valid/mrr: {result.best.value!r} after epoch {result.best.epoch}" in text
    assert result.best.run_id in text.splitlines()[0]
    best = load(result.best_file)
    assert best == with_settings(config_of(), result.best.settings)
    again = train(load(result.best_file, {"tracking.log_mfu": True}))
    assert max(validations(again.run_id or "")) == result.best.value
    assert "test/mrr" in again.metrics


def test_a_trial_is_pruned_where_it_is_worse_than_the_median_of_the_finished_ones(
    folder: Path,
) -> None:
    result = tune(request_of(folder, trials=7))
    runs = runs_of(result)
    curves = {r.number: validations(r.run_id) for r in result.trials}
    finished: list[int] = []
    num_pruned = 0
    for record in result.trials:
        curve = curves[record.number]
        if record.state == "complete":
            finished.append(record.number)
            continue
        num_pruned += 1
        assert len(finished) >= 2, "unpruned_trials"
        median = statistics.median(curves[number][len(curve) - 1] for number in finished)
        assert max(curve) < median
        assert (record.value, record.epoch, len(curve)) == (curve[-1], len(curve), len(curve))
        assert len(curve) < 3, "the last epoch is paid for"
        run = runs[record.number]
        assert run.info.status == "KILLED"
        assert run.data.tags[names.TAG_STOPPED_BECAUSE] == "pruned"
    assert num_pruned


KILLED = """
import os, signal, sys
from pathlib import Path
from clew.workflows import trials as tune_trial
from tests.workflows.test_tune import request_of
from clew.workflows.tune import tune

class Killed(tune_trial.TrialWatch):
    def validated(self, value, epoch, *, is_last):
        super().validated(value, epoch, is_last=is_last)
        if self.trial.number == 2 and epoch == 1:
            self._tracker.flush()
            os.kill(os.getpid(), signal.SIGKILL)

tune_trial.TrialWatch = Killed
tune(request_of(Path(sys.argv[1]), trials=5))
"""


def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    paths = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    client = MlflowClient(store.tracking_uri())
    (parent,) = client.search_runs(
        [e.experiment_id for e in client.search_experiments()], "tags.`clew.kind` = 'tune'"
    )
    assert parent.info.status == "RUNNING"

    result = tune(request_of(folder, trials=5))
    assert result.run_id == parent.info.run_id
    assert client.get_run(result.run_id).info.status == "FINISHED"
    states = [record.state for record in result.trials]
    assert (states[2], len(states)) == ("stopped", 6), "it counts as not tried"
    runs = runs_of(result)
    assert runs[2].info.status == "KILLED"
    assert result.trials[3].settings == result.trials[2].settings

    whole = tune(changed(request_of(folder, trials=5), output_dir=folder.parent / "whole"))
    assert outcome(result) == outcome(whole)
    assert result.best.value == whole.best.value


class Clock:
    """A clock that advances by one second at each call."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_the_time_ends_the_running_trial_and_the_same_command_goes_on(folder: Path) -> None:
    clock, shown = Clock(), []
    tune(
        request_of(folder, trials=1, minutes=1e6),
        clock=clock,
        progress=lambda seconds, found: shown.append((seconds, found)),
    )
    one_trial = clock.seconds
    assert [seconds for seconds, _ in shown] == sorted(seconds for seconds, _ in shown)
    assert re.fullmatch(r"valid/mrr 0\.\d+", shown[-1][1])

    lines: list[str] = []
    request = request_of(folder, minutes=(one_trial / 2) / 60)
    result = tune(request, clock=Clock(), say=lines.append)
    assert [record.state for record in result.trials] == ["complete", "stopped"]
    assert "stopped, the time is up" in lines[0]
    run = runs_of(result)[1]
    assert run.info.status == "KILLED"
    assert run.data.tags[names.TAG_STOPPED_BECAUSE] == "out of time"
    assert MlflowClient(store.tracking_uri()).get_run(result.run_id).info.status == "FINISHED"

    later = tune(changed(request, minutes=1e6, trials=2))
    assert later.run_id == result.run_id
    assert later.trials[2].settings == later.trials[1].settings
    assert later.trials[2].state == "complete"


def test_a_budget_in_which_nothing_finishes_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no trial was completed \(1 stopped\)"):
        tune(request_of(folder, minutes=0.1), clock=Clock())
    assert not (folder / "best.yaml").exists()


def test_a_person_who_stops_the_search_keeps_what_was_decided(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_step = TrialWatch.before_step
    stops: list[int] = []

    def stop(self: TrialWatch) -> None:
        if self.trial.number == 1 and not stops:
            stops.append(self.trial.number)
            os.kill(os.getpid(), signal.SIGINT)
        before_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrialWatch, "before_step", stop)
        with pytest.raises(
            Interrupted, match=r"stopped \(1 complete, 1 stopped\).*the same command continues it"
        ):
            tune(request_of(folder, trials=3))
    assert (folder / "best.yaml").is_file()
    result = tune(request_of(folder, trials=1))
    assert [record.state for record in result.trials] == ["complete", "stopped"]
    assert runs_of(result)[1].info.status == "KILLED"


def test_settings_that_do_not_train_are_a_result(folder: Path) -> None:
    lines: list[str] = []
    choices = {RATE: {"choices": [0.01, 1e30]}}
    result = tune(request_of(folder, choices, trials=4), say=lines.append)
    for record in result.trials:
        assert (record.state == "failed") == (record.settings[RATE] == 1e30)
        assert bool(record.problem) == (record.state == "failed")
    assert {"failed", "complete"} <= {record.state for record in result.trials}
    assert result.best.settings[RATE] == 0.01
    failed = next(record for record in result.trials if record.state == "failed")
    assert runs_of(result)[failed.number].info.status == "FAILED"
    assert f"[trial {failed.number}] failed, {failed.problem}" in lines[failed.number]


def test_a_search_in_which_everything_fails_ends(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"^{MOST_FAILURES} trials failed one after another.*the loss is"
    ):
        tune(request_of(folder, {RATE: {"choices": [1e30, 1e31]}}))


def test_more_time_is_no_advice_where_all_trials_failed(folder: Path) -> None:
    with pytest.raises(UsageError) as raised:
        tune(request_of(folder, {RATE: {"choices": [1e30, 1e31]}}, trials=2))
    assert "--minutes" not in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"evaluation__enabled": False}, "evaluation.enabled is false, but a search chooses by"),
        ({"data__name": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_a_run_is_opened(
    folder: Path, overrides: dict[str, object], message: str
) -> None:
    request = changed(request_of(folder), config=config_of(**overrides))
    with pytest.raises(UsageError, match=message):
        tune(request)
    client = MlflowClient(store.tracking_uri())
    assert not client.search_runs([e.experiment_id for e in client.search_experiments()])


def test_held_out_groups_do_not_choose(folder: Path) -> None:
    with pytest.raises(ConfigError, match="a search needs a validation group"):
        tune(changed(request_of(folder), config=load("era5"), space=""))


def test_a_folder_belongs_to_one_search(folder: Path) -> None:
    request = request_of(folder, trials=1)
    tune(request)
    for other in (
        changed(request, seed=1),
        changed(request, config=config_of(training__seed=1)),
        request_of(folder, {RATE: {"low": 0.001, "high": 0.01}}),
    ):
        with pytest.raises(ConfigError, match="holds a search with another configuration"):
            tune(other)
    with (
        FileLock(folder / LOCK_FILE),
        pytest.raises(ConfigError, match="another clew tune is using"),
    ):
        tune(request)
    of_another_optuna = '{"op_code": 77, "worker_id": "1"}\n'
    for content in ("no journal\n" * 3, of_another_optuna):
        (folder / STUDY_FILE).write_text(content)
        with pytest.raises(ConfigError):
            tune(request)


def test_a_search_goes_on_after_a_line_that_a_full_disk_cut_off(folder: Path) -> None:
    request = request_of(folder, trials=1)
    before = tune(request)
    with (folder / STUDY_FILE).open("a") as file:
        file.write('{"op_code":8,"wor')
    assert outcome(tune(changed(request, trials=2)))[:1] == outcome(before)


def test_the_command_finds_its_folder_again(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = request_of(folder).space
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEW_LOG_LEVEL", "WARNING")  # the command would set it for this process
    (tmp_path / "small.yaml").write_text(to_yaml(config_of()))
    command = ["tune", "--config", "small.yaml", "--space", space, "training.num_epochs=1"]
    assert run_command([*command, "--trials", "1"]) == 0
    assert re.match(r"\[trial 0\] valid/mrr 0\.\d+ after epoch 1, \d+ s: ", capsys.readouterr().out)
    assert run_command([*command, "--trials", "2"]) == 0
    printed = capsys.readouterr().out
    assert "[trial 1]" in printed
    assert "[trial 0]" not in printed
    (best,) = tmp_path.glob("runs/tune/umls-*/best.yaml")
    assert str(best.relative_to(tmp_path)) in printed
    assert run_command([*command, "--trials", "0"]) == 2


def test_a_language_model_is_tuned_in_the_same_way(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(f"{i % 7} bottles on a wall" for i in range(60)))
    data = {"dataset": str(tmp_path / "corpus.txt"), "packed": str(tmp_path / "packed")}
    model = {"d_model": 16, "n_layers": 1, "num_eigenstates": 8, "max_seq_len": 28}
    content = {
        "data": {"kind": "tokens"} | data,
        "model": {"kind": "eigenstate_lm"} | model,
        "training": {"num_epochs": 2, "batch_size": 4},
        "tracking": {"log_mfu": False},
    }
    config = from_mapping(content)
    request = TuneRequest(config=config, trials=3, output_dir=folder)
    result = tune(request)
    complete = [record.value for record in result.trials if record.state == "complete"]
    assert result.metric == "valid/bits_per_byte"
    assert result.best.value == min(value for value in complete if value is not None)


class Recorder(Watch):
    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []
        self.values: list[float] = []
        self.num_steps = 0

    def before_step(self) -> None:
        self.num_steps += 1

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        self.seen.append((epoch, is_last))
        self.values.append(value)


def test_a_watch_sees_each_validation_and_which_is_the_last(tracking_store: Path) -> None:
    def watched(**overrides: object) -> Recorder:
        watch = Recorder()
        usual = {"evaluation__every_epochs": 1, "training__num_epochs": 3}
        run_id = train(small_config(**usual | overrides), watch=watch).run_id or ""
        assert watch.values == validations(run_id)
        return watch

    whole = watched()
    assert whole.seen == [(1, False), (2, False), (3, True)]
    steps = whole.num_steps // 3
    assert whole.num_steps == 3 * steps
    assert watched(evaluation__every_epochs=2).seen == [(2, False), (3, True)]
    assert watched(training__max_steps=steps).seen == [(1, True)]
    cut = watched(training__max_steps=steps + 1)
    assert cut.seen == [(1, False), (2, True)], "an epoch that steps cut short counts"
    assert cut.num_steps == steps + 1
    assert whole.values[0] == watched(training__early_stopping_patience=1).values[0]
