"""Describes what a run ran on: machine, process memory, source commit. Torch is not imported.

Sizes are in GiB (2^30 bytes). During a run, MLflow's own samplers measure CPU, memory, disk,
network and GPU. MLflow's monitor is not used, because it stops permanently when the store fails to
respond once. The samplers are loaded after the first minute of a run, so a shorter run does not pay
for them; its curves would be too short to be useful.

This module also sets how many cores a process uses and how its idle threads wait. OpenMP reads its
environment variables when torch loads it, so they must be set before that. Child processes and the
data loader's workers inherit them.
"""

import contextlib
import functools
import logging
import math
import os
import platform
import resource
import subprocess
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any

import psutil

logger = logging.getLogger(__name__)

GIB = 2**30
SAMPLED_PREFIX = "system/"
FIRST_SECONDS = 60.0
"""How long a run lasts before its machine is sampled."""
SAMPLING_SECONDS = 10.0
PROC = Path("/proc")
CGROUP_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
_DIRTY = "-dirty"
_PROGRAMS = (":/platform/*.py", ":/ui/*.py", ":/experiments/*.py")
_RESULTS = ":(top,exclude)experiments/*/results/*"
_RESET_PEAK = "5"  # written to /proc/self/clear_refs to reset the peak (proc(5))
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = "2000"
"""Number of spins of an idle libgomp thread before it sleeps; the default is 300,000. With the
default, it occupies a core for milliseconds that other processes on a shared machine need."""


@dataclass(frozen=True)
class Gpu:
    """Name and memory of a GPU, as the driver reports them."""

    name: str
    memory_gib: float


@dataclass(frozen=True)
class Machine:
    """The machine that a run ran on."""

    cpu: str
    num_cores: int
    memory_gib: float
    gpus: tuple[Gpu, ...]
    driver: str | None
    system: str
    python: str
    torch: str | None = None

    @property
    def summary(self) -> str:
        parts = [self.cpu, f"{self.num_cores} cores", f"{self.memory_gib:.0f} GiB"]
        parts += [f"{gpu.name} {gpu.memory_gib:.0f} GiB" for gpu in self.gpus]
        return ", ".join(parts)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe_machine() -> Machine:
    gpus, driver = _gpus()
    return Machine(
        cpu=cpu_model(),
        num_cores=num_cores(),
        memory_gib=memory_gib(),
        gpus=gpus,
        driver=driver,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=version("torch"),
    )


def memory_gib() -> float:
    """Return the memory this process can use: the smaller of machine's and container's memory."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        total = min(total, int(CGROUP_MEMORY_LIMIT.read_text()))
    return total / GIB


def available_gib() -> float:
    """Return the free memory: of the machine or of its container, whichever is less."""
    total, found = memory_gib(), float(psutil.virtual_memory().available) / GIB
    with contextlib.suppress(OSError, ValueError):
        found = min(found, total - int(CGROUP_MEMORY_USED.read_text()) / GIB)
    return max(0.0, min(total, found))


def process_gib() -> float:
    return float(psutil.Process().memory_info().rss / GIB)


def process_peak_gib() -> float:
    """Return the largest resident size of this process since the last reset."""
    with contextlib.suppress(OSError):
        for line in (PROC / "self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def reset_process_peak() -> bool:
    """Reset the peak memory to the current size; return whether the system allows this."""
    try:
        (PROC / "self/clear_refs").write_text(_RESET_PEAK)
    except OSError as error:
        logger.info("the peak memory is counted from the start of the process (%s)", error)
        return False
    return True


@functools.cache
def git_commit() -> str | None:
    """Return the commit of Clew's source tree, with `-dirty` if the running code differs from it.

    The code differs if tracked files were changed, or if there are programs that git does not
    track. Result files do not count, because they do not change the source. The commit is None if
    the code is not a git checkout, for example when it was installed as a package.
    """
    source = Path(__file__).resolve().parent
    if _git(source, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # an installed package inside another git checkout is not part of it
    commit = _git(source, "rev-parse", "HEAD")
    changed = _git(source, "status", "--porcelain", "--untracked-files=no", "--", ":/", _RESULTS)
    unknown = _git(source, "ls-files", "--others", "--exclude-standard", "--", *_PROGRAMS)
    return None if commit is None else commit + ("" if changed == unknown == "" else _DIRTY)


def why_no_result_file(commit: str | None) -> str | None:
    """Return why results measured at this commit are not recorded; None if they can be."""
    if commit is None:
        return "this is not a git checkout, so the measured code could not be found again"
    if commit.endswith(_DIRTY):
        return "the tree has uncommitted changes; commit them and measure again"
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if git is missing or the command fails."""
    command = ["git", "-C", str(folder), *arguments]
    lockless = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, env=lockless
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.info("git is not usable: %s", error)
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def cpu_model() -> str:
    """Return the name that the processor gives itself."""
    with contextlib.suppress(OSError):
        for line in (PROC / "cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """Return the GPUs and the version of the NVIDIA driver, without using CUDA or torch."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no such package, or no driver
        logger.debug("no NVIDIA driver: %s", error)
        return (), None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(
            Gpu(str(pynvml.nvmlDeviceGetName(h)), pynvml.nvmlDeviceGetMemoryInfo(h).total / GIB)
            for h in handles
        )
        return gpus, str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        logger.info("the NVIDIA driver does not report its devices: %s", error)
        return (), None
    finally:
        pynvml.nvmlShutdown()


def sample_machine(record: Callable[[dict[str, float], int], None], stopped: Event) -> None:
    """Record samples of the machine until `stopped` is set; the step of a sample is its number."""
    if stopped.wait(FIRST_SECONDS):
        return
    samplers = available_samplers()
    step = 0
    while samplers and not stopped.wait(SAMPLING_SECONDS):
        values: dict[str, float] = {}
        for sampler in list(samplers):
            try:
                sampler.collect_metrics()
                found = sampler.aggregate_metrics()
                values |= {SAMPLED_PREFIX + key: value for key, value in found.items()}
                sampler.clear_metrics()
            except Exception as error:  # a lost device ends its own metrics, not the run
                logger.warning("a system metric is no longer sampled: %s", error)
                samplers.remove(sampler)
        try:
            record(values, step)
        except OSError as error:  # a full disk, which the program itself also reports
            logger.warning("system metrics are no longer recorded: %s", error)
            return
        step += 1


def available_samplers() -> list[Any]:
    """Return MLflow's samplers that work on this machine."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    samplers: list[Any] = [monitor() for monitor in (CPUMonitor, DiskMonitor, NetworkMonitor)]
    try:
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        samplers.append(GPUMonitor())  # type: ignore[no-untyped-call]
    except Exception as error:  # no NVML, or a driver that does not respond
        logger.debug("no GPU among the system metrics: %s", error)
    return samplers


def prepare_threads(environment: MutableMapping[str, str]) -> None:
    """Let idle threads sleep, and use at most as many threads as this process has cores.

    Variables that the user has set are not changed. `OMP_NUM_THREADS` is set only if the quota of
    the control group is below the affinity: OpenMP itself respects the affinity, and knows which
    logical cores share a physical core.
    """
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    if "OMP_NUM_THREADS" not in environment and num_cores() < len(os.sched_getaffinity(0)):
        environment["OMP_NUM_THREADS"] = str(num_cores())


def num_cores() -> int:
    """Return how many cores this process may use: the smaller of its affinity and its quota."""
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *_quotas()])))


def _quotas() -> Iterator[float]:
    try:
        lines = OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        # In a container, the path can be the host's; the container's own group is then the root.
        own = root / place.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield _quota(folder)


def _quota(folder: Path) -> float:
    """Return the quota of one group in cores; cgroup version 2 has one file, version 1 has two."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no quota here, or "max"
        return math.inf
