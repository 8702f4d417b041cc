"""Tests that need a GPU: float16, allocator peaks, compilation, equality with the CPU."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clew import names
from clew.config.load import from_mapping
from clew.config.training import TrainingConfig
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import LossFunction, OneVsAll
from clew.training.distributed import World
from clew.training.loaders import BatchLoader
from clew.training.manifest import Manifest
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.training.setup import build_trainer, measure_before_training
from clew.workflows.subjects import build_task
from tests.memory_tracker import MemoryTracker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def train_on_gpu(folder: Path, **overrides: Any) -> tuple[Any, dict[str, float]]:
    """Train ConvE on UMLS for a few GPU steps, and return the trainer and its last metrics."""
    settings = {
        "training.num_epochs": 3,
        "training.batch_size": 128,
        "training.log_every_steps": 1,
        "tracking.log_mfu": False,
    } | {key.replace("__", "."): value for key, value in overrides.items()}
    config = from_mapping({"data": {"name": "umls"}}, settings)
    device = torch.device("cuda", 0)
    reset_gpu_peaks(device)
    trainer = build_trainer(
        config,
        build_task(config),
        MemoryTracker(),
        device=device,
        world=World(),
        folder=folder,
        origin=Manifest(0, 0, 0.0, "link_prediction", {}, "hash", "0" * 16),
    )
    measure_before_training(trainer)
    trainer.train()
    values = {key: value for key, value, _ in trainer.history.tracker.metric_values}
    return trainer, values | gpu_peaks(device)


def test_float16_with_a_scaler_learns_as_float32_does(tmp_path: Path) -> None:
    _, full = train_on_gpu(tmp_path / "full")
    trainer, half = train_on_gpu(tmp_path / "half", optimizations__use_mixed_precision=True)
    assert trainer.precision.dtype is torch.float16
    assert trainer.precision.loss_scale is not None
    assert half[names.TRAIN_LOSS] == pytest.approx(full[names.TRAIN_LOSS], rel=0.05)


def test_peaks_come_from_the_allocator(tmp_path: Path) -> None:
    _, values = train_on_gpu(tmp_path)
    allocated = values[names.GPU_PEAK_ALLOCATED_GIB]
    assert 0 < allocated <= values[names.GPU_PEAK_RESERVED_GIB]


def test_checkpointing_does_not_change_the_loss(tmp_path: Path) -> None:
    # It saves no memory here: with 135 entities the convolution's recomputation is the peak.
    wide = {"training__batch_size": 2048, "model__output_channels": 64}
    _, plain = train_on_gpu(tmp_path / "plain", **wide)
    _, saved = train_on_gpu(
        tmp_path / "saved", optimizations__use_gradient_checkpointing=True, **wide
    )
    assert saved[names.TRAIN_LOSS] == pytest.approx(plain[names.TRAIN_LOSS], rel=1e-4)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_has_the_eager_models_keys(tmp_path: Path, mode: str) -> None:
    eager, _ = train_on_gpu(tmp_path / "eager")
    compiled, values = train_on_gpu(
        tmp_path / "compiled",
        optimizations__torch_compile=True,
        optimizations__torch_compile_mode=mode,
    )
    assert compiled.model.state_dict().keys() == eager.model.state_dict().keys()
    assert math.isfinite(values[names.TRAIN_LOSS])


def test_the_gpu_agrees_with_the_cpu_on_the_first_loss(tmp_path: Path) -> None:
    config = from_mapping(
        {"data": {"name": "umls"}},
        {"model.input_dropout": 0, "model.feature_map_dropout": 0, "model.projection_dropout": 0},
    )
    task = build_task(config)
    torch.manual_seed(0)
    model = task.build_model().train()
    batch = task.train_examples().batch(torch.arange(64).numpy())
    on_cpu = task.loss(model, batch).total
    device = torch.device("cuda", 0)
    on_gpu = task.loss(model.to(device), batch.to(device)).total
    assert float(on_gpu) == pytest.approx(float(on_cpu), rel=1e-5)


@pytest.mark.parametrize("function", ["binary_cross_entropy", "softmax_cross_entropy"])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_the_fused_loss_by_kernels_equals_float64(
    function: LossFunction, dtype: torch.dtype | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = ((33, 40), (70_001, 40), (70_001,))
    drawn = [torch.randn(*size, generator=generator) / 4 for size in sizes]
    row, entity = torch.arange(33), torch.arange(33) * 2000
    found = []
    for device, exact in (("cuda", torch.float32), ("cpu", torch.float64)):
        leaves = [x.to(device, exact).requires_grad_() for x in drawn]
        enabled = device == "cuda" and dtype is not None
        with torch.autocast(device, dtype=dtype or torch.float16, enabled=enabled):
            loss = fused_one_vs_all_loss(
                *leaves, row.to(device), entity.to(device), settings=OneVsAll(function, 0.1)
            )
        found.append([loss, *torch.autograd.grad(loss, leaves)])
    tolerance = {None: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[dtype]
    for on_gpu, on_cpu in zip(*found, strict=True):
        scale = float(on_cpu.detach().abs().max())
        torch.testing.assert_close(
            on_gpu.cpu().double(), on_cpu, rtol=tolerance, atol=tolerance * scale
        )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_lie_in_page_locked_memory(num_workers: int) -> None:
    examples = build_task(from_mapping({"data": {"name": "umls"}})).train_examples()
    settings = TrainingConfig(batch_size=64, num_workers=num_workers, pin_memory=True)
    batch = next(BatchLoader(examples, settings).epoch(0))
    assert all(tensor.is_pinned() for tensor in vars(batch).values())
