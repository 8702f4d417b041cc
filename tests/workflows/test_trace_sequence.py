"""Explaining a prediction from frames, end to end: train, trace, record, read."""

from pathlib import Path

import pytest

from clew.errors import ConfigError, DataError
from clew.runs.reading.runs import download_artifact
from clew.runs.window_report import SequenceInfluenceReport
from clew.workflows.explaining.trace_windows import WindowTrace, trace_sequences, trace_texts
from clew.workflows.explaining.tracin import tracin
from clew.workflows.predict_windows import Text
from clew.workflows.train import train
from tests.image_sequences.sequence_files import sequence_columns
from tests.workflows.trained import sequence_config

FURTHER = [pytest.param(name, marks=pytest.mark.slow) for name in ("ssm", "gnn", "cnn")]


@pytest.fixture(scope="module", params=["transformer", *FURTHER])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sequences")
    columns = sequence_columns(groups=3, frames_in_group=10)
    config = sequence_config(folder, columns, model__architecture=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        result = train(config)
        return f"{folder} {result.run_id}"


@pytest.fixture
def model(run: str, monkeypatch: pytest.MonkeyPatch) -> str:
    folder, _, name = run.partition(" ")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    return name


def check(result: WindowTrace[SequenceInfluenceReport]) -> None:
    report = result.report
    assert report.num_windows == 8
    assert len(report.steps) == len(report.weights) == 2
    entries = (*report.proponents, *report.opponents)
    assert {entry.group for entry in entries} == {"flight 0"}
    for entry in entries:
        assert sum(entry.by_checkpoint) == pytest.approx(entry.influence, rel=1e-4)
        assert sum(entry.by_part.values()) == pytest.approx(entry.influence, rel=1e-3)
        assert entry.last_frame == entry.window + 2


def test_a_window_is_traced_and_recorded(model: str, tmp_path: Path) -> None:
    copy = tmp_path / "report.json"
    (result,) = trace_sequences(model, [25], {"influence.top_k": "3"}, output=copy)
    check(result)
    assert result.report.group == "flight 2"
    assert "window that ends at frame 25" in result.table()
    assert "average" not in result.table()
    assert SequenceInfluenceReport.read(copy) == result.report
    assert result.run_id is not None
    folder = download_artifact(result.run_id, "influence", tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        "sequence_influence.json",
        "sequence_influence.png",
    }


def test_unless_told_otherwise_it_is_the_worst_prediction(model: str) -> None:
    check(trace_sequences(model, [None], {})[0])
    with pytest.raises(ConfigError, match=r"--frame\b.*\b3\b.*\b22\b.*\b29\b"):
        trace_sequences(model, [3], {})


def test_a_command_for_other_models_is_refused_before_data_are_read(model: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("trace_source", "trace_windows"):
            patch.delattr(f"clew.workflows.explaining.{module}.own_task")
        with pytest.raises(ConfigError, match=r"_regression\b.*\btracin\b"):
            tracin(model, "a,b,c", {})
        with pytest.raises(ConfigError, match=r"_regression\b.*\btrace-text\b"):
            trace_texts(model, [Text("a")], {})


def test_a_report_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as an explanation"):
        SequenceInfluenceReport.read(tmp_path / "none.json")
    (tmp_path / "old.json").write_text('{"schema_version": 7}')
    with pytest.raises(DataError, match=r"schema_version\b.*\b7\b"):
        SequenceInfluenceReport.read(tmp_path / "old.json")


def test_the_whole_training_is_differentiated(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {"influence.score": "unrolled", "influence.top_k": "3"}
    (result,) = trace_sequences(model, [25], settings)
    assert result.report.self_influence is None
    assert result.report.settings["steps"] == result.report.steps[-1]
    entries = (*result.report.proponents, *result.report.opponents)
    assert entries
    for entry in entries:
        assert sum(entry.by_checkpoint) == pytest.approx(entry.influence, rel=1e-4)
        assert entry.by_part == {}


def test_many_windows_are_traced_in_one_pass_and_found_by_an_index(model: str) -> None:
    exact = trace_sequences(model, [25, 27], {"influence.top_k": 2})
    assert [result.report.last_frame for result in exact] == [25, 27]
    settings = {"influence.search": "index", "influence.candidates": 4, "influence.top_k": 2}
    found = trace_sequences(model, [25, 27], settings)
    for a, b in zip(found, exact, strict=True):
        check(a)
        assert [w.window for w in a.report.proponents] == [w.window for w in b.report.proponents]
        assert a.report.settings["search_by_index"]["indices_made"] == 2
    again = trace_sequences(model, [25], settings)[0].report
    assert again.settings["search_by_index"]["indices_made"] == 0
