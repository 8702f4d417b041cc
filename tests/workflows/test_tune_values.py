"""A trial whose metric is not a finite number is reported as failed, and is never the best."""

import math
import time
from pathlib import Path

import optuna
import pytest

from clew.config.load import from_mapping
from clew.runs.base import Tracker
from clew.workflows.trials import TrialRecord, TrialStudy
from clew.workflows.tune import Search, TuneRequest


@pytest.fixture
def search(tmp_path: Path) -> Search:
    config = from_mapping({"data": {"name": "umls"}})
    study = TrialStudy(optuna.create_study(direction="minimize"), {}, 0)
    return Search(
        TuneRequest(config=config),
        study,
        Tracker(),
        tmp_path,
        0.0,
        time.monotonic,
        say=lambda line: None,
        progress=lambda seconds, found: None,
        nodes=None,
    )


@pytest.mark.parametrize("state", ["complete", "pruned"])
def test_a_trial_without_a_value_is_told_as_failed(search: Search, state: str) -> None:
    record = TrialRecord(3, state, {"a": 1}, None, 1)  # type: ignore[arg-type]
    line = search._line(record, is_best=False)
    assert line.startswith("[trial 3] failed, valid/")
    assert line.endswith("is not finite: a=1")


def test_no_infinite_value_is_the_best(search: Search) -> None:
    study = search.study
    for value in (math.inf, 0.5):
        study.study.tell(study.study.ask(), value)
    assert study.best is not None
    assert study.best.value == 0.5
