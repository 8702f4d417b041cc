"""`clew runs`, and `newest` in place of an id, on a store of trained runs."""

import json

import pytest
from mlflow import MlflowClient

import clew
from clew import names
from clew.__main__ import run as run_command
from clew.cli.project import list_runs
from clew.errors import TrackingError
from clew.runs.reading.metrics import value_at_best
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import RunQuery, run_meant, search_runs
from tests.workflows.trained import TrainedStore


def all_runs(trained: TrainedStore) -> list[str]:
    return [trained.strong, trained.weak, trained.unvalidated, trained.other]


def last_to_finish(trained: TrainedStore) -> str:
    """The order is checked by the times, because other tests can have trained in this store."""
    query = RunQuery(kind=names.KIND_TRAIN, status="FINISHED")
    runs = search_runs(query, limit=1000).runs
    return max(runs, key=lambda run: run.ended_ms or 0).run_id


def test_runs_are_listed_the_latest_first(trained: TrainedStore) -> None:
    found = list_runs(limit=1000)
    listed = [run.run_id for run in found.runs if run.run_id in all_runs(trained)]
    assert listed == list(reversed(all_runs(trained)))
    assert [run.started for run in found.runs] == sorted(
        (run.started for run in found.runs), reverse=True
    )
    strong = next(run for run in found.runs if run.run_id == trained.strong)
    quality = value_at_best(find_run(trained.strong), "valid/mrr")
    assert (strong.kind, strong.state, strong.data) == ("train", "finished", "umls")
    assert strong.quality == f"valid/mrr {quality:.4f}"


def test_the_listed_quality_is_that_of_the_best_checkpoint(trained: TrainedStore) -> None:
    client = MlflowClient(trained.uri)
    run = client.create_run(client.create_experiment("peaked"), tags={names.TAG_BEST_STEP: "5"})
    for step, value in {5: 0.9, 20: 0.2}.items():
        client.log_metric(run.info.run_id, "valid/mrr", value, step=step)
    client.set_terminated(run.info.run_id)
    (listed,) = list_runs(experiment="peaked").runs
    assert listed.quality == "valid/mrr 0.9000"


def test_a_list_is_cut_and_says_so(trained: TrainedStore) -> None:
    found = list_runs(limit=1)
    assert len(found.runs) == 1
    assert found.more
    header, line, note = found.table().splitlines()
    assert header.split()[:2] == ["run", "id"]
    assert line.split()[0] == found.runs[0].run_id
    assert "--limit" in note


def test_a_list_is_of_one_experiment_and_one_kind(trained: TrainedStore) -> None:
    (other,) = list_runs(kind="train", experiment="other").runs
    assert other.run_id == trained.other
    assert list_runs(kind="tune").table() == "no such run"
    with pytest.raises(TrackingError, match="'other'"):
        list_runs(experiment="nowhere")


def test_the_command_prints_json(trained: TrainedStore, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--experiment", "other", "--kind", "train"]
    assert run_command(["runs", *only, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["run_id"] == trained.other
    assert run_command(["runs", "--kind", "training"]) == 2
    assert "'tune' or 'value'" in capsys.readouterr().err


def test_newest_is_the_run_that_finished_last(trained: TrainedStore) -> None:
    assert run_meant("newest", names.KIND_TRAIN) == last_to_finish(trained)
    assert run_meant(trained.weak, names.KIND_TRAIN) == trained.weak


def test_newest_without_such_a_run_says_what_is_missing(trained: TrainedStore) -> None:
    with pytest.raises(TrackingError):
        run_meant("newest", names.KIND_TUNE)


def test_commands_and_the_api_take_newest(
    trained: TrainedStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is chosen once, so that all parts of a command use the same model."""
    asked = []
    monkeypatch.setattr(
        "clew.runs.reading.search.run_meant",
        lambda reference, kind: asked.append((reference, kind)) or trained.strong,
    )
    query = ["--head", "virus", "--relation", "causes"]
    assert run_command(["predict", "--model", "newest", *query]) == 0
    assert f"model: run {trained.strong}" in capsys.readouterr().out
    assert asked == [("newest", "train")]


def test_the_api_takes_newest(trained: TrainedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.api.models.run_meant", lambda reference, kind: trained.strong)
    assert clew.load("newest").title == f"run {trained.strong}"


def test_an_explanation_is_the_newest_trace_run(
    tracking_store: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["report", "--explanation", "newest", "--output", "why.html"]) == 2
    assert "no trace run" in capsys.readouterr().err
