"""The predicted memory of a step against torch's count, a real step, and the batch size."""

import gc
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.config.services import DataSizes
from clew.errors import OutOfMemoryError
from clew.training import memory_plan
from clew.training.memory import apply_gradient_checkpointing
from clew.training.memory_plan import (
    LiveBytes,
    MemoryPlanner,
    StepMemory,
    TookTooLong,
    live_bytes_of_step,
)
from clew.training.optimizer import build_optimizer
from clew.training.precision import Precision, half_precision_type
from clew.training.task import LossSum, Task
from clew.workflows.memory_guard import explaining_lack_of_memory
from clew.workflows.plan import task_to_plan
from clew.workflows.subjects import build_task
from tests.image_sequences.sequence_files import sequence_columns, write_folder

CPU = torch.device("cpu")
DIM, CHANNELS, BATCH = 48, 8, 64
GIB = 2**30


def config(**settings: Any) -> RunConfig:
    content: dict[str, Any] = {
        "data": {"name": "umls"},
        "model": {"embedding_dim": DIM, "output_channels": CHANNELS},
        "training": {"batch_size": BATCH},
    }
    return from_mapping(content, {k.replace("__", "."): v for k, v in settings.items()})


def images(**settings: Any) -> RunConfig:
    model = {"channels": [8, 16], "norm_groups": 4, "heads": 2, "patch_grid": [2, 2]}
    content: dict[str, Any] = {
        "data": {"kind": "image_sequences", "path": "nowhere", "temporal_frames": 3},
        "model": {"kind": "sequence_regression"} | model,
        "loss": {"kind": "mae"},
    }
    return from_mapping(content, {k.replace("__", "."): v for k, v in settings.items()})


def text(**settings: Any) -> RunConfig:
    content = {
        "data": {"kind": "tokens", "packed": "nowhere", "tokenizer": "bpe"},
        "model": {"kind": "eigenstate_lm", "preset": "small_32k"},
    }
    return from_mapping(content, {k.replace("__", "."): v for k, v in settings.items()})


def planned(chosen: RunConfig, sizes: DataSizes) -> Task[Any]:
    return task_to_plan(chosen, sizes)[0]


def peak(live: LiveBytes) -> Counter[str]:
    return max(live.peaks.values(), key=Counter.total)


def predict(**settings: Any) -> dict[str, float]:
    chosen = config(**settings)
    return MemoryPlanner(build_task(chosen), CPU).predict(chosen).parts_gib


def test_a_trial_of_too_many_operations_ends() -> None:
    chosen = config()
    with pytest.raises(TookTooLong):
        live_bytes_of_step(chosen, build_task(chosen), CPU, most=0)


def test_live_bytes_are_those_of_tensors_that_somebody_holds() -> None:
    live = LiveBytes()
    with live:
        with live.making("kept"):
            kept = torch.zeros(1000)
        with live.making("passing"):
            passing = kept + 1.0
            del passing
            view = kept[10:]
        assert peak(live) == {"kept": 4000, "passing": 4000}
        live.peaks.clear()
        with live.making("late"):
            late = torch.zeros(10)
    del kept
    assert +peak(live) == {"kept": 4000, "late": 40}, "the view keeps its storage"
    del view, late
    assert live.now.total() == 0


def test_a_tensor_is_counted_for_what_it_serves_now() -> None:
    live = LiveBytes()
    with live, live.making("backward"):
        gradient = torch.zeros(100)
        live.claim(gradient, "gradients")
        other = torch.zeros(10)
    assert +peak(live) == {"gradients": 400, "backward": 40}
    del gradient, other
    assert live.now.total() == 0


def test_weights_and_optimizer_state_are_counted_exactly() -> None:
    model = build_task(config()).build_model()
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    parts = predict()
    assert parts["weights"] * GIB == weights
    moments = sum(2 * p.nbytes + 4 for p in model.parameters())
    assert parts["optimizer"] * GIB == moments, "and the step"
    assert predict(optimizer__kind="sgd")["optimizer"] == 0
    averaged = predict(optimizer__kind="sgd", training__ema_decay=0.9)
    assert averaged["optimizer"] * GIB == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_no_weight_is_made_and_no_random_number_drawn(optimizer: str) -> None:
    # The weights would need thousands of GiB if they were not fake tensors.
    before = torch.get_rng_state()
    parts = predict(model__embedding_dim=2**20, model__kernel_height=1, model__kernel_width=1,
                    model__output_channels=1, model__embedding_height=2**10,
                    optimizer__kind=optimizer)  # fmt: skip
    assert parts["weights"] > 100
    assert torch.equal(torch.get_rng_state(), before)


def take_two_steps(chosen: RunConfig, task: Task[Any], between: Callable[[], object]) -> None:
    """Train for two steps as the trainer does."""
    precision = Precision(half_precision_type(chosen.optimizations, CPU), CPU)
    source = task.train_examples()
    batch = source.batch(np.linspace(0, len(source) - 1, chosen.training.batch_size).astype(int))
    model = task.build_model().train()
    apply_gradient_checkpointing(model, enabled=chosen.optimizations.use_gradient_checkpointing)
    optimizer = build_optimizer(chosen.optimizer, model)
    for _ in range(2):
        for _ in range(chosen.training.gradient_accumulation):
            with precision.autocast:
                loss = task.loss(model, batch)
            (loss.total / loss.count).backward()
            del loss
        optimizer.step()
        optimizer.zero_grad()
        between()
    gc.collect()


def real_peak(chosen: RunConfig, task: Task[Any]) -> int:
    """Return the bytes alive at the peak of a real second step."""
    live, peaks = LiveBytes(), list[int]()

    def between() -> None:
        peaks.append(peak(live).total())
        live.peaks.clear()

    with live:
        take_two_steps(chosen, task, between)
    return peaks[1]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"optimizations__use_mixed_precision": True},
    {"optimizations__use_gradient_checkpointing": True},
    {"loss__implementation": "fused"},
    {"training__gradient_accumulation": 3},
    {"optimizer__kind": "adagrad"},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_the_fake_step_holds_what_a_real_one_holds(settings: dict[str, Any]) -> None:
    chosen = config(**settings)
    task = build_task(chosen)
    assert peak(live_bytes_of_step(chosen, task, CPU)).total() == pytest.approx(
        real_peak(chosen, task), rel=0.02
    )


@pytest.mark.parametrize("settings", VARIANTS[:4])
def test_live_bytes_are_those_that_torch_counts(settings: dict[str, Any]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    chosen = config(**settings)
    task, tracker = build_task(chosen), MemTracker()
    with FakeTensorMode(allow_non_fake_inputs=True), tracker:
        take_two_steps(chosen, task, tracker.reset_mod_stats)
    torchs = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    assert peak(live_bytes_of_step(chosen, task, CPU)).total() == pytest.approx(torchs, rel=0.02)


@pytest.mark.parametrize("recomputed", [False, True])
def test_image_sequences_are_planned_as_they_are_trained(tmp_path: Path, recomputed: bool) -> None:
    folder = write_folder(tmp_path / "clouds", sequence_columns(frames_in_group=20))
    chosen = images(
        data__path=str(folder),
        training__batch_size=8,
        optimizations__use_gradient_checkpointing=recomputed,
    )
    task = build_task(chosen)
    live = peak(live_bytes_of_step(chosen, task, CPU)).total()
    assert live == pytest.approx(real_peak(chosen, task), rel=0.05)


GRAPH = DataSizes(num_entities=14_541, num_relations=237)
SOFTMAX = {"loss__function": "softmax_cross_entropy", "loss__implementation": "fused"}
FRAMES = DataSizes(frame_shape="1x24x32")


@pytest.mark.parametrize(
    ("chosen", "sizes", "most"),
    [
        pytest.param(text(model__n_layers=3), DataSizes(), 33, id="small_32k"),
        pytest.param(config(), GRAPH, 300, id="conve"),
        pytest.param(config(loss__implementation="fused"), GRAPH, 300, id="conve fused"),
        pytest.param(config(**SOFTMAX), GRAPH, 300, id="conve fused, softmax"),
        # At the size where the loss changes from plain to fused, with the smallest model.
        pytest.param(
            config(model__embedding_dim=12, model__output_channels=1),
            DataSizes(num_entities=2_000, num_relations=2),
            1_100,
            id="tiny conve",
        ),
        pytest.param(images(), FRAMES, 130, id="images", marks=pytest.mark.slow),
    ],
)
def test_a_larger_batch_never_needs_less_and_the_largest_that_fits_is_the_largest(
    chosen: RunConfig, sizes: DataSizes, most: int
) -> None:
    planner = MemoryPlanner(planned(chosen, sizes), CPU)
    least = chosen.smallest_batch_size
    searched = {least, least + 1, 7, most // 3, most - 1}
    sizes = {*range(least, most, 5), *searched, *(size + 1 for size in searched)}
    totals = {size: planner.predict(with_batch(chosen, size)).total_gib for size in sorted(sizes)}
    assert sorted(totals.values()) == list(totals.values())
    for size in searched:
        halfway = (totals[size] + totals[size + 1]) / 2
        assert planner.largest_batch(chosen, halfway, most=most) == size
    assert planner.largest_batch(chosen, totals[least] * 0.99, most=most) == 0
    assert planner.largest_batch(chosen, 1.001 * totals[most], most=most) == most
    assert planner.largest_batch(chosen, 1.001 * totals[most], most=most // 2) == most // 2


def with_batch(chosen: RunConfig, size: int) -> RunConfig:
    training = chosen.training.model_copy(update={"batch_size": size})
    return chosen.model_copy(update={"training": training})


def test_only_powers_of_two_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def take_step(planner: MemoryPlanner, chosen: RunConfig) -> dict[str, StepMemory]:
        tried.append(chosen.training.batch_size)
        return {"loss": StepMemory({"weights": 1.0 + chosen.training.batch_size})}

    monkeypatch.setattr(MemoryPlanner, "_take_step", take_step)
    planner = MemoryPlanner(build_task(config()), CPU)
    assert planner.predict(with_batch(config(), 100)).total_gib == 101.0
    assert planner.largest_batch(config(), 75.5, most=10_000) == 74
    assert tried == [64, 128, 2, 16_384, 256, 16]


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_long_step_continues_the_line_of_shorter_ones(
    monkeypatch: pytest.MonkeyPatch, recomputed: bool
) -> None:
    """With recomputation the peak moves from the backward to the forward pass as batches grow."""
    chosen = images(
        training__batch_size=24,
        model__frames_per_checkpoint=3,
        optimizations__use_gradient_checkpointing=recomputed,
    )
    task = planned(chosen, DataSizes(frame_shape="1x192x256"))
    found: list[float] = []
    for most in (math.inf, 0):
        monkeypatch.setattr(memory_plan, "MOST_OPERATIONS", most)
        planner = MemoryPlanner(task, torch.device("cuda"))
        found.append(planner.predict(chosen).total_gib)
        assert planner.largest_batch(chosen, 0.05, most=64) < 64
    assert found[1] == pytest.approx(found[0], rel=0.01)


def test_activations_grow_with_the_batch_and_weights_do_not() -> None:
    small, large = predict(), predict(training__batch_size=4 * BATCH)
    assert large["weights"] == small["weights"]
    made = [m["activations"] + m["backward"] + m["loss"] for m in (small, large)]
    assert made[1] > 2.5 * made[0]


def test_accumulation_holds_gradients_while_others_are_made() -> None:
    once = predict(training__batch_size=2)
    twice = predict(training__batch_size=2, training__gradient_accumulation=2)
    assert once["gradients"] + once["backward"] < twice["gradients"] + twice["backward"]


def test_workers_prepare_batches_ahead() -> None:
    alone, helped = predict(), predict(training__num_workers=2, training__prefetch_factor=3)
    order = 8 * len(build_task(config()).train_examples()) / GIB
    assert helped["loader"] - order == pytest.approx(7 * (alone["loader"] - order)), "1 + 2 x 3"


def test_every_process_of_a_parallel_run_holds_a_flat_copy_of_its_gradients() -> None:
    chosen = config(training__batch_size=2)
    task = build_task(chosen)
    alone, both = (peak(live_bytes_of_step(chosen, task, CPU, n)).total() for n in (1, 2))
    assert both > alone


def test_a_gpu_is_planned_for_where_there_is_none() -> None:
    chosen = config(optimizations__use_mixed_precision=True)
    memory = MemoryPlanner(build_task(chosen), torch.device("cuda")).predict(chosen)
    assert memory.parts_gib["process"] == memory.parts_gib["allocator"] == 0
    assert memory.parts_gib["weights"] == predict()["weights"]


def test_a_chunked_loss_is_planned_for_without_going_through_its_chunks() -> None:
    few, many = (
        peak(live_bytes_of_step(chosen, planned(chosen, sizes), CPU)).total()
        for chosen in [config(loss__implementation="fused", training__batch_size=1024)]
        for sizes in (GRAPH.model_copy(update={"num_entities": n * 2048}) for n in (4, 400))
    )
    table = DIM * 4 * (400 - 4) * 2048
    assert 4 * table < many - few < 7 * table, "weight, moments, gradients; and no scores"


def test_scores_that_are_kept_for_a_second_pass_are_planned_for() -> None:
    batch, tile = 1024, 8 * 1024**2
    whole, part = (
        peak(live_bytes_of_step(chosen, planned(chosen, GRAPH), CPU)).total()
        for chosen in (
            config(**SOFTMAX, training__batch_size=batch, loss__chunk_mib=mib) for mib in (64, 16)
        )
    )
    more = 4 * batch * GRAPH.num_entities - 2 * tile
    assert whole - part == pytest.approx(more, abs=tile)


def test_a_task_of_another_kind_needs_no_code_of_its_own() -> None:
    live = peak(live_bytes_of_step(with_batch(config(), 3), _Sums(), CPU))
    assert live["weights"] == 4 * 1_000_000
    assert live["optimizer"] == 2 * live["weights"] + 4
    assert live["activations"] == 3 * live["weights"]


class _Sums:
    """A task that differs from the others: one weight, three rows, no data."""

    kind = dataset = data_fingerprint = "sums"

    def train_examples(self) -> "_Sums":
        return self

    def __len__(self) -> int:
        return 3

    def batch(self, indices: Any) -> "_Rows":
        return _Rows(torch.ones(len(indices), 1))

    def build_model(self) -> nn.Module:
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(1_000_000))
        model.forward = partial(_rows_times_weight, model)  # type: ignore[method-assign]
        return model

    def loss(self, model: nn.Module, batch: "_Rows") -> LossSum:
        return LossSum(model(batch.rows).square().sum(), batch.count)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _rows_times_weight(model: nn.Module, rows: Tensor) -> Tensor:
    return rows * model.weight  # type: ignore[operator]


def test_a_model_with_more_bytes_than_64_bits_can_count_is_one_line() -> None:
    large = {"model.kind": "conve", "model.output_channels": 2**61}
    chosen = from_mapping({"data": {"name": "umls"}}, large)
    task = build_task(chosen)
    with pytest.raises(OutOfMemoryError):
        MemoryPlanner(task, CPU).predict(chosen)
    with pytest.raises(OutOfMemoryError), explaining_lack_of_memory(chosen, task, CPU):
        task.build_model()


@dataclass(frozen=True)
class _Rows:
    rows: Tensor

    @property
    def count(self) -> int:
        return len(self.rows)
