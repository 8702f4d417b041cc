"""The page of a run, with stores that commands filled."""

import math
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from mlflow.entities import Run
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from streamlit.testing.v1 import AppTest

from clew import names
from clew.runs.reading.run_details import lineage, list_data, list_files, read_by_relation
from clew.runs.reading.runs import find_run
from clew.ui.components.runs import forget_runs, sparklines
from clew.ui.views.run import mlflow_page
from tests.recorded import MODEL, Recorded
from tests.runs.kept import read_run
from tests.ui.conftest import TIMEOUT_SECONDS, Open, shown


@pytest.fixture(autouse=True)
def many_in_use(many: Recorded, use: Callable[[str], None]) -> None:
    use(many.uri)


def test_a_training_with_all_that_was_recorded(page: Open, many: Recorded) -> None:
    run_id = many.runs["fp32 0"]
    app = page("run", many.uri, id=run_id)
    text = shown(app)
    assert app.title[0].value == "umls conve fp32"
    assert not app.error
    for part in ("clew train", "run-", run_id, "fingerprint", "cores", "parameters", MODEL):
        assert part in text or part == MODEL, part
    headings = [heading.value for heading in app.header]
    assert headings == [
        "Metrics",
        "Ranks by relation",
        "Data",
        "Related runs",
        "Files",
        "Configuration",
        "Log",
    ]
    metrics = app.dataframe[0].value
    assert metrics["Metric"][0] == "MRR, validation"
    assert set(metrics["Of"]) >= {"Quality", "Training", "Time", "Memory"}


@pytest.mark.parametrize(
    "name", ["trace", "trace text", "frames", "study", "failed", "killed", "hostile", "stuck"]
)
def test_a_run_of_any_kind(page: Open, many: Recorded, name: str) -> None:
    app = page("run", many.uri, id=many.runs[name])
    assert not app.error, [error.value for error in app.error]
    assert many.runs[name] in shown(app)


@pytest.mark.parametrize(("name", "has_model"), [("trace text", True), ("study", False)])
def test_the_model_of_a_run_without_configuration(
    page: Open, many: Recorded, name: str, has_model: bool
) -> None:
    app = page("run", many.uri, id=many.runs[name])
    (said,) = (each.value for each in app.caption if "configuration" in each.value)
    assert ("model" in said) == has_model


def test_trends_have_no_infinite_values(page: Open, fresh_many: Recorded) -> None:
    run_id, key = fresh_many.runs["fp32 1"], "valid/mrr"
    recorded = len(fresh_many.client.get_metric_history(run_id, key))
    for step, value in enumerate((math.inf, math.nan), 10**6):
        fresh_many.client.log_metric(run_id, key, value, step=step)
    metrics = page("run", fresh_many.uri, id=run_id).dataframe[0].value
    assert len(metrics["Trend"][0]) == recorded
    trends = sparklines([find_run(run_id)])
    assert len(trends[run_id]) == recorded


def test_people_describe_runs(page: Open, fresh_many: Recorded) -> None:
    run_id, client = fresh_many.runs["fp32 1"], fresh_many.client
    before = client.get_run(run_id).data.tags
    client.set_tag(run_id, "screen", "lung")
    app = page("run", fresh_many.uri, id=run_id)

    def save(tags: str) -> None:
        description, own = app.text_area
        assert "screen=lung" in own.value
        description.set_value("for the *screen*")
        own.set_value(tags)
        app.button(key="save-description").click().run()

    save("screen=lung\nclew.kind=promote")
    assert app.error
    assert client.get_run(run_id).data.tags == before | {"screen": "lung"}
    save("reviewed = yes, twice")
    assert not app.error
    described = {names.TAG_NOTE: "for the *screen*", "reviewed": "yes, twice"}
    assert client.get_run(run_id).data.tags == before | described
    assert "for the *screen*" in shown(app).replace("\\", "")


def test_two_people_describe_a_run_at_once(page: Open, fresh_many: Recorded) -> None:
    run_id, client = fresh_many.runs["fp32 1"], fresh_many.client
    client.set_tag(run_id, "screen", "lung")
    app = page("run", fresh_many.uri, id=run_id)
    client.set_tag(run_id, "team", "blue")
    client.set_tag(run_id, names.TAG_NOTE, "of somebody else")
    forget_runs()

    def save(description: str, tags: str) -> dict[str, str]:
        for area, text in zip(app.text_area, (description, tags), strict=True):
            area.set_value(text)
        app.button(key="save-description").click().run()
        found = client.get_run(run_id).data.tags
        return {key: found[key] for key in (names.TAG_NOTE, "screen", "team") if key in found}

    theirs = {names.TAG_NOTE: "of somebody else", "screen": "lung", "team": "blue"}
    assert save("mine", "screen=colon") == theirs
    assert app.error
    assert app.text_area[0].value == "mine"
    assert save(app.text_area[0].proto.default, "screen=colon") == theirs | {"screen": "colon"}
    assert not app.error
    assert app.text_area[0].value == "of somebody else"
    assert "team=blue" in app.text_area[1].value


def test_tags_of_several_lines_stay_as_they_are(page: Open, fresh_many: Recorded) -> None:
    run_id, client = fresh_many.runs["fp32 1"], fresh_many.client
    client.set_tag(run_id, "changes", "one\n- two")
    app = page("run", fresh_many.uri, id=run_id)
    app.text_area[0].set_value("for the screen")
    app.button(key="save-description").click().run()
    tags = client.get_run(run_id).data.tags
    assert (tags["changes"], tags[names.TAG_NOTE]) == ("one\n- two", "for the screen")
    assert "- two" not in tags


@pytest.mark.parametrize(("count", "said"), [(5, "5"), (47_123, "47,123")])
def test_leaked_triples_are_counted(
    page: Open, fresh_many: Recorded, count: int, said: str
) -> None:
    run_id, client = fresh_many.runs["fp32 1"], fresh_many.client
    client.log_text(run_id, '{"findings": [], "pairs": []}', names.ARTIFACT_DATA_REPORT)
    client.log_metric(run_id, names.metric("test", names.NUM_LEAKED), count, step=10**6)
    tiles = {tile.label: tile.value for tile in page("run", fresh_many.uri, id=run_id).metric}
    assert tiles["Leaked triples, test"] == said


def test_a_run_begins_with_what_it_found(page: Open, fresh_many: Recorded) -> None:
    run_id, said = fresh_many.runs["fp32 1"], "quality: <b>MRR</b> .9\n\ncost: 2 s"
    fresh_many.client.set_tag(run_id, names.TAG_NOTE, said)
    fresh_many.client.log_metric(run_id, "valid/loss", 0.5, step=1)
    with fresh_many.database() as base:
        base.execute(
            "UPDATE params SET value = 'valid/loss' WHERE run_uuid = ? AND key = ?",
            (run_id, "cfg.evaluation.metric"),
        )
    app = page("run", fresh_many.uri, id=run_id)
    assert app.markdown[0].value.replace("\\", "") == (
        "**quality: <b>MRR</b> .9**\n\ncost: 2 s".replace(":", ":\u2060")
    )
    assert app.dataframe[0].value["Metric"][0] == "Loss, validation"


def test_what_another_command_started_is_not_shown_as_typed(many: Recorded) -> None:
    def content(run_id: str, typed: str) -> None:
        from dataclasses import replace

        from clew.names import TAG_COMMAND
        from clew.runs.reading.runs import find_run
        from clew.ui.views.run import commands

        run = replace(find_run(run_id), tags={TAG_COMMAND: typed})
        commands(run)

    for typed, is_shown in (
        ("clew train --config umls", True),
        ("clew train --config /tmp/gone/config.yaml --parent-run 1", False),
    ):
        app = AppTest.from_function(
            content, args=(many.runs["fp32 0"], typed), default_timeout=TIMEOUT_SECONDS
        ).run()
        assert not app.exception
        assert (typed in shown(app)) == is_shown


def test_the_metric_in_the_address_is_drawn(page: Open, many: Recorded) -> None:
    app = page("run", many.uri, id=many.runs["fp32 1"], metric=names.TRAIN_LOSS)
    assert "Training loss" in shown(app)
    assert "what training minimizes" in shown(app).lower()


def test_a_run_that_is_gone(page: Open, many: Recorded) -> None:
    app = page("run", many.uri, id="0" * 32)
    assert any("No run" in warning.value for warning in app.warning)
    assert not app.dataframe


def test_the_ranks_are_those_that_were_stored(many: Recorded) -> None:
    run_id = many.runs["fp32 1"]
    frame = read_by_relation(run_id, "test")
    weights = frame["num_queries"]
    mean = (frame[names.MRR] * weights).sum() / weights.sum()
    assert mean == pytest.approx(find_run(run_id).metrics["test/mrr"], rel=1e-5)
    assert set(frame["side"]) == {"head", "tail"}


def test_where_a_run_comes_from_and_what_it_led_to(many: Recorded) -> None:
    found = lineage(find_run(many.runs["fp32 1"]))
    made = {run.run_id: how for how, run in found.results}
    assert made[many.runs["trace"]] == "explanation"
    assert "promotion" in made.values()
    assert [(version.model, version.version) for version in found.versions] == [(MODEL, 1)]
    ((how, source),) = lineage(find_run(many.runs["trace"])).sources
    assert (how, source.run_id) == ("uses the model of", many.runs["fp32 1"])


@pytest.mark.parametrize("name", ["fp32 1", "trace"])
def test_a_run_names_its_data(many: Recorded, name: str) -> None:
    ((_, data, fingerprint),) = list_data(many.runs[name])
    run = find_run(many.runs[name])
    assert data == "umls"
    assert run.tags[names.TAG_DATA_FINGERPRINT].startswith(fingerprint)


def test_a_promotion_names_its_data(many: Recorded) -> None:
    found = lineage(find_run(many.runs["fp32 1"])).results
    (promotion,) = [run for how, run in found if how == "promotion"]
    ((context, data, _),) = list_data(promotion.run_id)
    assert (data, context) == ("umls", "promotion")


@pytest.mark.parametrize("name", ["fp32 0", "trace hostile", "study"])
def test_the_files_are_those_that_mlflow_lists_folder_by_folder(
    many: Recorded, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = many.runs[name]
    paths = read_run(many.client, run_id).artifacts
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    lookups: list[str] = []
    get_run = SqlAlchemyStore.get_run

    def counted(store: SqlAlchemyStore, run_id: str) -> Run:
        lookups.append(run_id)
        return get_run(store, run_id)

    monkeypatch.setattr(SqlAlchemyStore, "get_run", counted)
    found = [file.path for file in list_files(run_id)]
    assert len(found) == len(set(found))
    assert set(found) == paths - folders
    assert lookups == [run_id]


def test_a_run_keeps_its_log_and_its_command(many: Recorded) -> None:
    run = find_run(many.runs["fp32 0"])
    assert run.tags[names.TAG_COMMAND].startswith("clew train ")
    assert names.ARTIFACT_LOG in [file.path for file in list_files(run.run_id)]
    log = (many.files("fp32 0") / names.ARTIFACT_LOG).read_text()
    assert "parameters" in log
    failed = (many.files("failed") / names.ARTIFACT_LOG).read_text()
    assert "ERROR" in failed.splitlines()[-1]


def test_mlflow_shows_the_run_among_experiments(many: Recorded, monkeypatch) -> None:
    run = find_run(many.runs["fp32 1"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:5000/")
    address, command = mlflow_page(run)
    assert not command
    assert "secret" not in address
    assert address.endswith(f"/runs/{run.run_id}?workflowType=machine_learning")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", many.uri)
    assert mlflow_page(run)[1] == f"mlflow ui --backend-store-uri {many.uri}"


def test_a_run_without_metrics_says_so(page: Open, many: Recorded, monkeypatch) -> None:
    from clew.ui.components import runs

    monkeypatch.setattr(runs, "curves_of", lambda run: {})
    assert "recorded no metrics" in shown(page("run", many.uri, id=many.runs["failed"]))
