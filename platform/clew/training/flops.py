"""Counts floating-point operations per example, and knows the peak rates of GPUs.

The model FLOPs utilization (MFU) is the achieved rate divided by the peak rate. The peak is that of
a data sheet. A measured one would change tenfold with what else the machine does.
"""

import math

import torch

from clew.config.devices import find_card
from clew.layers.products import flop_formulas
from clew.training.live_bytes import TimeLimit
from clew.training.precision import Precision
from clew.training.task import B, Task


def count_flops(
    task: Task[B], precision: Precision, batch: B, *, seconds: float = math.inf
) -> float:
    """Count the floating-point operations of forward and backward for one example.

    Matrix products and convolutions are counted. Elementwise operations are not counted, nor is
    the recomputation of gradient checkpointing. The pass uses fake tensors without data, because
    torch's counter would keep every activation of a real pass, even those that checkpointing frees.
    They lie on the processor: on a GPU, Triton's kernels would read them.

    Raises:
        TookTooLong: The pass takes more processor time than `seconds`.
    """
    # Imported here because these modules import Triton if it is installed, which takes 60 MiB.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    cpu = torch.device("cpu")
    counter = FlopCounterMode(display=False, custom_mapping=flop_formulas())
    with FakeTensorMode(allow_non_fake_inputs=True), counter, TimeLimit(seconds):
        with torch.device(cpu):
            model = task.build_model().train()
        with torch.autocast(cpu.type, torch.bfloat16, enabled=precision.dtype is not None):
            loss = task.loss(model, batch.to(cpu))
        (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / batch.num_examples


def peak_flops_per_second(precision: Precision, *, tf32: bool) -> float | None:
    """Return the peak rate of matrix products on a GPU by its data sheet; None if it is unknown."""
    if precision.device.type != "cuda":
        return None
    card = find_card(torch.cuda.get_device_name(precision.device))
    if card is None or card.tflops is None:
        return None
    half, tf32_rate, single = card.tflops
    return 1e12 * (half if precision.dtype else (tf32_rate if tf32 else single))
