"""What watches a run while it lasts, besides what the program tells of it: its log, its machine.

The machine's values are MLflow's own samples of CPU, memory, disk, network and GPU, sent through
the run's spool. MLflow's monitor thread ends for good when the store fails to answer once; its
samplers are used here without it. They are loaded once a run has lasted a minute: a shorter one
pays nothing for them, and has no curve worth looking at.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

logger = logging.getLogger(__name__)

MAX_LINES = 5000
"""Of a longer log the last lines stay."""
FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
PREFIX = "system/"
FIRST_SECONDS = 60.0
"""How long a run lasts before its machine is sampled."""
SAMPLING_SECONDS = 10.0


class RunLog(logging.Handler):
    """Keeps in memory what Clew logs while a run lasts, to be kept among its artifacts."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._source = logging.getLogger("clew")
        self._source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self._lines.append(self.format(record))

    def end(self, error: BaseException | None = None) -> None:
        """Take no further messages; the last line says what ended the run, if anything did."""
        self._source.removeHandler(self)
        if error is not None:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            record = logging.LogRecord("clew", logging.ERROR, "", 0, said, None, None)
            self.emit(record)

    def text(self) -> str:
        """Return all lines; empty if nothing was said."""
        return "".join(f"{line}\n" for line in self._lines)


class Sampler(Protocol):
    """What MLflow's monitors have in common."""

    def collect_metrics(self) -> object:
        """Take a sample."""
        ...

    def aggregate_metrics(self) -> Mapping[str, float]:
        """Return the mean of the samples."""
        ...

    def clear_metrics(self) -> None:
        """Forget the samples."""
        ...


def available_samplers() -> list[Sampler]:
    """Return what can be sampled on this machine."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    samplers: list[Sampler] = [monitor() for monitor in (CPUMonitor, DiskMonitor, NetworkMonitor)]
    try:
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        samplers.append(GPUMonitor())  # type: ignore[no-untyped-call]
    except Exception as error:  # no NVML, or a driver that does not answer
        logger.debug("no GPU among the system metrics: %s", error)
    return samplers


class SystemMetrics(threading.Thread):
    """Samples the machine and hands the values to `record`, from the first minute until stopped."""

    def __init__(self, record: Callable[[Mapping[str, float], int], None]) -> None:
        super().__init__(name="clew-system-metrics", daemon=True)
        self._record = record
        self._samplers: list[Sampler] = []
        self._stopped = threading.Event()

    def run(self) -> None:
        """Sample until stopped; the step of a value is its number."""
        if self._stopped.wait(FIRST_SECONDS):
            return
        self._samplers = available_samplers()
        step = 0
        while self._samplers and not self._stopped.wait(SAMPLING_SECONDS):
            try:
                self._record(self._sample(), step)
            except OSError as error:  # a full disk, of which the program itself will say more
                logger.warning("system metrics are no longer recorded: %s", error)
                return
            step += 1

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()

    def _sample(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for sampler in self._samplers:
            try:
                sampler.collect_metrics()
                values |= {PREFIX + k: v for k, v in sampler.aggregate_metrics().items()}
                sampler.clear_metrics()
            except Exception as error:  # a device that goes away ends its metrics, not the run
                logger.warning("a system metric is no longer sampled: %s", error)
                self._samplers = [other for other in self._samplers if other is not sampler]
        return values
