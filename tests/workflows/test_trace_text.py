"""Explaining a continuation, end to end: train, trace, record, read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from clew import names
from clew.errors import CheckpointError, ConfigError, DataError
from clew.runs.reading.runs import download_artifact
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.window_report import TextInfluenceReport
from clew.workflows.explaining import trace_windows as trace_text
from clew.workflows.explaining.trace_windows import WindowTrace, trace_texts
from clew.workflows.predict import asked, predict
from clew.workflows.predict_windows import Text, read_texts
from tests.workflows.trained import StoredRun


@pytest.fixture
def model(text: StoredRun) -> str:
    return text.run_id


def check(result: WindowTrace[TextInfluenceReport]) -> None:
    report = result.report
    assert report.num_windows == 33
    assert len(report.steps) == len(report.weights) == 2
    influences = [entry.influence for entry in report.proponents]
    assert influences == sorted(influences, reverse=True)
    for entry in (*report.proponents, *report.opponents):
        assert sum(entry.by_checkpoint) == pytest.approx(entry.influence, rel=1e-4)
        assert sum(entry.by_part.values()) == pytest.approx(entry.influence, rel=1e-4)
        assert len(entry.text) == 28
        assert entry.first_token == 28 * entry.window


def explained(
    model: str, prompt: str, continuation: str, settings: Mapping[str, object], **more: Any
) -> WindowTrace[TextInfluenceReport]:
    """Explain one continuation."""
    (result,) = trace_texts(model, [Text(prompt, continuation)], settings, **more)
    return result


def test_a_given_continuation_is_traced_and_recorded(model: str, tmp_path: Path):
    copy = tmp_path / "report.json"
    result = explained(model, "green bottles", " on", {"influence.top_k": "3"}, output=copy)
    check(result)
    assert len(result.report.proponents) == 3
    assert result.run_id is not None
    assert TextInfluenceReport.read(copy) == result.report
    assert result.report.sign in result.table()
    assert "' on'" in result.table()
    assert result.report.settings["ema_decay"] == 0.5
    assert names.NOT_OF_THE_AVERAGE in result.table()


def test_the_average_is_not_explained(model: str, tmp_path: Path):
    best = download_artifact(model, names.ARTIFACT_BEST, tmp_path)
    with pytest.raises(CheckpointError, match=r"training\.ema_decay"):
        explained(str(best), "green bottles", " on", {})


def test_a_copy_that_cannot_be_written_loses_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trace_text, "check_output", lambda *_: None)
    with pytest.raises(IsADirectoryError):
        explained(model, "green bottles", " on", {}, output=tmp_path)
    (run,) = search_runs(RunQuery(kind=names.KIND_TRACE, source_run=model), limit=1).runs
    assert run.status == "FINISHED"
    path = download_artifact(run.run_id, "influence/text_influence.json", tmp_path)
    assert TextInfluenceReport.read(path).continuation == " on"


UNROLLED = {"influence.score": "unrolled"}


def test_the_whole_training_is_differentiated(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [Text("green bottles", " on"), Text("the password is", " zwieback")]
    settings = UNROLLED | {"influence.top_k": 3}
    results = trace_texts(model, texts, settings, output=tmp_path / "reports")
    for number, result in enumerate(results):
        report = result.report
        assert TextInfluenceReport.read(tmp_path / "reports" / f"{number:04d}.json") == report
        assert report.self_influence is None
        assert report.settings["explained_parameters"] == "average"
        assert "ema_decay" not in report.settings
        assert names.NOT_OF_THE_AVERAGE not in result.table()
        influences = [entry.influence for entry in report.proponents]
        assert influences == sorted(influences, reverse=True)
        for entry in (*report.proponents, *report.opponents):
            assert sum(entry.by_checkpoint) == pytest.approx(entry.influence, rel=1e-4)
    one = explained(model, *vars(texts[1]).values(), UNROLLED | {"influence.top_k": 3}).report
    assert [w.window for w in one.proponents] == [w.window for w in results[1].report.proponents]


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"influence.search": "index"}, {}, "influence.search=index is given.*that setting out"),
        ({}, {"num_last_layers": 1}, "--num-last-layers is given"),
        ({"influence.use_mixed_precision": True}, {}, "use_mixed_precision is true"),
    ],
)
def test_what_unrolled_scores_do_not_have(
    model: str, settings: Mapping[str, object], more: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        explained(model, "green bottles", " on", UNROLLED | settings, **more)


def test_top_k_of_zero_keeps_every_window(model: str):
    report = explained(model, "green bottles", " on", {"influence.top_k": "0"}).report
    assert report.settings["top_k"] == 0
    kept = [entry.window for entry in (*report.proponents, *report.opponents)]
    assert sorted(kept) == list(range(report.num_windows))


def test_without_a_continuation_the_models_own_is_traced(model: str):
    result = explained(model, "green", "", {"influence.top_k": "2"}, num_last_layers=1)
    assert result.report.continuation
    assert names.of_the_last_layers(1) in result.table()
    assert {part for entry in result.report.proponents for part in entry.by_part} == {"norm"}


def test_what_cannot_be_traced_is_refused(model: str):
    for continuation in ("x", ""):
        with pytest.raises(ConfigError, match="the text ''"):
            explained(model, "", continuation, {})
    with pytest.raises(CheckpointError, match="no such folder"):
        explained("some/where", "a", "b", {})
    with pytest.raises(ConfigError, match=r"\b0\b"):
        explained(model, "a", "b", {}, num_last_layers=0)


def test_a_language_model_has_no_names_to_ask_for(model: str):
    with pytest.raises(ConfigError, match=r"\blanguage_modeling\b"):
        predict(model, [asked("virus", "isa", "")])


def test_a_damaged_report_is_named(tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"report\.json.*\brun_id\b"):
        TextInfluenceReport.read(path)
    path.write_text('{"schema_version": 2}')
    with pytest.raises(DataError, match=r"schema_version\b.*\b2\b.*\b1\b"):
        TextInfluenceReport.read(path)
    path.write_text("nonsense")
    with pytest.raises(DataError, match="cannot be read as an explanation"):
        TextInfluenceReport.read(path)


def test_forms_of_graph_models_are_refused(model: str):
    with pytest.raises(ConfigError, match=r"influence\.score\b.*\bkronecker\b"):
        explained(model, "green", "", {"influence.score": "kronecker"})


def test_one_run_is_explained(model: str):
    with pytest.raises(ConfigError, match=r"influence\.seeds\b.*\b2\b"):
        explained(model, "green", "", {"influence.seeds": 2})


def test_many_texts_are_traced_in_one_pass_each_as_a_run(model: str, tmp_path: Path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "green bottles", "continuation": " on"}\n\n{"prompt": "green"}\n')
    texts = read_texts(file)
    assert texts == [Text("green bottles", " on"), Text("green")]
    results = trace_texts(model, texts, {"influence.top_k": "3"})
    assert len({result.run_id for result in results}) == 2
    for result in results:
        check(result)
        assert result.report.settings["tests_in_this_pass"] == 2
    alone = explained(model, "green bottles", " on", {"influence.top_k": "3"}).report
    together = results[0].report
    assert [w.window for w in together.proponents] == [w.window for w in alone.proponents]
    assert together.proponents[0].influence == pytest.approx(alone.proponents[0].influence, 1e-4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no prompt"),
        ('{"prompt": 3}', "line 1: prompt"),
        ('{"text": "a"}', "line 1: "),
        ("green", "line 1: "),
    ],
)
def test_a_file_of_prompts_that_cannot_be_read(tmp_path: Path, line: str, message: str):
    file = tmp_path / "prompts.jsonl"
    file.write_text(line)
    with pytest.raises(DataError, match=message):
        read_texts(file)
    file.write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read as UTF-8 text"):
        read_texts(file)


def test_a_search_keeps_its_index_with_the_run(model: str):
    settings = {"influence.search": "index", "influence.candidates": 8, "influence.top_k": 2}
    first, second = (explained(model, "green bottles", " on", settings).report for _ in range(2))
    assert first.settings["search_by_index"]["indices_made"] == 2
    assert second.settings["search_by_index"]["indices_made"] == 0
    assert first.settings["search_by_index"]["index_bytes"] > 0
    assert [w.window for w in first.proponents] == [w.window for w in second.proponents]
    exact = explained(model, "green bottles", " on", {"influence.top_k": 2}).report
    assert [w.window for w in first.proponents] == [w.window for w in exact.proponents]
    settings |= {"influence.search_opponents": False}
    without = explained(model, "green bottles", " on", settings).report
    assert [w.window for w in without.proponents] == [w.window for w in exact.proponents]
    assert not without.opponents
    assert without.settings["search_by_index"]["opponents"] is False
    said = f"chose {without.num_scored} of {without.num_windows} training windows"
    assert said in without.notes()[-1]
    assert exact.num_scored == exact.num_windows
    before = len(search_runs(RunQuery(kind=names.KIND_TRACE), limit=100).runs)
    with pytest.raises(ConfigError, match=r"influence\.top_k\b.*\b0\b.*influence\.candidates"):
        explained(model, "green", "", settings | {"influence.top_k": 0})
    assert len(search_runs(RunQuery(kind=names.KIND_TRACE), limit=100).runs) == before


def test_half_precision_and_cosines_are_as_the_settings_say(model: str):
    settings = {"influence.use_mixed_precision": True, "influence.with_cosine": False}
    report = explained(model, "green bottles", " on", settings).report
    assert report.settings["use_mixed_precision"] is True
    assert 0 < report.settings["half_precision_deviation"]["relative_error"] < 0.1
    assert {entry.cosine for entry in report.proponents} == {None}


def test_what_the_model_writes_ends_with_its_document(model: str, monkeypatch: pytest.MonkeyPatch):
    """The name of the end-of-text token is no text that the model has written."""

    def writes(*tokens: int) -> None:
        monkeypatch.setattr(
            trace_text, "generate", lambda *_: torch.tensor([[*tokens, 256, 98, 99]])
        )

    writes(32, 111, 110)
    assert (
        explained(model, "green bottles", "", {"influence.top_k": 1}).report.continuation == " on"
    )
    writes()
    with pytest.raises(ConfigError, match="green bottles"):
        explained(model, "green bottles", "", {})
