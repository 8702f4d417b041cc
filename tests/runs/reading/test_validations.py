"""Measurements of a model's explanations are found even if they were made later."""

import logging
from pathlib import Path

import pytest

from clew import names
from clew.runs.reading.explanation import html_report, open_explanation
from clew.runs.reading.reports import read_head, report_files
from clew.runs.reading.run_details import find_validation
from clew.runs.validation_record import (
    Ceiling,
    DatamodellingScore,
    DeletionEffect,
    Measured,
    ValidationRecord,
    ValidationSummary,
)
from tests.recorded import Recorded

FORM = "raw"


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    return store


def record(source_run: str, form: str, direction: str) -> ValidationRecord:
    measured = Measured(mean=0.35, half_width=None)
    return ValidationRecord(
        source_run=source_run,
        direction=direction,  # type: ignore[arg-type]
        data_fingerprint="f",
        config_hash="c",
        num_tests=1,
        num_subsets=2,
        num_other_seeds=1,
        num_retrainings=4,
        largest_difference=0.0,
        scores=(DatamodellingScore(form=form, drop=0.5, seeds="other", correlation=measured),),
        ceilings=(Ceiling(drop=0.5, correlation=0.5),),
        deletions=(),
    )


def add_validation(store: Recorded, source_run: str, text: str) -> str:
    """Record a test as `clew validate-influence` does."""
    tags = {names.TAG_KIND: names.KIND_VALIDATE, names.TAG_SOURCE_RUN: source_run}
    run_id = store.client.create_run("1", tags=tags).info.run_id
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    store.client.log_text(run_id, text, path)
    store.client.set_terminated(run_id, "FINISHED")
    return str(run_id)


def test_a_report_says_of_a_test_that_came_later(store: Recorded, tmp_path: Path) -> None:
    trace = store.runs["trace"]
    assert "not been tested on this model" in html_report(open_explanation(trace, 0))
    head = read_head(report_files(trace, tmp_path))
    form, direction = head.settings["score"], head.settings["direction"]
    other = {"tail": "head"}.get(direction, "tail")
    add_validation(store, head.run_id, record(head.run_id, form, other).model_dump_json())
    assert "not been tested on this model" in html_report(open_explanation(trace, 0))
    add_validation(store, head.run_id, record(head.run_id, form, direction).model_dump_json())
    page = html_report(open_explanation(trace, 0))
    assert "not been tested on this model" not in page
    assert "predicts retraining with a rank correlation of .35" in page


def test_a_later_test_of_another_form_does_not_hide_an_earlier_one(store: Recorded) -> None:
    source = store.runs["fp32 1"]
    earlier = record(source, FORM, "tail")
    run_id = add_validation(store, source, earlier.model_dump_json())
    add_validation(store, source, record(source, "cosine", "tail").model_dump_json())
    assert find_validation(source, {"score": FORM}) == earlier.summary(FORM, run_id)


def test_tables_say_what_was_not_measured_and_of_how_many_triples() -> None:
    with_ceiling = record("r", FORM, "tail")
    assert "| ceiling | 0.500 |" in list(with_ceiling.markdown())
    fall = Measured(mean=0.7, half_width=None)
    effect = DeletionEffect(form=FORM, num_facts=1, log_probability=fall, reciprocal_rank=fall)
    one_seed = with_ceiling.model_copy(
        update={
            "ceilings": (Ceiling(drop=0.5, correlation=None),),
            "deletions": (effect,),
            "num_deletions": 3,
        }
    )
    lines = list(one_seed.markdown())
    assert not [line for line in lines if line.startswith("| ceiling")]
    assert "A ceiling needs at least two other seeds." in lines
    assert "Deletions, for 3 test triples ranked first:" in lines


def test_files_alone_claim_nothing_of_tests(recorded: Recorded) -> None:
    page = html_report(open_explanation(str(recorded.files("trace", "influence")), 0))
    assert "not been tested on this model" not in page
    assert "do not say whether these scores predict" in page


@pytest.mark.parametrize("text", ['{"schema_version": 2}', "not JSON"])
def test_a_result_that_cannot_be_read_is_left_out(
    store: Recorded, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    source = store.runs["fp32 1"]
    good = record(source, FORM, "tail")
    readable = add_validation(store, source, good.model_dump_json())
    unreadable = add_validation(store, source, text)
    caplog.set_level(logging.WARNING)
    found = find_validation(source, {"score": FORM})
    assert isinstance(found, ValidationSummary)
    assert found == good.summary(FORM, readable)
    (said,) = [message for message in caplog.messages if unreadable in message]
    assert said.endswith("; it is left out")
    assert "clew-validation-" not in said, "no folder that is gone"
    assert "\n" not in said
