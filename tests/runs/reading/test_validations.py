"""Measurements of a model's explanations are found even if they were made later."""

import dataclasses
import html
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from clew import names
from clew.api.explanations import triple_table
from clew.runs.influence_report import read_influence_json, write_influence_json
from clew.runs.reading.explanation import html_report, open_explanation
from clew.runs.reading.reports import ReportHead, read_head, report_files
from clew.runs.reading.run_details import find_validation
from clew.runs.validation_record import (
    Ceiling,
    DatamodellingScore,
    DeletionEffect,
    Measured,
    ScoreSettings,
    ValidationRecord,
    ValidationSummary,
    label_of,
)
from clew.workflows.explaining.tracin import TraceResult
from tests.recorded import Recorded

FORM = "raw"


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    return store


def settings_of(store: Recorded, folder: Path, **changes: Any) -> tuple[ReportHead, ScoreSettings]:
    """Return the head of a recorded explanation, and the settings of its scores, or others."""
    head = read_head(report_files(store.runs["trace"], folder))
    checkpoints = [(c.step, c.weight) for c in head.model.checkpoints]
    settings = ScoreSettings.of_report(head.settings, checkpoints)
    assert settings is not None
    return head, settings.model_copy(update=changes)


def record(source_run: str, form: str, settings: ScoreSettings | None = None) -> ValidationRecord:
    """Return a test of a form that beats one of two baselines beyond doubt."""

    def score(form: str, mean: float, more: float | None) -> DatamodellingScore:
        over = None if more is None else Measured(mean=more, half_width=0.04)
        reached = Measured(mean=mean, half_width=0.06)
        return DatamodellingScore(
            form=form, drop=0.5, seeds="other", correlation=reached, over_baseline=over
        )

    scores = [(form, 0.35, 0.05), ("siblings", 0.2, -0.1), ("touching", 0.3, None)]
    return ValidationRecord(
        source_run=source_run,
        settings=settings,
        data_fingerprint="f",
        config_hash="c",
        num_tests=100,
        num_subsets=40,
        num_other_seeds=2,
        num_retrainings=4,
        largest_difference=0.0,
        scores=tuple(score(*each) for each in scores),
        ceilings=(Ceiling(drop=0.5, correlation=0.5),),
        deletions=(),
    )


def with_unit(found: ValidationRecord, fall: float) -> ValidationRecord:
    """Return a test in which the log-probability fell by so much for each unit of score."""
    measured = Measured(mean=fall, half_width=0.5)
    effect = DeletionEffect(
        form=found.scores[0].form,
        num_facts=4,
        log_probability=measured,
        reciprocal_rank=measured,
        for_each_unit=measured,
    )
    return found.model_copy(update={"deletions": (effect,), "num_deletions": 10})


def add_validation(store: Recorded, source_run: str, text: str) -> str:
    """Record a test as `clew validate-influence` does."""
    tags = {names.TAG_KIND: names.KIND_VALIDATE, names.TAG_SOURCE_RUN: source_run}
    run_id = store.client.create_run("1", tags=tags).info.run_id
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    store.client.log_text(run_id, text, path)
    store.client.set_terminated(run_id, "FINISHED")
    return str(run_id)


def summary(
    mean: float = 0.35, more: float = 0.05, half_width: float = 0.04, **changes: Any
) -> ValidationSummary:
    found = record("r", FORM).summary(FORM, "t")
    assert found.score is not None
    score = found.score.model_copy(
        update={
            "correlation": Measured(mean=mean, half_width=half_width),
            "over_baseline": Measured(mean=more, half_width=half_width),
        }
    )
    return found.model_copy(update={"score": score, **changes})


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (None, "not tested"),
        (ValidationSummary(run_id="r"), "not tested"),  # of an earlier version
        (summary(), "better"),
        (summary(more=0.03), "alike"),
        (summary(more=-0.05), "worse"),
        (summary(mean=0.03, more=0.3), "no better than chance"),
        (summary(mean=-0.3, more=0.3), "no better than chance"),
        (summary(num_other_seeds=0), "better"),
        (summary(num_subsets=3, num_tests=2), "too few to say"),
        (summary(num_subsets=9), "too few to say"),
        (summary(num_tests=9), "too few to say"),
        (summary(num_subsets=10, num_tests=10), "better"),
        (summary(mean=0.9, more=0.8, half_width=0.151), "too few to say"),
    ],
)
def test_a_label_is_a_function_of_the_test(found: ValidationSummary | None, verdict: str) -> None:
    label = label_of(found, {"score": FORM}, "RUN-ID")
    assert label.verdict == verdict
    assert FORM in label.sentence
    asks = verdict in {"not tested", "too few to say"}
    assert ("clew validate-influence --model RUN-ID" in label.sentence) == asks
    if found is not None and found.score is not None:
        for said in (f"{found.num_subsets} subsets", f"{found.num_tests} test", "50%"):
            assert said in label.sentence
        about = "2 other seeds" if found.num_other_seeds else "this run"
        assert about in label.sentence


def test_a_share_is_not_rounded_to_another() -> None:
    """Two shares that round to the same per cent would be two columns of one name."""
    found = record("r", FORM)
    shares = (0.0225, 0.025)
    scores = [
        score.model_copy(update={"drop": share}) for score in found.scores for share in shares
    ]
    ceilings = tuple(Ceiling(drop=share, correlation=None) for share in shares)
    found = found.model_copy(update={"scores": tuple(scores), "ceilings": ceilings})
    heading = next(found.markdown())
    assert ["2.25%" in heading, "2.5%" in heading] == [True, True]
    assert "2.5%" in label_of(found.summary(FORM, "t"), {"score": FORM}, "RUN-ID").sentence


COMMAND = "clew validate-influence --model RUN-ID"


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"score": "kronecker", "direction": "tail", "test_loss": "trained"}, ""),
        ({"score": "raw", "direction": "head"}, " --direction head"),
        (
            {"score": "tuned", "test_loss": "filtered", "tuning_seeds": 2},
            " --test-loss filtered --scores tuned",
        ),
        ({"score": "unrolled"}, " --scores unrolled"),
        ({"score": "raw", "use_last_layers_only": True}, None),
        ({"score": "raw", "use_mixed_precision": True}, None),
        ({"score": "tuned", "tuning_epochs": 3}, None),
        ({"score": "tuned", "tuning_seeds": 1}, None),
    ],
)
def test_a_label_names_the_command_that_tests_such_scores(
    settings: dict[str, Any], options: str | None
) -> None:
    for found in (None, summary(num_tests=2)):
        said = label_of(found, settings, "RUN-ID").sentence
        assert (COMMAND in said) == (options is not None)
        assert options is None or f"({COMMAND}{options})" in said


def test_a_file_that_does_not_say_its_form_is_not_called_untested() -> None:
    label = label_of(None, {}, "")
    assert (label.verdict, "Not tested" in label.sentence) == ("not tested", False)


def test_the_strongest_baseline_is_compared() -> None:
    found = record("r", FORM).summary(FORM, "t")
    assert found.baseline is not None
    assert found.baseline.form == "touching", "siblings are weaker"
    assert "0.30 by touching" in label_of(found, {"score": FORM}, "m").sentence


def test_scores_have_a_unit_of_effect_only_where_enough_was_deleted() -> None:
    def effect(form: str, num_facts: int, mean: float) -> DeletionEffect:
        fall = Measured(mean=mean, half_width=0.02)
        return DeletionEffect(
            form=form,
            num_facts=num_facts,
            log_probability=fall,
            reciprocal_rank=fall,
            for_each_unit=fall,
        )

    one, four, other = effect(FORM, 1, 0.01), effect(FORM, 4, 0.03), effect("cosine", 1, 0.5)
    known = record("r", FORM).model_copy(
        update={"deletions": (one, four, other), "num_deletions": 10}
    )
    assert known.summary(FORM, "t").deletion == four, "one fact says nothing beyond chance"
    assert "0.03 ± 0.02" in label_of(known.summary(FORM, "t"), {"score": FORM}, "m").sentence
    for changes in ({"num_deletions": 9}, {"deletions": (one, other)}, {"deletions": ()}):
        found = known.model_copy(update=changes).summary(FORM, "t")
        assert found.deletion is None
        assert label_of(found, {"score": FORM}, "m").fall is None


def test_scores_are_shown_as_an_expected_fall_where_a_test_has_found_it(
    store: Recorded, tmp_path: Path
) -> None:
    head, settings = settings_of(store, tmp_path)
    form = head.settings["score"]
    tested = with_unit(record(head.model.run_id, form, settings), fall=2.0)
    report = read_influence_json(store.files("trace", "influence") / names.INFLUENCE_JSON)
    known = dataclasses.replace(report, validation=tested.summary(form, "t"))
    strongest = known.tests[0].proponents[0].influence
    lines = TraceResult(known, None, None).table().splitlines()
    row = next(line for line in lines if line.startswith("  + "))
    assert f"{strongest:+.4g} ({2 * strongest:+.2g})" in row
    write_influence_json(known, tmp_path / "known.json")
    written = json.loads((tmp_path / "known.json").read_text())["label"]
    assert written["fall"] == {"mean": 2.0, "half_width": 0.5}
    table = triple_table(known)
    assert table["expected_fall"].tolist() == (2 * table["influence"]).tolist()
    assert "expected_fall" not in triple_table(report)
    explanation = open_explanation(store.runs["trace"], 0)
    column = f">{2 * strongest:+.2g}</td>"
    assert column not in html_report(explanation)
    shown = dataclasses.replace(
        explanation, head=dataclasses.replace(explanation.head, validation=known.validation)
    )
    assert column in html_report(shown)


def test_text_and_frames_name_no_command_that_would_refuse_them() -> None:
    assert "clew" not in label_of(None, {"score": "raw"}, None).sentence


def test_a_report_says_of_a_test_that_came_later(store: Recorded, tmp_path: Path) -> None:
    trace = store.runs["trace"]
    head, settings = settings_of(store, tmp_path)
    form = head.settings["score"]
    assert open_explanation(trace, 0).head.label.verdict == "not tested"
    for other in (
        record(head.model.run_id, "preconditioned", settings),
        record(head.model.run_id, form, settings.model_copy(update={"direction": "head"})),
        record(head.model.run_id, form, settings.model_copy(update={"test_loss": "filtered"})),
        record(head.model.run_id, form, settings.model_copy(update={"precision": "bfloat16"})),
        record(head.model.run_id, form, settings.model_copy(update={"num_last_layers": 1})),
        record(head.model.run_id, form, settings.model_copy(update={"checkpoints": ((1, 0.5),)})),
        record(head.model.run_id, form, settings).model_copy(update={"ensemble": ("a", "b")}),
        record(head.model.run_id, form),
    ):
        add_validation(store, head.model.run_id, other.model_dump_json())
    assert open_explanation(trace, 0).head.label.verdict == "not tested"
    add_validation(
        store, head.model.run_id, record(head.model.run_id, form, settings).model_dump_json()
    )
    explanation = open_explanation(trace, 0)
    assert explanation.head.label.verdict == "better"
    assert explanation.head.label.sentence in html.unescape(html_report(explanation))


def test_a_small_test_kept_with_a_report_does_not_hide_a_later_one(
    store: Recorded, tmp_path: Path
) -> None:
    head, settings = settings_of(store, tmp_path)
    form, path = head.settings["score"], report_files(store.runs["trace"], tmp_path).json
    assert path is not None
    small = record(head.model.run_id, form, settings).model_copy(update={"num_subsets": 3})
    kept = dataclasses.replace(read_influence_json(path), validation=small.summary(form, "small"))
    write_influence_json(kept, path)
    assert open_explanation(store.runs["trace"], 0).head.label.verdict == "too few to say"
    add_validation(
        store, head.model.run_id, record(head.model.run_id, form, settings).model_dump_json()
    )
    assert open_explanation(store.runs["trace"], 0).head.label.verdict == "better"


def test_neither_another_form_nor_a_small_test_hides_an_earlier_one(
    store: Recorded, tmp_path: Path
) -> None:
    head, settings = settings_of(store, tmp_path)
    form, source = head.settings["score"], head.model.run_id
    small = record(source, form, settings).model_copy(update={"num_subsets": 3, "num_tests": 2})
    run_id = add_validation(store, source, small.model_dump_json())
    assert find_validation(head.model, head.settings) == small.summary(form, run_id)
    earlier = record(source, form, settings)
    run_id = add_validation(store, source, earlier.model_dump_json())
    add_validation(store, source, record(source, "raw", settings).model_dump_json())
    add_validation(store, source, small.model_dump_json())
    assert find_validation(head.model, head.settings) == earlier.summary(form, run_id)


def test_a_test_of_tuned_scores_counts_for_its_fine_tuning_only(
    store: Recorded, tmp_path: Path
) -> None:
    tuning = {"tuning": {"epochs": 10, "learning_rate": 0.002}, "tuning_seeds": 2}
    head, plain = settings_of(store, tmp_path)
    tested = ScoreSettings.of_report(head.settings | tuning, plain.checkpoints)
    for form in ("tuned", "cosine"):
        found = record(head.model.run_id, form, tested).model_dump_json()
        add_validation(store, head.model.run_id, found)
    asked = head.settings | tuning | {"score": "tuned"}
    assert find_validation(head.model, asked) is not None
    assert find_validation(head.model, asked | {"tuning_seeds": 3}) is None
    assert find_validation(head.model, asked | {"first_tuning_seed": 1}) is None
    other = {"tuning": {"epochs": 5, "learning_rate": 0.002}}
    assert find_validation(head.model, asked | other) is None
    assert find_validation(head.model, head.settings | {"score": "cosine"}) is not None


def test_tables_say_what_was_not_measured_and_of_how_many_triples() -> None:
    with_ceiling = record("r", FORM)
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
    explanation = open_explanation(str(recorded.files("trace", "influence")), 0)
    assert explanation.head.label.verdict == "not tested"
    assert explanation.head.label.sentence in html.unescape(html_report(explanation))


@pytest.mark.parametrize("text", ['{"schema_version": 2}', "not JSON"])
def test_a_result_that_cannot_be_read_is_left_out(
    store: Recorded, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    head, settings = settings_of(store, tmp_path)
    good = record(head.model.run_id, head.settings["score"], settings)
    readable = add_validation(store, head.model.run_id, good.model_dump_json())
    unreadable = add_validation(store, head.model.run_id, text)
    caplog.set_level(logging.WARNING)
    found = find_validation(head.model, head.settings)
    assert found == good.summary(head.settings["score"], readable)
    (said,) = [message for message in caplog.messages if unreadable in message]
    assert said.endswith("; it is left out")
    assert "clew-validation-" not in said, "no folder that is gone"
    assert "\n" not in said
