"""Retraining without the facts marked wrong: from the page Reviews to both runs' metrics."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from clew import names
from clew.errors import DataError
from clew.runs.reading.reviews import Fact, Review, append_review
from clew.runs.reading.runs import RunRecord, find_run
from clew.ui import access
from clew.ui.components.explanations import facts_of, report_head, report_of_run
from clew.ui.components.reviews import NOISE, fact_of, train_without
from clew.ui.components.runs import runs_by_id
from clew.ui.work import Training
from tests.recorded import UMLS, Recorded
from tests.ui.commands_here import CommandsHere
from tests.ui.conftest import Open, no_surprise, shown

BUTTON = "Train again without these facts"


@pytest.fixture
def store(
    recorded: Recorded, tmp_path: Path, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> Recorded:
    """Return a store with an explanation whose first fact a review marks as wrong."""
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    monkeypatch.chdir(tmp_path)
    run_id = store.runs["trace"]
    test = fact_of(report_head(report_of_run(run_id)).tests.loc[0])
    for name in ("Ada", "Grace"):
        append_review(Review(run_id, test, "implausible", name, wrong=(wrong(store),)))
    return store


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandsHere:
    return CommandsHere(tmp_path / "jobs", monkeypatch)


def wrong(store: Recorded, place: int = 0) -> Fact:
    return fact_of(facts_of(report_of_run(store.runs["trace"]), 0).iloc[place])


def line(fact: Fact) -> str:
    return "\t".join(fact.triple)


def press(app: AppTest) -> AppTest:
    (button,) = (button for button in app.button if button.label == BUTTON)
    return no_surprise(button.click().run())


def left_out(run: RunRecord) -> Path:
    return Path(run.params[f"{names.PARAMETER_PREFIX}data.exclude"])


def test_the_model_is_trained_without_them_and_compared(
    page: Open,
    store: Recorded,
    commands: CommandsHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "authorize", lambda action: "ann@example.org")
    before = find_run(store.runs["fp32 1"])
    app = press(page("reviews", store.uri))
    assert "running" in shown(app)
    assert commands.last.person == "ann@example.org"
    job = commands.run_last()
    assert job.state == "done", job.log()
    app = no_surprise(app.run())
    after = find_run(job.run_id())
    assert NOISE in shown(app)
    (link,) = (link for link in app.get("page_link") if "Compare" in link.proto.label)
    assert f"{before.run_id}%2C{after.run_id}" in link.proto.query_string.replace(",", "%2C")

    assert left_out(after).parent == tmp_path / "runs" / "left_out"
    assert line(wrong(store)) in left_out(after).read_text(encoding="utf-8")
    assert "without the facts marked wrong" in after.name
    keys = ("data.exclude", "tracking.run_name")
    differ = {key for key in before.params if before.params[key] != after.params[key]}
    assert differ == {f"{names.PARAMETER_PREFIX}{key}" for key in keys}
    prints = {run.tags[names.TAG_DATA_FINGERPRINT] for run in (before, after)}
    assert len(prints) == 2

    assert "no longer knows that command" in shown(page("reviews", store.uri, training="gone"))


def test_what_was_left_out_before_stays_left_out(store: Recorded, commands: CommandsHere) -> None:
    (run,) = runs_by_id([store.runs["fp32 1"]])
    train_without(run, line(wrong(store)) + "\n")
    (second,) = runs_by_id([commands.run_last().run_id()])
    train_without(second, f"{names.LIST_FINGERPRINT_PREFIX}other\n{line(wrong(store, 1))}\n")
    (third,) = runs_by_id([commands.run_last().run_id()])
    assert left_out(third).read_text(encoding="utf-8").splitlines() == [
        line(wrong(store)),
        line(wrong(store, 1)),
    ]
    assert third.name == second.name
    left_out(second).unlink()
    with pytest.raises(DataError, match="the facts that this run left out cannot be read"):
        train_without(second, line(wrong(store, 1)) + "\n")


def moved(store: Recorded, train: Path) -> None:
    """Change the explained run's configuration as if it had been trained on a file."""
    path = store.files("fp32 1", names.ARTIFACT_CONFIG_YAML)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["data"] = {"kind": "triples", "train": str(train)}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "said"), [(None, "train.txt"), (5215, "its facts are from umls with fingerprint")]
)
def test_data_that_are_gone_or_others_are_one_line(
    page: Open,
    store: Recorded,
    commands: CommandsHere,
    tmp_path: Path,
    lines: int | None,
    said: str,
) -> None:
    train = tmp_path / "graph" / "train.txt"
    if lines is not None:
        train.parent.mkdir()
        whole = (UMLS / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        train.write_text("".join(whole[:lines]), encoding="utf-8")
    moved(store, train)
    app = press(page("reviews", store.uri))
    assert commands.run_last().state == "failed"
    app = no_surprise(app.run())
    (error,) = app.error
    assert said in error.value.replace("\\", "")
    assert "\n" not in error.value
    assert "Compare both runs →" not in [link.proto.label for link in app.get("page_link")]


def test_relative_paths_start_where_the_run_was_started(
    store: Recorded, commands: CommandsHere, tmp_path: Path
) -> None:
    started = tmp_path / "far" / "away"
    started.mkdir(parents=True)
    shutil.copy2(UMLS / "train.txt", started / "train.txt")
    moved(store, Path("train.txt"))
    manifest = store.files("fp32 1", "best/manifest.json")
    said = json.loads(manifest.read_text(encoding="utf-8")) | {"folder": str(started)}
    manifest.write_text(json.dumps(said), encoding="utf-8")
    (run,) = runs_by_id([store.runs["fp32 1"]])
    train_without(run, line(wrong(store)) + "\n")
    assert isinstance(commands.last.asked, Training)
    assert commands.last.asked.config["data"]["train"] == str(started / "train.txt")


def test_for_people_who_sign_in_no_events_are_written_where_the_run_says(
    store: Recorded, commands: CommandsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.files("fp32 1", names.ARTIFACT_CONFIG_YAML)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["tracking"] |= {"tensorboard": True, "tensorboard_dir": "/srv"}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    (run,) = runs_by_id([store.runs["fp32 1"]])
    for is_configured in (False, True):
        monkeypatch.setattr(access, "is_configured", lambda found=is_configured: found)
        train_without(run, line(wrong(store)) + "\n")
        assert isinstance(commands.last.asked, Training)
        assert commands.last.asked.config["tracking"]["tensorboard"] is not is_configured


def test_a_configuration_that_is_gone_is_one_line(
    page: Open, store: Recorded, commands: CommandsHere
) -> None:
    store.files("fp32 1", names.ARTIFACT_CONFIG_YAML).unlink()
    (error,) = press(page("reviews", store.uri)).error
    assert "The training cannot be started" in error.value
    assert "config.yaml" in error.value.replace("\\", "")
    assert commands.asked == []


def test_a_model_that_is_no_run_of_the_store_cannot_be_repeated(
    page: Open, store: Recorded
) -> None:
    store.client.delete_run(store.runs["fp32 1"])
    app = page("reviews", store.uri)
    assert "has no training run of the explained models to repeat" in shown(app)
    assert BUTTON not in [button.label for button in app.button]


def test_nothing_is_wrong_nothing_is_trained_again(page: Open, many: Recorded) -> None:
    app = page("reviews", many.uri)
    assert BUTTON not in [button.label for button in app.button]
