"""The command that tests explanations: measures, resumption, refusals, and display."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from clew import names
from clew.cli import cli
from clew.config.services import ValidationRequest
from clew.errors import CheckpointError, ConfigError
from clew.influence.outcomes import Examiner
from clew.link_prediction.sources import BUNDLED
from clew.runs.reading.reports import ReportFiles, read_head
from clew.runs.reading.runs import download_artifact, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import Label, Measured, ValidationRecord
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.tracin import tracin
from clew.workflows.explaining.validate_influence import (
    ValidationResult,
    validate_influence,
)
from clew.workflows.explaining.validation_plan import (
    FORMS,
    ValidationPlan,
    choose_tests,
    plan_experiment,
)
from clew.workflows.train import train
from tests.workflows.trained import TrainedStore, small_config

pytestmark = pytest.mark.slow
TRIPLE = "acquired_abnormality,location_of,experimental_model_of_disease"


def request_of(store: TrainedStore, folder: Path, **changes: Any) -> ValidationRequest:
    small = ValidationRequest(
        model=store.unvalidated,
        subsets=3,
        seeds=2,
        drop=(0.5,),
        tests=6,
        deletions=1,
        scores=("raw", "cosine"),
        output_dir=folder,
    )
    return small.model_copy(update=changes)


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
    for name, value in (
        (f"{names.INFLUENCE_LDS_SAME_SEED}/raw", record.score("raw", "same")),
        (names.INFLUENCE_LDS_SIBLINGS, record.score("siblings", "other")),
        (f"{names.INFLUENCE_LDS_OTHER_SEEDS}/raw", record.score("raw", "other")),
    ):
        assert value is not None
        assert run.metrics[name] == pytest.approx(value.correlation.mean)
    assert run.metrics[names.INFLUENCE_LDS_CEILING] == record.summary("raw", "").ceiling
    folder = download_artifact(run.run_id, names.ARTIFACT_VALIDATION, tmp_path)
    kept = (folder / names.VALIDATION_JSON).read_bytes()
    assert ValidationRecord.model_validate_json(kept) == record
    assert "| siblings |" in (folder / "validation.md").read_text()

    explained = tracin(
        trained.unvalidated,
        TRIPLE,
        {"influence.score": "cosine"},
        output=tmp_path / "report",
    )
    expected = record.summary("cosine", run.run_id)
    assert explained.report.validation == expected
    assert explained.report.label.verdict == "too few to say"
    assert explained.report.label.sentence in explained.table()
    written = json.loads((tmp_path / "report" / names.INFLUENCE_JSON).read_text())
    assert written["label"] == TypeAdapter(Label).dump_python(explained.report.label)
    layers = {"influence.score": "cosine", "influence.use_last_layers_only": True}
    for other in ({"influence.score": "raw", "influence.direction": "head"}, layers):
        assert tracin(trained.unvalidated, TRIPLE, other).report.label.verdict == "not tested"
    head = read_head(ReportFiles(json=tmp_path / "report" / names.INFLUENCE_JSON))
    assert head.validation == expected

    monkeypatch.setattr(Examiner, "examine", _only_once(Examiner.examine))
    again = validate_influence(request_of(trained, tmp_path / "cells"))
    assert again.record == record


def _only_once(examine: Any) -> Any:
    """Allow one examination, that of the run's own model, and none of retrained models."""
    calls = []

    def examined(self: Examiner, model: Any) -> Any:
        calls.append(model)
        assert len(calls) == 1, "a finished retraining was repeated"
        return examine(self, model)

    return examined


def test_training_again_with_nothing_dropped_gives_the_run(
    result: ValidationResult, tmp_path: Path
) -> None:
    models = [
        np.load(path)["log_probability"] for path in sorted((tmp_path / "cells").glob("*.npz"))
    ]
    apart = [abs(one - other).max() for one, other in itertools.combinations(models, 2)]
    # Sums in another order move a model a little, on each processor in its own way; other
    # facts or another seed move it many times as far.
    assert result.record.largest_difference < min(apart) / 10


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
    # The run's own model and the missing retrainings: 2 of 8 were done before.
    assert len(calls) - 4 == 1 + 8 - 2
    assert result.record.num_retrainings == 8
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=trained.unvalidated)
    assert [run.status for run in search_runs(query, limit=2).runs] == ["FINISHED", "KILLED"]
    assert not [run for run in search_runs(RunQuery(status="RUNNING")).runs]


def test_retrainings_of_other_subsets_are_not_taken_for_finished_ones(
    trained: TrainedStore, tmp_path: Path
) -> None:
    small = request_of(trained, tmp_path / "cells", deletions=0, seeds=0, scores=("raw",))
    validate_influence(small)
    said: list[str] = []
    validate_influence(small, say=said.append)
    assert said[0].startswith("0 retrainings")
    more = small.model_copy(update={"subsets": 4})
    with pytest.raises(ConfigError, match=r"^4 .*--max-hours 1e-09"):
        validate_influence(more.model_copy(update={"max_hours": 1e-9}))
    validate_influence(more, say=said.append)
    assert said[1].startswith("4 retrainings"), "four subsets; nothing dropped is there already"


def test_deletions_say_how_many_triples_they_are_of(
    trained: TrainedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="clew")
    request = request_of(trained, tmp_path, subsets=2, seeds=1, deletions=6, scores=("raw",))
    found = validate_influence(request).record.num_deletions
    assert found is not None
    assert found < request.deletions
    (warned,) = (record for record in caplog.records if record.module == "validation_plan")
    assert warned.args == ((found, request.deletions) if found else ())


def test_cells_of_another_choice_are_refused(trained: TrainedStore, tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / "identity.json").write_text('"other"')
    with pytest.raises(ConfigError, match=r"--output-dir .*cells"):
        validate_influence(request_of(trained, folder))


def test_a_folder_of_other_files_is_refused_before_time_is_estimated(
    trained: TrainedStore, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("notes")
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"--output-dir "):
        validate_influence(request_of(trained, tmp_path), say=said.append)
    assert said == []


def test_too_many_hours_are_refused_before_anything_is_trained(
    trained: TrainedStore, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"--max-hours 1e-09.*--subsets"):
        validate_influence(request_of(trained, tmp_path / "c", max_hours=1e-9), say=said.append)
    assert "retrainings (16 at once), about" in said[0]
    assert not (tmp_path / "c").exists()


def test_command_line_says_what_is_wrong(trained: TrainedStore) -> None:
    runner = CliRunner()
    for option, value in (("--drop", "0,half"), ("--drop", "0.95"), ("--scores", "best,raw")):
        wrong = runner.invoke(cli, ["validate-influence", "--model", "x", option, value])
        assert isinstance(wrong.exception, ConfigError)
        assert f"{option} is '{value.partition(',')[0]}'" in str(wrong.exception)
    missing = runner.invoke(cli, ["validate-influence", "--model", "nosuchrun"])
    assert isinstance(missing.exception, CheckpointError)
    assert "no run nosuchrun" in str(missing.exception)


def test_forms_are_those_of_the_configuration() -> None:
    assert {"raw", "cosine"} <= set(FORMS)


def test_a_measure_has_its_interval_beside_it() -> None:
    assert str(Measured(mean=0.3471, half_width=0.04)) == "0.347 ± 0.040"


def planned(request: ValidationRequest) -> ValidationPlan:
    """Return the planned retrainings, and the scores to test."""
    with open_trace_source(request.model, request.settings) as source:
        graph = source.task.graph
        tests = choose_tests(graph.test, request.tests)
        examiner = Examiner(graph, source.model.config, tests)
        trained = examiner.examine(source.tracer.models[-1])
        return plan_experiment(request.model_copy(update={"deletions": 0}), source, tests, trained)


def test_an_ensemble_is_tested_as_one(trained: TrainedStore, tmp_path: Path) -> None:
    seed = small_config().training.seed
    twin = train(small_config(training__seed=seed + 1)).run_id or ""
    both = f"{trained.strong},{twin}"
    request = request_of(trained, tmp_path / "cells", model=both, scores=("cosine",), seeds=1)

    of_both = planned(request)
    assert of_both.other_seeds == (seed + 2,)
    each = [
        planned(request.model_copy(update={"model": run})).forms["cosine"]
        for run in (trained.strong, twin)
    ]
    np.testing.assert_allclose(of_both.forms["cosine"], np.mean(each, axis=0), atol=1e-6)

    record = validate_influence(request.model_copy(update={"deletions": 0})).record
    assert record.ensemble == (trained.strong, twin)
    score = {"influence.score": "cosine"}
    assert tracin(both, TRIPLE, score).report.validation == record.summary(
        "cosine", find_newest(names.KIND_VALIDATE)
    )
    assert tracin(trained.strong, TRIPLE, score).report.validation is None


def find_newest(kind: str) -> str:
    return search_runs(RunQuery(kind=kind), limit=1).runs[0].run_id


@pytest.mark.parametrize("form", ["unrolled", "tuned"])
def test_costly_forms_are_tested_where_they_are_asked_for(
    trained: TrainedStore, tmp_path: Path, form: str
) -> None:
    request = request_of(trained, tmp_path, model=trained.strong, scores=(form,), tests=2, seeds=0)
    plan = planned(request)
    triple = (BUNDLED / "umls" / "test.txt").read_text().splitlines()
    place = np.random.default_rng(0).permutation(len(triple))[0]
    settings = {"influence.score": form, "influence.top_k": 3}
    (explained,) = tracin(trained.strong, triple[place].replace("\t", ","), settings).report.tests
    strongest = np.sort(plan.forms[form][0])[::-1][:3]
    assert [entry.influence for entry in explained.proponents] == pytest.approx(strongest.tolist())


def test_unrolled_of_an_average_is_refused(trained: TrainedStore, tmp_path: Path) -> None:
    averaged = train(small_config(training__ema_decay=0.9, training__num_epochs=1)).run_id or ""
    request = request_of(trained, tmp_path, model=averaged, scores=("unrolled",), tests=2)
    with pytest.raises(ConfigError, match=r"unrolled.*training\.ema_decay"):
        planned(request)
    settings = {"influence.tuning_epochs": 1, "influence.tuning_seeds": 1}
    tuned = tracin(averaged, TRIPLE, settings | {"influence.score": "tuned"})
    assert names.NOT_OF_THE_AVERAGE in tuned.table()
    small = {"subsets": 2, "seeds": 0, "scores": ("raw",), "deletions": 0}
    assert names.NOT_OF_THE_AVERAGE in validate_influence(request.model_copy(update=small)).table()


def test_a_model_that_ranks_no_triple_first_has_no_deletions(
    trained: TrainedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="clew")
    request = request_of(trained, tmp_path, tests=2, scores=("raw",), deletions=2)
    with open_trace_source(request.model, request.settings) as source:
        tests = choose_tests(source.task.graph.test, request.tests)
        examiner = Examiner(source.task.graph, source.model.config, tests)
        found = examiner.examine(source.tracer.models[-1])
        worse = replace(found, rank=found.rank + 1.0)
        assert not plan_experiment(request, source, tests, worse).deletions
    (record,) = caplog.records
    assert "only 0" not in record.getMessage()
