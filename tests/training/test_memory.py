"""Memory options: their effects and refused settings."""

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from clew.errors import ConfigError
from clew.training.memory import (
    MemoryCleanup,
    apply_gradient_checkpointing,
    gpu_peaks,
)
from clew.training.precision import Precision, half_precision_type, resolve_device

CPU = torch.device("cpu")


def test_checkpointing_refuses_a_model_without_anything_to_recompute() -> None:
    with pytest.raises(ConfigError):
        apply_gradient_checkpointing(nn.Linear(2, 2), enabled=True)
    apply_gradient_checkpointing(nn.Linear(2, 2), enabled=False)


@pytest.mark.parametrize(("enabled", "expected"), [(True, [4, 8]), (False, [])])
def test_cleanup_runs_every_so_many_steps(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, expected: list[int]
) -> None:
    cleaned: list[int] = []
    cleanup = MemoryCleanup(enabled=enabled, interval_steps=4, device=CPU)
    for step in range(1, 10):
        monkeypatch.setattr(gc, "collect", lambda *_, step=step: cleaned.append(step))
        cleanup.after_step(step)
    assert cleaned == expected


FAULTS = """
import resource, sys, torch
from clew.training.memory import keep_allocator_pages
if sys.argv[1] == "keep":
    assert keep_allocator_pages()
def faults_of_steps(number):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(number):
        hidden = torch.ones(12_000_000)
        torch.relu(hidden * 2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults_of_steps(10)
print(faults_of_steps(5))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_kept_pages_are_not_asked_for_again() -> None:
    """By default, tensors of 48 MB are mapped again each time, which costs many page faults."""
    faults = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True
            ).stdout
        )
        for mode in ("keep", "default")
    }
    assert faults["default"] > 10_000
    assert faults["keep"] < faults["default"] / 3


def test_no_gpu_metrics_without_a_gpu() -> None:
    assert gpu_peaks(CPU) == {}


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({}, "cpu", None),
        ({"use_mixed_precision": True}, "cpu", torch.bfloat16),
        ({"use_mixed_precision": True}, "cuda", torch.float16),
        ({"use_mixed_precision": True, "mixed_precision_dtype": "float16"}, "cpu", torch.float16),
        (
            {"use_mixed_precision": True, "mixed_precision_dtype": "bfloat16"},
            "cuda",
            torch.bfloat16,
        ),
        ({"mixed_precision_dtype": "float16"}, "cpu", None),
    ],
)
def test_mixed_precision_means_float16_on_a_gpu_and_bfloat16_on_the_cpu(
    config: Any, settings: dict[str, Any], device: str, expected: torch.dtype | None
) -> None:
    options = config(**{f"optimizations__{k}": v for k, v in settings.items()}).optimizations
    assert half_precision_type(options, torch.device(device)) == expected


def test_only_float16_has_a_loss_scale() -> None:
    assert Precision(None, CPU).loss_scale is None
    assert Precision(torch.bfloat16, CPU).loss_scale is None
    assert Precision(torch.float16, CPU).loss_scale == 65536.0
    assert [Precision(t, CPU).name for t in (None, torch.float16, torch.bfloat16)] == [
        "fp32", "fp16", "bf16",
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="only without a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"training\.device"):
        resolve_device("cuda")
    assert resolve_device("auto") == CPU
