"""Counts floating-point operations per example and finds the peak rate of the device.

The model FLOPs utilization (MFU) is the achieved rate divided by the peak rate.
"""

import time

import torch

from clew.layers.products import flop_formulas
from clew.training.precision import Precision
from clew.training.task import B, Task

PEAK_SECONDS = 0.5
"""How long the peak rate of an unknown device is measured."""

# Dense matrix products with float32 accumulation in half precision, TF32 and float32, in TFLOP/s,
# from the vendors' data sheets.
PEAK_TFLOPS = {
    "H200": (989.0, 494.0, 67.0),
    "H100": (989.0, 494.0, 67.0),
    "A100": (312.0, 156.0, 19.5),
    "L40S": (362.0, 183.0, 91.6),
    "T4": (65.0, 8.1, 8.1),
}


def count_flops(task: Task[B], precision: Precision, batch: B) -> float:
    """Count the floating-point operations of forward and backward for one example.

    Matrix products and convolutions are counted. Elementwise operations are not counted, nor is
    the recomputation of gradient checkpointing. The pass uses fake tensors without data, because
    torch's counter would keep every activation of a real pass, even those that checkpointing frees.
    """
    # Imported here because these modules import Triton if it is installed, which takes 60 MiB.
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
    """Return the peak rate of matrix products and the source of this number.

    For known GPUs, the rate is from the data sheet. For other devices, it is measured.
    """
    if precision.device.type == "cuda":
        name = torch.cuda.get_device_name(precision.device)
        for known, (half, tf32_rate, single) in PEAK_TFLOPS.items():
            if known in name.split() or f"-{known}" in name:
                rate = half if precision.dtype else (tf32_rate if tf32 else single)
                return rate * 1e12, f"data sheet of {known}"
    return _measured_matmul_rate(precision), "measured with a matrix product of side 1,024"


def _measured_matmul_rate(precision: Precision) -> float:
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
