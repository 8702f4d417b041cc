"""Memory options, and statistics of the peak."""

import ctypes
import gc
from dataclasses import dataclass

import torch
from torch import nn

from clew import names
from clew.errors import ConfigError
from clew.runs.hardware import GIB

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_LARGEST_MMAP_THRESHOLD = 32 * 1024**2


def keep_allocator_pages() -> bool:
    """Make glibc keep freed memory in the process; return whether it accepts this.

    By default, glibc maps new pages for every tensor above 128 KiB and unmaps them when the tensor
    is freed, and the kernel clears new pages each time. Kept pages are reused without clearing.
    """
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    done = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    done &= mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    done &= mallopt(_M_MMAP_MAX, 0)
    return bool(done)


def apply_gradient_checkpointing(model: nn.Module, *, enabled: bool) -> None:
    """Make the model recompute activations in training mode, if `enabled` is true."""
    if not enabled:
        return
    recompute = getattr(model, "enable_gradient_checkpointing", None)
    if recompute is None:
        raise ConfigError(
            "optimizations.use_gradient_checkpointing is true, but "
            f"{type(model).__name__} has nothing to recompute; set it to false"
        )
    recompute()


@dataclass(frozen=True)
class MemoryCleanup:
    """Returns cached memory to the system every `interval_steps` steps.

    On a GPU, this returns the caching allocator's free blocks to the driver. Other processes then
    see more free memory, but this process must allocate again. The peak of used memory stays the
    same.
    """

    enabled: bool
    interval_steps: int
    device: torch.device

    def after_step(self, step: int) -> None:
        if not self.enabled or step % self.interval_steps:
            return
        gc.collect(0)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def reset_gpu_peaks(device: torch.device) -> None:
    """Reset the allocator's peak statistics if the device is a GPU."""
    if device.type == "cuda":
        # A process that has not used the GPU has no statistics to reset.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)


def gpu_peaks(device: torch.device) -> dict[str, float]:
    """Return the allocator's peaks in GiB since the last reset; empty without a GPU."""
    if device.type != "cuda":
        return {}
    return {
        names.GPU_PEAK_ALLOCATED_GIB: torch.cuda.max_memory_allocated(device) / GIB,
        names.GPU_PEAK_RESERVED_GIB: torch.cuda.max_memory_reserved(device) / GIB,
    }
