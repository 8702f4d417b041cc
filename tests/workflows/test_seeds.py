"""`influence.seeds`: runs with other seeds are found or trained, and their mean is explained."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clew import names
from clew.config.load import flatten, from_mapping
from clew.config.schema import RunConfig
from clew.errors import ConfigError, DataError, Interrupted
from clew.link_prediction.sources import BUNDLED
from clew.runs import store
from clew.runs.reading.runs import find_run, read_config
from clew.runs.reading.search import run_meant
from clew.workflows.explaining import members
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.explaining.tracin import tracin
from clew.workflows.resume import find_resume_point
from clew.workflows.train import TrainResult, train
from tests.workflows.conftest import run_of
from tests.workflows.test_resume import interrupt
from tests.workflows.trained import small_config

LINES = (BUNDLED / "umls" / "test.txt").read_text().splitlines()
TEST = LINES[0].replace("\t", ",")
Trained = list[tuple[int, str]]
"""Seed of each training, and the run that it goes on with."""


def config_of(seed: int) -> RunConfig:
    return small_config(
        training__num_epochs=2, training__checkpoint_frequency=1, training__seed=seed
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tracking_store: Path) -> Trained:
    """Train members in this process, and return a list that says which."""
    done: Trained = []

    def train_here(
        config: RunConfig,
        *,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        resumes: str = "",
        **_: object,
    ) -> TrainResult:
        done.append((config.training.seed, resumes))
        if not resumes:
            return train(config, parent_run_id=parent_run_id, tags=tags)

        return train(
            lambda folder: find_resume_point(resumes, {}, folder),
            parent_run_id=parent_run_id,
            tags=tags,
        )

    monkeypatch.setattr(members, "train_in_child", train_here)
    return done


def test_only_missing_runs_are_trained_and_found_again(
    trained: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clew")
    first, second = run_of(config_of(7)), run_of(config_of(8))
    calls: list[tuple[int, int]] = []
    seeds = {"influence.seeds": 3}
    result = tracin(first, TEST, seeds, trained=lambda *done: calls.append(done))
    assert trained == [(9, "")]
    assert caplog.text.count("1 training run with other seeds to do") == 1
    assert calls == [(0, 1), (1, 1)]
    runs = result.report.model.runs
    assert runs[:2] == (first, second)
    tags = find_run(runs[2]).tags
    assert {tags[key] for key in (names.TAG_MEMBER_OF, MLFLOW_PARENT_RUN_ID)} == {first}
    own, other = (flatten(from_mapping(read_config(run))) for run in (first, runs[2]))
    assert {key for key in own if own[key] != other[key]} == {
        "training.seed",
        "tracking.run_name",
    }
    assert run_meant(names.NEWEST, names.KIND_TRAIN) == second

    again, named = tracin(first, TEST, seeds), tracin(",".join(runs), TEST, {})
    assert again.report.tests == named.report.tests == result.report.tests
    assert len(trained) == 1


def test_a_stopped_run_goes_on_and_finished_ones_are_kept(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, stopped = run_of(config_of(0)), interrupt(config_of(2))
    train_here = vars(members)["train_in_child"]

    def stop_third(config: RunConfig, **given: Any) -> TrainResult:
        if config.training.seed == 3:
            raise KeyboardInterrupt
        result: TrainResult = train_here(config, **given)
        return result

    seeds = {"influence.seeds": 4}
    with monkeypatch.context() as patch:
        patch.setattr(members, "num_cores", lambda: 1)
        patch.setattr(members, "train_in_child", stop_third)
        with pytest.raises(Interrupted):
            tracin(first, TEST, seeds)
    assert trained == [(1, ""), (2, stopped)]
    assert len(tracin(first, TEST, seeds).report.model.runs) == 4
    assert trained[2:] == [(3, "")]


def test_many_triples_are_explained_by_the_same_runs(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "triples.txt"
    path.write_text("\n".join(LINES[:2]) + "\n")
    request = BatchRequest(
        model=run_of(config_of(0)),
        test_triples=str(path),
        output_dir=tmp_path / "b",
        overrides={"influence.seeds": 2, "influence.top_k": 3},
    )
    assert batch_tracin(request).count("done") == 2
    assert trained == [(1, "")]
    assert batch_tracin(request).count("kept") == 2
    assert len(trained) == 1


def asking(run: str, other: str) -> dict[str, tuple[str, str, dict[str, object], type[Exception]]]:
    """Return what is refused: model, test triple, settings and error."""
    seeds: dict[str, object] = {"influence.seeds": 3}
    return {
        "an unknown name": (run, "nobody,causes,virus", seeds, DataError),
        "another number of runs": (f"{run},{other}", TEST, seeds, ConfigError),
        "a form of one run": (run, TEST, seeds | {"influence.score": "tuned"}, ConfigError),
        "no seed": (run, TEST, {"influence.seeds": 0}, ConfigError),
    }


def test_a_wrong_question_is_refused_before_anything_is_trained(trained: Trained) -> None:
    run, other = run_of(config_of(0)), run_of(config_of(1))
    for model, test, settings, error in asking(run, other).values():
        with pytest.raises(error):
            tracin(model, test, settings)
    MlflowClient(store.tracking_uri()).set_tag(run, f"{names.TAG_WARM_START}.source", "elsewhere")
    with pytest.raises(ConfigError, match="imported"):
        tracin(run, TEST, {"influence.seeds": 3})
    assert trained == []


@pytest.mark.slow
def test_members_are_trained_at_once_in_processes_of_their_own(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    chosen: Callable[..., int] = members._at_once

    def note(*given: Any) -> int:
        at_once.append(chosen(*given))
        return at_once[-1]

    monkeypatch.setattr(members, "_at_once", note)
    monkeypatch.setattr(members, "num_cores", lambda: 2)
    first = run_of(config_of(0))
    runs = tracin(first, TEST, {"influence.seeds": 3}).report.model.runs
    assert at_once == [2]
    assert {find_run(run).status for run in runs} == {"FINISHED"}
    seeds = [from_mapping(read_config(run)).training.seed for run in runs]
    assert seeds == [0, 1, 2]
