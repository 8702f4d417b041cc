"""The test of explanations as a command: measures, resumption, what is refused, where it shows."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clew import names
from clew.cli import cli
from clew.errors import ConfigError, TrackingError
from clew.runs.reading.reports import ReportFiles, read_head
from clew.runs.reading.runs import download_artifact, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import Measured, ValidationSummary, read_validation
from clew.validation.outcomes import Examiner
from clew.workflows.tracin import tracin
from clew.workflows.validate_influence import (
    ValidationRequest,
    ValidationResult,
    validate_influence,
)
from clew.workflows.validation_experiment import FORMS
from tests.workflows.trained import TrainedStore


def request_of(store: TrainedStore, folder: Path, **changes: Any) -> ValidationRequest:
    small = ValidationRequest(
        store.unvalidated,
        subsets=3,
        seeds=2,
        drop=(0.5,),
        tests=6,
        deletions=1,
        scores=("raw", "cosine"),
        output_dir=folder,
    )
    return dataclasses.replace(small, **changes)


@pytest.fixture
def result(trained: TrainedStore, tmp_path: Path) -> ValidationResult:
    return validate_influence(request_of(trained, tmp_path / "cells"))


def test_result_is_recorded_attached_and_not_computed_twice(
    trained: TrainedStore,
    result: ValidationResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = result.record
    assert {score.form for score in record.scores} == {
        "raw", "cosine", "random", "touching", "siblings", "adamic_adar"
    }  # fmt: skip
    assert all(abs(score.correlation.mean) <= 1 for score in record.scores)
    assert record.num_retrainings == len(list((tmp_path / "cells").glob("*.npz")))

    run = find_run(result.run_id or "")
    assert run.tags[names.TAG_KIND] == names.KIND_VALIDATE
    assert run.tags[names.TAG_SOURCE_RUN] == trained.unvalidated
    summary = record.summary("raw", result.run_id or "")
    for name, value in (
        (names.INFLUENCE_LDS_SAME_SEED, summary.lds_same_seed),
        (names.INFLUENCE_LDS_OTHER_SEEDS, summary.lds_other_seeds),
        (names.INFLUENCE_LDS_SIBLINGS, summary.lds_siblings),
        (names.INFLUENCE_LDS_CEILING, summary.lds_ceiling),
        (f"{names.INFLUENCE_LDS_OTHER_SEEDS}/raw", summary.lds_other_seeds),
    ):
        assert run.metrics[name] == pytest.approx(value)
    folder = download_artifact(run.run_id, names.ARTIFACT_VALIDATION, tmp_path)
    assert read_validation(folder / names.VALIDATION_JSON) == record
    assert json.loads((folder / "chart.vl.json").read_text())["data"]["values"]
    assert "| siblings |" in (folder / "validation.md").read_text()

    explained = tracin(
        trained.unvalidated,
        "acquired_abnormality,location_of,experimental_model_of_disease",
        {"influence.score": "cosine"},
        output=tmp_path / "report",
    )
    expected = record.summary("cosine", run.run_id)
    assert explained.report.validation == expected
    assert expected.sentence in explained.table()
    head = read_head(ReportFiles(json=tmp_path / "report" / names.INFLUENCE_JSON))
    assert head.validation == expected

    monkeypatch.setattr(Examiner, "examine", _only_once(Examiner.examine))
    again = validate_influence(request_of(trained, tmp_path / "cells"))
    assert again.record == record


def _only_once(examine: Any) -> Any:
    """Allow the run's own model to be examined, and no retrained one."""
    calls = []

    def examined(self: Examiner, model: Any) -> Any:
        calls.append(model)
        assert len(calls) == 1, "a finished retraining was repeated"
        return examine(self, model)

    return examined


def test_training_again_with_nothing_dropped_gives_the_run(result: ValidationResult) -> None:
    assert result.record.largest_difference < 1e-3


def test_a_killed_command_goes_on_where_it_was(
    trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(trained, tmp_path / "cells", deletions=0, seeds=1)
    examine, calls = Examiner.examine, []

    def stops(self: Examiner, model: Any) -> Any:
        calls.append(model)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return examine(self, model)

    monkeypatch.setattr(Examiner, "examine", stops)
    with pytest.raises(KeyboardInterrupt):
        validate_influence(request)
    assert len(list((tmp_path / "cells").glob("*.npz"))) == 2
    calls.clear()
    calls += [None] * 4
    result = validate_influence(request)
    # The run's own model, and those that were missing: 8 retrainings, 2 were done.
    assert len(calls) - 4 == 1 + 8 - 2
    assert result.record.num_retrainings == 8
    assert not [run for run in search_runs(RunQuery(status="RUNNING")).runs]


def test_cells_of_another_choice_are_refused(trained: TrainedStore, tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / "identity.json").write_text('"other"')
    with pytest.raises(ConfigError, match="holds retrainings of another model"):
        validate_influence(request_of(trained, folder))


def test_too_many_hours_are_refused_before_anything_is_trained(
    trained: TrainedStore, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"more than --max-hours 1e-09; lower --subsets"):
        validate_influence(request_of(trained, tmp_path / "c", max_hours=1e-9), say=said.append)
    assert "retrainings (16 at once), about" in said[0]
    assert "expected half-width" in said[0]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": (0.95,)}, r"--drop 0\.95: expected shares"),
        ({"drop": (0.0,)}, r"--drop 0: expected shares"),
        ({"scores": ("best",)}, r"--scores best: no such form; expected raw, cosine"),
    ],
)
def test_wrong_choices_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ValidationRequest("run", **changes)


def test_command_line_says_what_is_wrong(trained: TrainedStore) -> None:
    runner = CliRunner()
    wrong = runner.invoke(cli, ["validate-influence", "--model", "x", "--drop", "half"])
    assert isinstance(wrong.exception, ConfigError)
    assert "--drop is 'half'" in str(wrong.exception)
    missing = runner.invoke(cli, ["validate-influence", "--model", "nosuchrun"])
    assert isinstance(missing.exception, TrackingError)
    assert "no run nosuchrun" in str(missing.exception)


def test_forms_are_those_of_the_configuration() -> None:
    assert {"raw", "cosine"} <= set(FORMS)


def test_summary_is_a_sentence() -> None:
    summary = ValidationSummary(
        run_id="r", form="raw", lds_same_seed=0.5, lds_other_seeds=0.347, lds_siblings=0.331,
        lds_ceiling=0.58,
    )  # fmt: skip
    assert summary.sentence == (
        "Tested: on this data this form predicts retraining with .35 (counting siblings .33, "
        "ceiling .58)."
    )
    same = ValidationSummary(run_id="r", form="raw", lds_same_seed=-0.02)
    assert same.sentence == "Tested: on this data this form predicts retraining with -.02."
    assert not ValidationSummary(run_id="r", form="raw").sentence
    assert str(Measured(mean=0.3471, half_width=0.04)) == "0.347 ± 0.040"
