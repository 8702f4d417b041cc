"""What tests of explanations, searches and values of facts found is on the pages of their runs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clew import names
from clew.config.load import load
from clew.runs.influence_forms import VALUES_CSV_COLUMNS
from clew.runs.validation_record import DeletionEffect, Measured
from clew.ui.components import basics, charts
from clew.ui.components.results import trials_of
from clew.workflows.trials import TrialRecord
from clew.workflows.tune import write_best, write_trials
from tests.recorded import HOSTILE, Recorded
from tests.runs.reading.test_validations import record
from tests.ui.conftest import Open, shown

METRIC = "valid/mrr"
RATE = "optimizer.learning_rate"


@pytest.fixture
def store(recorded: Recorded, use: Callable[[str], None], tmp_path: Path) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


def add_run(
    store: Recorded,
    kind: str,
    folder: Path,
    tags: Mapping[str, str] | None = None,
    metric: str = METRIC,
) -> str:
    """Record a run with files in a folder of its own, as its command does."""
    run_id = str(
        store.client.create_run("1", tags={names.TAG_KIND: kind} | dict(tags or {})).info.run_id
    )
    store.client.log_param(run_id, "cfg.evaluation.metric", metric)
    store.client.log_artifacts(run_id, str(folder), folder.name)
    store.client.set_terminated(run_id, "FINISHED")
    return run_id


def test_a_test_of_explanations_shows_labels_and_measures(
    page: Open, store: Recorded, tmp_path: Path
) -> None:
    fall = Measured(mean=0.7, half_width=0.2)
    effects = [
        DeletionEffect(form="raw", num_facts=number, log_probability=fall, reciprocal_rank=fall)
        for number in (1, 20)
    ]
    found = record(store.runs["fp32 1"], "raw").model_copy(update={"deletions": tuple(effects)})
    folder = tmp_path / names.ARTIFACT_VALIDATION
    folder.mkdir()
    (folder / names.VALIDATION_JSON).write_text(found.model_dump_json())
    app = page("run", store.uri, id=add_run(store, names.KIND_VALIDATE, folder))
    assert not app.error
    assert "Test of explanations" in [heading.value for heading in app.header]
    for said in (*found.labels(), *found.markdown()):
        assert said in shown(app)


def test_a_search_shows_its_trials_and_the_best_settings(
    page: Open, store: Recorded, tmp_path: Path
) -> None:
    best_run = "1e5" + "0" * 29  # would be a number
    trials = [
        TrialRecord(
            0, "complete", {RATE: 0.0035344, "loss.kind": "kvs_all"}, 0.25, 2, 5.0, best_run
        ),
        TrialRecord(
            1, "failed", {RATE: 0.01, "loss.kind": "kvs_all"}, problem="loss was <b>NaN</b>"
        ),
    ]
    folder = tmp_path / names.ARTIFACT_TUNE
    folder.mkdir()
    write_trials(folder / names.TRIALS_CSV, trials)
    write_best(folder / names.BEST_YAML, load("umls"), trials[0], len(trials))
    run_id = add_run(store, names.KIND_TUNE, folder, {names.TAG_BEST_RUN: best_run})
    app = page("run", store.uri, id=run_id)
    assert not app.error
    assert "MRR, validation 0.2500 after epoch 2, in trial 0" in shown(app)
    settings, table = app.dataframe[0].value, app.dataframe[1].value
    assert list(settings["Value"]) == ["0.003534", "kvs_all"]
    assert list(table["State"]) == ["✓ complete", "✗ failed"]
    assert table["Problem"][1] == "loss was <b>NaN</b>"
    assert f"clew train --config {names.BEST_YAML}" in [block.value for block in app.code]


def test_a_search_shows_what_mattered(page: Open, store: Recorded, tmp_path: Path) -> None:
    trials = [
        TrialRecord(n, "complete", {RATE: 10.0**-n, "loss.kind": kind}, 0.1 * n, 2, 5.0, f"r{n}")
        for n, kind in enumerate(["kvs_all", "one_vs_all", "kvs_all"], start=1)
    ]
    folder = tmp_path / names.ARTIFACT_TUNE
    folder.mkdir()
    write_trials(folder / names.TRIALS_CSV, trials)
    write_best(folder / names.BEST_YAML, load("umls"), trials[2], len(trials))
    run_id = add_run(store, names.KIND_TUNE, folder, {names.TAG_BEST_RUN: "r3"}, HOSTILE[1])
    store.client.log_metric(run_id, f"importance/{RATE}", 0.75)
    app = page("run", store.uri, id=run_id)
    assert not app.error
    assert any(f": {basics.markdown(HOSTILE[1])} 0.3" in text.value for text in app.markdown)
    settings = app.dataframe[0].value.set_index("Setting")
    assert settings["Importance"][RATE] == 0.75
    lines = charts.trials(trials_of(run_id), [RATE, "loss.kind"], "MRR")["layer"][0]["data"]
    at = {(row["axis"], row["trial"]): row["at"] for row in lines["values"]}
    assert [at[RATE, n] for n in (1, 2, 3)] == pytest.approx([1.0, 0.5, 0.0])
    assert [at["loss.kind", n] for n in (1, 2, 3)] == [0.0, 1.0, 0.0]
    assert [at["MRR", n] for n in (1, 2, 3)] == pytest.approx([0.0, 0.5, 1.0])


def test_a_search_without_a_complete_trial_says_so(
    page: Open, store: Recorded, tmp_path: Path
) -> None:
    folder = tmp_path / names.ARTIFACT_TUNE
    folder.mkdir()
    write_trials(folder / names.TRIALS_CSV, [TrialRecord(0, "stopped", {RATE: 0.01})])
    app = page("run", store.uri, id=add_run(store, names.KIND_TUNE, folder))
    assert not app.error
    assert "no best settings" in shown(app)


def test_values_of_facts_show_both_ends_under_the_names_that_people_read(
    page: Open, store: Recorded, tmp_path: Path
) -> None:
    folder = tmp_path / names.ARTIFACT_VALUES
    folder.mkdir()
    lines = [f"{n},007,Bond,r,,t{n},,{0.5 - n / 100}" for n in range(100)]
    lines[0] = "0,007,Bond,r,,t0,twin,0.5"
    lines[99] = "99,007,Bond,r,,t99,twin,-0.49"
    (folder / names.VALUES_CSV).write_text("\n".join([",".join(VALUES_CSV_COLUMNS), *lines]))
    (folder / names.WORST_FACTS).write_text("# data set: umls\n007\tr\tt99\n")
    app = page("run", store.uri, id=add_run(store, names.KIND_VALUE, folder))
    assert not app.error
    table = app.dataframe[0].value
    assert set(table["Head"]) == {"Bond"}
    shown = [f"t{n}" for n in (*range(20), *range(80, 100))]
    assert list(table["Tail"]) == ["twin (t0)", *shown[1:-1], "twin (t99)"]
    assert list(table["Value"])[-1] == pytest.approx(-0.49)


def test_a_damaged_result_hides_nothing_else(page: Open, store: Recorded, tmp_path: Path) -> None:
    folder = tmp_path / names.ARTIFACT_TUNE
    folder.mkdir()
    (folder / names.TRIALS_CSV).write_text("trial,state\n1,complete\n")
    app = page("run", store.uri, id=add_run(store, names.KIND_TUNE, folder))
    assert "has no column value" in app.error[0].value.replace("\\", "")
    assert "Files" in [heading.value for heading in app.header]


def test_the_run_of_a_study_shows_its_variants(page: Open, store: Recorded) -> None:
    app = page("run", store.uri, id=store.runs["study"])
    assert not app.error
    assert "optimizer step:" not in shown(app)
    table = app.dataframe[0].value
    assert list(table["Variant"]) == ["small batch", "large batch"]
    assert (table["Median"] > 0).all()
