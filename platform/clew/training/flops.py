"""Floating-point operations: how many an example takes, and how many the device can do.

The model's share of the device's peak (MFU) is one divided by the other.
"""

import time

import torch

from clew.layers.products import flop_formulas
from clew.training.precision import Precision
from clew.training.task import B, Task

PEAK_SECONDS = 0.5
"""How long the peak rate of an unknown device is looked for."""

# Dense matrix products with float32 accumulation, vendors' data sheets, in TFLOP/s: half
# precision, TF32, float32.
PEAK_TFLOPS = {
    "H200": (989.0, 494.0, 67.0),
    "H100": (989.0, 494.0, 67.0),
    "A100": (312.0, 156.0, 19.5),
    "L40S": (362.0, 183.0, 91.6),
    "T4": (65.0, 8.1, 8.1),
}


def count_flops(task: Task[B], precision: Precision, batch: B) -> float:
    """Count floating-point operations of forward and backward for one example.

    Matrix products and convolutions are counted, elementwise work is not, and neither is what
    gradient checkpointing computes a second time. The pass is made on tensors without content: a
    real one, watched by torch's counter, would hold every activation that checkpointing lets go.
    """
    # They import Triton where that is installed: 60 MiB, for those who ask for the count.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    with FakeTensorMode(allow_non_fake_inputs=True), counter:
        with torch.device(precision.device):
            model = task.build_model().train()
        with precision.autocast:
            loss = task.loss(model, batch)
        (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / batch.num_examples


def peak_flops_per_second(precision: Precision, *, tf32: bool) -> tuple[float, str]:
    """Return the peak rate of matrix products and where the figure is from.

    Known GPUs have their data sheet's figure; anything else is measured with one product.
    """
    if precision.device.type == "cuda":
        name = torch.cuda.get_device_name(precision.device)
        for known, (half, tf32_rate, single) in PEAK_TFLOPS.items():
            if known in name.split() or f"-{known}" in name:
                rate = half if precision.dtype else (tf32_rate if tf32 else single)
                return rate * 1e12, f"data sheet of {known}"
    return _measured_matmul_rate(precision), "measured with a matrix product of side 1,024"


def _measured_matmul_rate(precision: Precision) -> float:
    """Return the best of half a second: what shares the machine slows a tenth of it down whole."""
    side = 1024
    dtype = precision.dtype or torch.float32
    left = torch.ones(side, side, dtype=dtype, device=precision.device)
    out = torch.empty_like(left)
    best, end = float("inf"), time.perf_counter() + PEAK_SECONDS
    while (started := time.perf_counter()) < end:
        with precision.products:
            torch.mm(left, left, out=out)
        if precision.device.type == "cuda":
            torch.cuda.synchronize(precision.device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best
