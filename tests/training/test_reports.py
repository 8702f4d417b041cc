"""Lines about a training: one for each validation, and one whenever nothing was said for long."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from clew.errors import Interrupted
from clew.training import progress as progress_module
from clew.training import reports as reports_module
from clew.training import trainer as trainer_module
from clew.training.manifest import list_checkpoints
from clew.training.reports import Reports
from tests.training.test_resume import metric_curve, state_of

METRIC = "valid/mrr"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="clew")
    return caplog


def said(log: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in log.records if line.name == reports_module.__name__]


def test_each_validation_has_a_line_with_the_metric_that_decides(
    make_trainer: Any, toy_task: Any, log: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(toy_task(scores=[0.5, 0.25, 0.75]))
    trainer.reports = Reports(speaks=True)
    trainer.train()
    first, second, third = said(log)
    assert [f"{METRIC} {value}" in line for value, line in ((0.5, first), (0.75, third))]
    assert f"{METRIC} 0.25 (best 0.5)" in second
    assert all("GiB" in line and "loss" in line for line in said(log))


def test_the_last_line_says_that_training_stops_early(
    make_trainer: Any, toy_task: Any, log: pytest.LogCaptureFixture
) -> None:
    settings = {"training.early_stopping_patience": 1, "training.num_epochs": 9}
    trainer = make_trainer(toy_task(scores=[0.5, 0.75, 0.25]), **settings)
    trainer.reports = Reports(speaks=True)
    trainer.train()
    *before, last = said(log)
    assert "early" in last
    assert not any("early" in line for line in before)


@pytest.mark.parametrize("reports", [Reports(speaks=False), Reports(speaks=True, is_part=True)])
def test_other_processes_and_parts_of_a_study_say_nothing_of_validations(
    make_trainer: Any, log: pytest.LogCaptureFixture, reports: Reports
) -> None:
    trainer = make_trainer()
    trainer.reports = reports
    trainer.train()
    assert said(log) == []


@pytest.mark.parametrize("is_part", [False, True])
def test_only_a_run_of_its_own_says_what_to_look_at_in_the_data(
    make_trainer: Any, log: pytest.LogCaptureFixture, is_part: bool
) -> None:
    reports = Reports(speaks=True, is_part=is_part)
    reports.begin(make_trainer(), "90 triples", ["symmetric relations: 3"], "a dashboard")
    assert [line for line in said(log) if "symmetric relations: 3" in line] == said(log)[1:2]
    assert bool(said(log)) is not is_part


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("is_part", [False, True])
def test_a_silence_ends_even_during_a_long_step(
    make_trainer: Any, toy_task: Any, monkeypatch: pytest.MonkeyPatch, is_part: bool
) -> None:
    monkeypatch.setattr(reports_module, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(reports_module, "BAR_SECONDS", 0.001)
    spoke, spoke_of_step = threading.Event(), threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            spoke.set()
            if "epoch 0.4 of 3" in record.getMessage():
                spoke_of_step.set()

    task = toy_task()
    compute = task.loss

    def long_step(model: Any, batch: Any) -> Any:
        if len(task.losses) == 2:
            assert spoke_of_step.wait(60), "nothing was said while the step lasted"
        return compute(model, batch)

    task.loss = long_step
    logger, listener = logging.getLogger(reports_module.__name__), Listener()
    logger.addHandler(listener)
    try:
        with Reports(speaks=True, is_part=is_part) as reports:
            assert spoke.wait(60), "reading the data is not silent either"
            trainer = make_trainer(task)
            trainer.reports = reports
            trainer.train()
    finally:
        logger.removeHandler(listener)


def require_nothing_lost(stopped: Any, whole: Any, resumed: Callable[[], Any]) -> None:
    """Compare a whole run with one that goes on from where another stopped."""
    whole.train()
    then = resumed()
    then.checkpointer.resumable.restore(newest_of(stopped).path)
    then.train()
    for name, tensor in state_of(whole).items():
        assert torch.equal(tensor, state_of(then)[name]), name
    assert metric_curve(then) == metric_curve(whole)


def newest_of(trainer: Any) -> Any:
    return list_checkpoints(trainer.checkpointer.folder / "checkpoints")[-1]


SETTINGS = {"training__ema_decay": 0.7, "schedule__kind": "warmup_cosine"}


def test_a_signal_ends_a_validation_and_loses_nothing(make_trainer: Any, toy_task: Any) -> None:
    def task() -> Any:
        return toy_task(dropout=0.3, batch_norm=True)

    stopped = make_trainer(stopping := task(), **SETTINGS)
    measure = stopping.metrics

    def metrics(*arguments: Any) -> dict[str, float]:
        if len(stopping.losses) == 10:  # five batches an epoch
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the validation goes on")
        return measure(*arguments)  # type: ignore[no-any-return]

    stopping.metrics = metrics
    with pytest.raises(Interrupted):
        stopped.train()
    assert newest_of(stopped).step == 10
    whole = make_trainer(task(), **SETTINGS)
    require_nothing_lost(stopped, whole, lambda: make_trainer(task(), **SETTINGS))


def test_a_signal_undoes_a_long_step_and_loses_nothing(
    make_trainer: Any, toy_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "STEP_SECONDS", 0.01)

    def task() -> Any:
        return toy_task(dropout=0.3, batch_norm=True)

    stopped = make_trainer(stopping := task(), **SETTINGS)
    compute = stopping.loss

    def loss(model: Any, batch: Any) -> Any:
        result = compute(model, batch)  # it has drawn a mask and changed the statistics
        if len(stopping.losses) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()  # a step that lasts for hours
        return result

    stopping.loss = loss
    with pytest.raises(Interrupted):
        stopped.train()
    assert newest_of(stopped).step == 6
    whole = make_trainer(task(), **SETTINGS)
    require_nothing_lost(stopped, whole, lambda: make_trainer(task(), **SETTINGS))
