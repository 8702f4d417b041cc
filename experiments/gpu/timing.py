"""Times work on a device, and keeps what was found as rows."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

GIB = 1024**3
Value = float | int | str | bool
Row = dict[str, Value]


@dataclass
class Bench:
    """The device, the sizes and the time that is left.

    Attributes:
        device: Where everything runs.
        small: Whether sizes are small enough for a test on a processor.
        seconds: How long the program may run.
    """

    device: torch.device
    small: bool
    seconds: float
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds_left(self) -> float:
        """Return the time that is left."""
        return self.seconds - (time.perf_counter() - self.started)

    def size(self, full: int, small: int) -> int:
        """Return the size to use on this device."""
        return small if self.small else full

    def wait(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def clear(self) -> None:
        """Free the memory of earlier work, and begin a new peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float:
        """Return the peak of the GPU's allocator since `clear`; 0 on a processor."""
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.max_memory_allocated(self.device) / GIB

    def milliseconds(
        self, alternatives: dict[str, Callable[[], object]], *, rounds: int = 9, warm_ups: int = 2
    ) -> dict[str, float]:
        """Run alternatives in turns, and return the median milliseconds of each."""
        found: dict[str, list[float]] = {name: [] for name in alternatives}
        for turn in range(warm_ups + self.size(rounds, 1)):
            for name, work in alternatives.items():
                self.wait()
                begin = time.perf_counter()
                work()
                self.wait()
                if turn >= warm_ups:
                    found[name].append(1e3 * (time.perf_counter() - begin))
        return {name: statistics.median(values) for name, values in found.items()}


def largest_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference, as a share of the largest exact value."""
    exact = exact.detach().double().cpu()
    difference = (found.detach().double().cpu() - exact).abs().max()
    return float(difference / exact.abs().max().clamp_min(1e-30))
