"""Runs of other tools, made with plain MLflow: nothing untrue is said about them."""

import math
import re
import time
from collections.abc import Callable

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from clew import names
from clew.cli.project import list_runs
from clew.runs.reading.metrics import progress_of
from clew.runs.reading.runs import find_run, last_sign_of_life, state_of
from clew.ui.components.runs import counts, curves_of, live_runs
from clew.ui.views.run import repeating_commands
from tests.ui.conftest import Open, shown

HOUR = 3600.0
ODD = ("nan", "inf", "-inf", "many", "", "1e400", "²", "3.7", "-1", "0", "0x10", "1" * 40)
"""Texts that other tools may store where Clew stores a number."""


@pytest.fixture
def made(empty: str, use: Callable[[str], None]) -> Callable[..., Run]:
    """Return a function that makes a run of an hour ago with plain MLflow."""
    use(empty)
    client = MlflowClient(empty)

    def make(
        status: str = "RUNNING",
        *,
        tags: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
        metrics: dict[str, list[float]] | None = None,
        age: float = HOUR,
    ) -> Run:
        started = int((time.time() - HOUR) * 1000)
        run = client.create_run("0", start_time=started, tags=tags, run_name="a foreign run")
        run_id = run.info.run_id
        for key, text in (params or {}).items():
            client.log_param(run_id, key, text)
        now = int((time.time() - age) * 1000)
        points = [
            Metric(key, value, now, step)
            for key, values in (metrics or {}).items()
            for step, value in enumerate(values)
        ]
        client.log_batch(run_id, metrics=points)
        if status != "RUNNING":
            client.set_terminated(run_id, status)
        return client.get_run(run_id)

    return make


def test_a_metric_is_a_sign_of_life(made: Callable[..., Run]) -> None:
    beat = {names.TAG_HEARTBEAT: str(time.time() - HOUR)}
    silent, alive = (
        find_run(made(tags=beat, metrics={"loss": [2.0, 1.0]}, age=age).info.run_id)
        for age in (HOUR, 3.0)
    )
    assert state_of(silent) == "stuck"
    assert state_of(alive) == "running"
    assert time.time() - last_sign_of_life(alive) < HOUR / 2


@pytest.mark.parametrize("beat", [None, *ODD[:5]])
def test_a_run_without_a_heartbeat_is_never_called_dead(
    made: Callable[..., Run], page: Open, empty: str, beat: str | None
) -> None:
    tags = {} if beat is None else {names.TAG_HEARTBEAT: beat}
    run = made(tags=tags, metrics={"loss": [1.0]}, age=HOUR)
    assert state_of(find_run(run.info.run_id)) == "running"
    number = counts((), live_runs(()))
    assert (number["running"], number["stuck"]) == (1, 0)
    app = page("overview", empty)
    text = shown(app)
    assert "a foreign run" in text
    assert "died" not in text
    assert "clew train" not in text
    assert re.search(r"last metric 1 h \d+ min ago", text)


def test_nothing_offers_to_repeat_it(made: Callable[..., Run], page: Open, empty: str) -> None:
    run_id = made("FINISHED", params={"lr": "0.01"}, metrics={"loss": [1.0]}).info.run_id
    MlflowClient(empty).log_text(run_id, "lr: 0.01", names.ARTIFACT_CONFIG_YAML)
    run = find_run(run_id)
    assert names.TAG_KIND not in run.tags
    assert repeating_commands(run) == ""
    app = page("run", empty, id=run_id)
    assert "clew train" not in shown(app)
    (settings,) = [frame.value for frame in app.dataframe if "Setting" in frame.value]
    assert settings.to_dict("records") == [{"Setting": "lr", "Value": "0.01"}]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_number_is_shown_as_it_is(
    made: Callable[..., Run], page: Open, empty: str, odd: str
) -> None:
    tags = {names.TAG_KIND: names.KIND_TRAIN, names.TAG_TASK: names.TASK_LINK_PREDICTION}
    under = (names.TAG_PARAMETERS, names.TAG_BEST_STEP, names.TAG_VARIANT, names.TAG_HARDWARE)
    settings = ("training.num_epochs", "training.max_steps", "training.seed")
    run_id = made(
        tags=tags | dict.fromkeys(under, odd),
        params={f"{names.PARAMETER_PREFIX}{key}": odd for key in settings if odd},
        metrics={names.TRAIN_EPOCH: [0.5, 1.0], "valid/mrr": [0.5]},
        age=3.0,
    ).info.run_id
    run = find_run(run_id)
    progress_of(run, curves_of(run)[names.TRAIN_EPOCH])
    assert "a foreign run" in shown(page("overview", empty))
    app = page("run", empty, id=run_id)
    text = shown(app)
    expected = f"{int(odd):,}" if odd.isascii() and odd.isdigit() and len(odd) < 19 else odd
    assert f">{expected}</td>" in text or not odd
    if odd:
        (shown_settings,) = [f.value for f in app.dataframe if "Setting" in f.value]
        assert list(shown_settings["Value"]) == [odd] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_shown_as_it_is(
    made: Callable[..., Run], page: Open, empty: str, value: float
) -> None:
    keys = (
        "valid/mrr",
        names.TRAIN_EPOCH,
        names.TIME_EPOCH_SECONDS,
        names.PROCESS_PEAK_GIB,
        "other",
    )
    tags = {names.TAG_KIND: names.KIND_TRAIN}
    params = {f"{names.PARAMETER_PREFIX}training.num_epochs": "3"}
    metrics = {key: [1.0, 2.0, value] for key in keys}
    run_ids = [made(tags=tags, params=params, metrics=metrics, age=3.0).info.run_id for _ in "ab"]
    assert {str(last) for last in find_run(run_ids[0]).metrics.values()} == {str(value)}
    app = page("overview", empty)
    assert f"MRR, validation {value}" in shown(app)
    assert set(app.dataframe[0].value["Quality, last"]) == {f"MRR {value}"}
    app = page("run", empty, id=run_ids[0], metric="other")
    assert set(app.dataframe[0].value["Last"]) == {str(value)}
    page("compare", empty, runs=",".join(run_ids))
    (first, second) = list_runs().runs
    assert first.quality == second.quality == f"valid/mrr {value}"


def test_ctrl_c_is_stopped_not_failed(made: Callable[..., Run], page: Open, empty: str) -> None:
    run_id = made("KILLED", tags={names.TAG_STOPPED_BECAUSE: "stopped by the user"}).info.run_id
    number = counts((), live_runs(()))
    assert (number["stopped"], number["failed"], number["finished"]) == (1, 0, 0)
    assert [run.state for run in list_runs().runs] == ["stopped"]
    text = shown(page("run", empty, id=run_id))
    assert "stopped by the user" in text
    assert "failed" not in text.lower()
