"""The loop: accumulation, clipping, overflow, early stopping, best checkpoint, learning rates."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from clew.errors import ConfigError, NonFiniteLossError
from clew.training.manifest import list_checkpoints, read_manifest
from clew.training.trainer import Trainer
from tests.training.plain_order import epoch_order

EPOCH = "train/epoch"


def parameters_of(trainer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def series(trainer: Any, key: str) -> list[float]:
    return [v for k, v, _ in trainer.history.tracker.metric_values if k == key]


def test_accumulated_microbatches_equal_one_large_batch_with_a_ragged_tail(
    make_trainer: Any,
) -> None:
    common = {"optimizer__kind": "sgd", "optimizer__learning_rate": 0.1}
    large = make_trainer(training__batch_size=20, **common)
    small = make_trainer(training__batch_size=5, training__gradient_accumulation=4, **common)
    large.train()
    small.train()
    assert large.progress.step == small.progress.step == 6  # 37 examples: windows of 20 and 17
    for a, b in zip(parameters_of(large), parameters_of(small), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_tail_of_one_example_joins_the_batch_before_it(make_trainer: Any, toy_task: Any) -> None:
    trainer = make_trainer(toy_task(num_examples=17, batch_norm=True), training__batch_size=8)
    trainer.train()
    assert trainer.progress.step == 2 * 3


def test_every_example_is_seen_once_an_epoch(make_trainer: Any, toy_task: Any) -> None:
    task = toy_task()
    make_trainer(task, training__num_epochs=2, evaluation__enabled=False).train()
    assert sorted(task.examples.drawn) == sorted(list(range(37)) * 2)


def test_the_loss_falls(make_trainer: Any) -> None:
    trainer = make_trainer(training__num_epochs=40, optimizer__learning_rate=0.03)
    trainer.train()
    losses = series(trainer, "train/loss")
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


def test_the_epochs_done_are_logged_as_a_fraction(make_trainer: Any) -> None:
    settings = {"training__batch_size": 10, "training__log_every_steps": 3}
    trainer = make_trainer(training__num_epochs=3, training__max_steps=10, **settings)
    trainer.train()  # four batches an epoch
    found = [(v, step) for k, v, step in trainer.history.tracker.metric_values if k == EPOCH]
    assert found == [(0.75, 3), (1.0, 4), (1.5, 6), (2.0, 8), (2.25, 9), (2.5, 10)]


def test_clipping_logs_the_norm_before_it_and_moves_no_further_than_the_limit(
    make_trainer: Any,
) -> None:
    trainer = make_trainer(
        training__max_grad_norm=1e-3,
        training__max_steps=1,
        optimizer__kind="sgd",
        optimizer__learning_rate=1.0,
    )
    before = parameters_of(trainer)
    trainer.train()
    moved = math.sqrt(
        sum(
            float((a - b).square().sum())
            for a, b in zip(before, parameters_of(trainer), strict=True)
        )
    )
    assert series(trainer, "train/grad_norm")[0] > 0.1
    assert moved == pytest.approx(1e-3, rel=1e-3)


def test_clipping_happens_after_unscaling(make_trainer: Any) -> None:
    """With a scale of 65,536, clipping scaled gradients would shrink the step by this factor."""
    settings = {
        "training__max_grad_norm": 1e6,
        "training__max_steps": 1,
        "optimizer__kind": "sgd",
        "optimizer__learning_rate": 0.1,
    }
    plain = make_trainer(**settings)
    half = make_trainer(
        optimizations__use_mixed_precision=True,
        optimizations__mixed_precision_dtype="float16",
        **settings,
    )
    plain.train()
    half.train()
    norm = series(plain, "train/grad_norm")[0]
    assert series(half, "train/grad_norm")[0] == pytest.approx(norm, rel=0.01)


def test_a_non_finite_loss_stops_before_the_step_and_names_the_examples(
    make_trainer: Any, toy_task: Any
) -> None:
    trainer = make_trainer(toy_task(poison=11), training__batch_size=37, evaluation__enabled=False)
    before = parameters_of(trainer)
    with pytest.raises(NonFiniteLossError):
        trainer.train()
    for a, b in zip(before, parameters_of(trainer), strict=True):
        assert torch.equal(a, b)


def on_a_slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep losses on the device until they are logged, as on a GPU."""
    monkeypatch.setattr(Trainer, "_losses_are_at_hand", False)


@pytest.mark.parametrize("every_steps", [None, 3])
def test_a_non_finite_loss_that_is_read_late_is_kept_nowhere_and_names_its_step(
    make_trainer: Any,
    toy_task: Any,
    monkeypatch: pytest.MonkeyPatch,
    every_steps: int | None,
) -> None:
    on_a_slow_device(monkeypatch)
    trainer = make_trainer(
        toy_task(poison=11),
        training__log_every_steps=1000,
        training__checkpoint_every_steps=every_steps,
    )
    order = epoch_order(37, seed=trainer.settings.seed, epoch=0).tolist()
    step = order.index(11) // 8
    examples = re.escape(str(order[8 * step : 8 * step + 8]))
    message = rf"the loss is nan at step {step} \(epoch 1, examples {examples}\); no checkpoint was"
    with pytest.raises(NonFiniteLossError, match=message):
        trainer.train()
    kept = list_checkpoints(trainer.checkpointer.folder / "checkpoints")
    assert all(record.step <= step for record in kept)
    assert not trainer.checkpointer.best.exists()
    assert series(trainer, "train/loss") == series(trainer, "valid/mrr") == []


def test_when_losses_are_read_changes_none_of_them(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "training__log_every_steps": 4,
        "training__checkpoint_every_steps": 3,
        "training__gradient_accumulation": 2,
    }
    at_once = make_trainer(**settings)
    at_once.train()
    on_a_slow_device(monkeypatch)
    late = make_trainer(**settings)
    late.train()
    assert series(late, "train/loss") == series(at_once, "train/loss")
    assert len(series(late, "train/loss")) == 5


def test_a_float16_overflow_skips_the_step_halves_the_scale_and_is_counted(
    make_trainer: Any,
) -> None:
    trainer = make_trainer(
        optimizations__use_mixed_precision=True,
        optimizations__mixed_precision_dtype="float16",
        training__max_steps=2,
        schedule__kind="warmup_cosine",
    )
    scale = trainer.precision.loss_scale
    parameter = next(trainer.model.parameters())
    injected = parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = parameters_of(trainer)
    window = [trainer.task.train_examples().batch(np.arange(8))]
    trainer._step(window)
    for a, b in zip(before, parameters_of(trainer), strict=True):
        assert torch.equal(a, b)
    assert trainer.precision.loss_scale == scale / 2
    assert trainer.progress.step == 0, "a skipped step must not move the schedule"
    assert trainer.progress.learning_rate_weight == 0.0
    assert series(trainer, "train/skipped_steps") == [1.0]
    injected.remove()
    trainer._step(window)
    assert trainer.progress.step == 1
    assert trainer.progress.skipped_in_a_row == 0


def test_overflowing_for_ever_is_not_silent(make_trainer: Any) -> None:
    trainer = make_trainer(
        optimizations__use_mixed_precision=True,
        optimizations__mixed_precision_dtype="float16",
        training__max_skipped_steps=3,
    )
    next(trainer.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NonFiniteLossError):
        trainer.train()


def test_an_overflow_behind_a_finite_loss_never_reaches_a_checkpoint(make_trainer: Any) -> None:
    trainer = make_trainer(training__max_steps=1, evaluation__enabled=False)
    next(trainer.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteLossError, match=r"first\.weight"):
        trainer.train()
    assert not list_checkpoints(trainer.checkpointer.folder / "checkpoints")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_checkpoint_holds_a_number_that_is_none(make_trainer: Any, value: float) -> None:
    trainer = make_trainer()
    with torch.no_grad():
        next(trainer.model.parameters()).view(-1)[-1] = value
    with pytest.raises(NonFiniteLossError, match=r"first\.weight"):
        trainer.checkpointer.write("epoch-0001")
    assert not list_checkpoints(trainer.checkpointer.folder / "checkpoints")


def test_the_best_checkpoint_ignores_nan_and_ties_keep_the_earlier(
    make_trainer: Any, toy_task: Any
) -> None:
    task = toy_task(scores=[0.3, float("nan"), 0.5, 0.5, 0.4])
    trainer = make_trainer(task, training__num_epochs=5)
    trainer.train()
    best = read_manifest(trainer.checkpointer.best)
    assert best.epoch == 3
    assert best.metrics == {"valid/mrr": 0.5}
    assert trainer.history.tracker.artifacts == ["best", "best"], (
        "after the first epoch and the third"
    )


def test_early_stopping_counts_evaluations_without_improvement(
    make_trainer: Any, toy_task: Any
) -> None:
    task = toy_task(scores=[0.3, 0.5, 0.4, 0.5, 0.45, 0.9])
    trainer = make_trainer(task, training__num_epochs=6, training__early_stopping_patience=3)
    trainer.train()
    assert trainer.progress.epoch == 5
    assert list_checkpoints(trainer.checkpointer.folder / "checkpoints")[-1].epoch == 5


def test_a_metric_that_validation_does_not_give_is_an_error_that_lists_them(
    make_trainer: Any,
) -> None:
    trainer = make_trainer(evaluation__metric="valid/hits_at_1")
    with pytest.raises(ConfigError, match="'valid/hits_at_1'"):
        trainer.train()


def test_checkpoints_carry_the_sum_of_rates_over_counts_since_the_one_before(
    make_trainer: Any,
) -> None:
    trainer = make_trainer(
        optimizer__kind="sgd",
        optimizer__momentum=0.5,
        schedule__kind="warmup_cosine",
        training__checkpoint_frequency=2,
        training__num_epochs=3,
        evaluation__enabled=False,
    )
    weights: list[float] = []
    original = trainer.progress.count_step

    def spy(*, rate: float, count: float, momentum: float) -> None:
        weights.append(rate / count / (1 - 0.5))
        original(rate=rate, count=count, momentum=momentum)

    trainer.progress.count_step = spy
    trainer.train()
    records = list_checkpoints(trainer.checkpointer.folder / "checkpoints")
    assert [r.epoch for r in records] == [2, 3]
    assert records[0].learning_rate_weight == pytest.approx(sum(weights[:10]), rel=1e-12)
    assert records[1].learning_rate_weight == pytest.approx(sum(weights[10:]), rel=1e-12)


@pytest.mark.parametrize("every", [None, 1, 3, 4, 5])
@pytest.mark.parametrize(
    ("limits", "last"),
    [({}, 15), ({"training__max_steps": 12}, 12), ({"training__max_steps": 10}, 10)],
    ids=["last epoch", "in mid-epoch", "at the end of an epoch"],
)
def test_no_weight_is_lost_however_training_ends(
    make_trainer: Any, every: int | None, limits: dict[str, int], last: int
) -> None:
    trainer = make_trainer(training__checkpoint_every_steps=every, **limits)
    total = 0.0
    original = trainer.progress.count_step

    def spy(*, rate: float, count: float, momentum: float) -> None:
        nonlocal total
        total += rate / count
        original(rate=rate, count=count, momentum=momentum)

    trainer.progress.count_step = spy
    trainer.train()
    records = list_checkpoints(trainer.checkpointer.folder / "checkpoints")
    steps = [record.step for record in records]
    assert steps == sorted(
        {*range(5, last + 1, 5), *range(every or last, last + 1, every or 1), last}
    )
    assert [record.previous_step for record in records] == [0, *steps[:-1]]
    assert all(record.learning_rate_weight > 0 for record in records)
    assert sum(r.learning_rate_weight for r in records) == pytest.approx(total, rel=1e-12)
    assert read_manifest(trainer.checkpointer.best).learning_rate_weight > 0


def test_max_steps_ends_inside_an_epoch_with_a_checkpoint(make_trainer: Any) -> None:
    trainer = make_trainer(training__max_steps=7, training__num_epochs=10)
    trainer.train()
    assert trainer.progress.step == 7
    names = [r.path.name for r in list_checkpoints(trainer.checkpointer.folder / "checkpoints")]
    assert names == ["epoch-0001", "step-00000007"]


def test_checkpoints_by_steps(make_trainer: Any) -> None:
    trainer = make_trainer(
        training__checkpoint_every_steps=4, training__checkpoint_frequency=0, training__num_epochs=2
    )
    trainer.train()
    names = [r.path.name for r in list_checkpoints(trainer.checkpointer.folder / "checkpoints")]
    assert names == ["step-00000004", "step-00000008", "epoch-0002"]


def test_the_learning_rate_is_logged_for_each_optimizer_step(make_trainer: Any) -> None:
    trainer = make_trainer(schedule__kind="warmup_cosine", schedule__warmup_fraction=0.4)
    trainer.train()
    rates = [
        (step, v)
        for k, v, step in trainer.history.tracker.metric_values
        if k == "train/learning_rate"
    ]
    assert [step for step, _ in rates] == list(range(1, 16))
    peak = max(v for _, v in rates)
    assert peak == pytest.approx(1e-3)
    assert rates[5][1] == peak, "40 % of 15 steps of warm-up end at the sixth step"


def test_saved_state_is_json_and_safetensors_only(make_trainer: Any) -> None:
    trainer = make_trainer(training__num_epochs=1)
    trainer.train()
    folder = trainer.checkpointer.folder / "checkpoints" / "epoch-0001"
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "training.json",
        "training.safetensors",
    }
    json.loads((folder / "training.json").read_text())
