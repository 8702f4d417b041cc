"""The predicted memory of a step: against bytes counted by hand, and against a real step."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.training import memory_plan
from clew.training.live_bytes import LiveBytes
from clew.training.memory_plan import StepMemory, predict_step
from clew.workflows.tasks import build_task
from tests.image_sequences.sequence_files import sequence_columns, write_folder

CPU = torch.device("cpu")
DIM, CHANNELS, BATCH = 48, 8, 64


def config(**settings: Any) -> RunConfig:
    content: dict[str, Any] = {
        "data": {"name": "umls"},
        "model": {"embedding_dim": DIM, "output_channels": CHANNELS},
        "training": {"batch_size": BATCH},
    }
    return from_mapping(content, {k.replace("__", "."): v for k, v in settings.items()})


def predict(**settings: Any) -> StepMemory:
    chosen = config(**settings)
    return predict_step(chosen, build_task(chosen), CPU)


def test_live_bytes_are_those_of_tensors_that_somebody_holds() -> None:
    live = LiveBytes()
    with live:
        with live.making("kept"):
            kept = torch.zeros(1000)
        with live.making("passing"):
            passing = kept + 1.0
            del passing
            view = kept[10:]
        mark = len(live.changes)
        with live.making("late"):
            late = torch.zeros(10)
    del kept
    assert live.peak() == {"kept": 4000, "passing": 4000}
    assert live.peak(since=mark) == {"kept": 4000, "late": 40}, "the view keeps its storage"
    del view, late
    assert sum(change.num_bytes for change in live.changes) == 0


def test_weights_and_optimizer_state_are_counted_exactly() -> None:
    # Batch normalisation cancels a bias of the convolution: it has no gradient, and no moments.
    unbiased = {"model__convolution_bias": False}
    model = build_task(config(**unbiased)).build_model()
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    memory = predict(**unbiased)
    assert memory.weights == weights
    assert memory.optimizer == sum(2 * p.nbytes + 4 for p in model.parameters()), "and the step"
    assert predict(optimizer__kind="sgd").optimizer == 0
    averaged = predict(optimizer__kind="sgd", training__ema_decay=0.9)
    assert averaged.optimizer == sum(
        p.nbytes for p in build_task(config()).build_model().parameters()
    )


def test_no_weight_is_made_and_no_random_number_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    # 150 GiB of weights: fake, or this test would not end well.
    before = torch.get_rng_state()
    memory = predict(model__embedding_dim=2**28, model__kernel_height=1, model__kernel_width=1,
                     model__output_channels=1, model__embedding_height=2**14)  # fmt: skip
    assert memory.weights > 100 * 2**30
    assert torch.equal(torch.get_rng_state(), before)


def real_peak(chosen: RunConfig) -> int:
    """Return the bytes alive at the peak of a real second step, the trainer's own way."""
    from clew.training.memory import apply_gradient_checkpointing
    from clew.training.optimizer import build_optimizer
    from clew.training.precision import Precision, half_precision_type

    task = build_task(chosen)
    precision = Precision(half_precision_type(chosen.optimizations, CPU), CPU)
    batch = memory_plan._first_batch(chosen, task, 1)
    live = LiveBytes()
    with live:
        model = task.build_model().train()
        apply_gradient_checkpointing(model, enabled=chosen.optimizations.use_gradient_checkpointing)
        optimizer = build_optimizer(chosen.optimizer, model)
        for step in range(2):
            mark = len(live.changes) if step else 0
            with precision.autocast():
                loss = task.loss(model, batch)
            (loss.total / loss.count).backward()
            optimizer.step()
            del loss
            optimizer.zero_grad()
    gc.collect()
    return live.peak(since=mark).total()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizations__use_mixed_precision": True},
        {"optimizations__use_gradient_checkpointing": True},
        {"loss__implementation": "fused"},
        {"optimizer__kind": "adagrad"},
    ],
)
def test_the_fake_step_holds_what_a_real_one_holds(settings: dict[str, Any]) -> None:
    memory = predict(**settings)
    live = memory.total - memory.process - memory.allocator - memory.loader
    assert live == pytest.approx(real_peak(config(**settings)), rel=0.02)


def test_activations_grow_with_the_batch_and_weights_do_not() -> None:
    small, large = predict(), predict(training__batch_size=4 * BATCH)
    assert large.weights == small.weights
    made = [m.activations + m.backward + m.loss for m in (small, large)]
    assert made[1] > 3 * made[0]


def test_accumulation_holds_gradients_while_others_are_made() -> None:
    once = predict(training__batch_size=2)
    twice = predict(training__batch_size=2, training__gradient_accumulation=2)
    assert once.gradients + once.backward < twice.gradients + twice.backward


def test_workers_prepare_batches_ahead() -> None:
    alone, helped = predict(), predict(training__num_workers=2, training__prefetch_factor=3)
    order = 8 * len(build_task(config()).train_examples())
    assert helped.loader - order == 7 * (alone.loader - order)


def test_every_process_of_a_parallel_run_holds_a_flat_copy_of_its_gradients() -> None:
    chosen = config(training__batch_size=2)
    task = build_task(chosen)
    alone, both = (predict_step(chosen, task, CPU, world_size=n) for n in (1, 2))
    assert both.total - both.process > alone.total - alone.process


@pytest.mark.parametrize("recomputed", [False, True])
def test_image_sequences_are_planned_as_they_are_trained(tmp_path: Path, recomputed: bool) -> None:
    write_folder(tmp_path / "clouds", sequence_columns(frames_in_group=20))
    data = {"kind": "image_sequences", "path": str(tmp_path / "clouds"), "temporal_frames": 3}
    model = {"channels": [8, 16], "norm_groups": 4, "heads": 2, "patch_grid": [2, 2]}
    chosen = from_mapping(
        {
            "data": data | {"azimuth_scalars": ["azimuth"], "zenith_scalars": ["zenith"]},
            "model": {"kind": "sequence_regression"} | model,
            "loss": {"kind": "mae"},
            "training": {"batch_size": 8},
            "optimizations": {"use_gradient_checkpointing": recomputed},
        }
    )
    memory = predict_step(chosen, build_task(chosen), CPU)
    live = memory.total - memory.process - memory.allocator - memory.loader
    assert live == pytest.approx(real_peak(chosen), rel=0.05)


def test_a_task_of_another_kind_needs_no_code_of_its_own() -> None:
    chosen = config()
    memory = predict_step(chosen, _Sums(), CPU)
    assert memory.weights == 4 * 1_000_000
    assert memory.optimizer == 2 * memory.weights + 4
    assert memory.activations == 3 * memory.weights


class _Sums:
    """A task unlike the others: one weight, three rows, no data."""

    def train_examples(self) -> "_Sums":
        return self

    def __len__(self) -> int:
        return 3

    def batch(self, indices: Any) -> "_Rows":
        return _Rows()

    def build_model(self) -> nn.Module:
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(1_000_000))
        model.forward = _rows_times_weight(model)  # type: ignore[method-assign]
        return model

    def loss(self, model: nn.Module, batch: "_Rows") -> Any:
        from clew.training.task import LossSum

        return LossSum(model(batch.rows).square().sum(), batch.count)


def _rows_times_weight(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows * model.weight


class _Rows:
    num_examples = count = 3

    def __init__(self) -> None:
        self.rows = torch.ones(3, 1)

    def to(self, device: torch.device) -> "_Rows":
        return self
