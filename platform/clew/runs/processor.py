"""Sets how many cores a process uses and how its idle threads wait; torch is not imported.

OpenMP reads its environment variables when torch loads it, so they must be set before that. Child
processes and the data loader's workers inherit them.
"""

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = "2000"
"""Number of spins of an idle libgomp thread before it sleeps; the default is 300,000. With the
default, the thread occupies a core for milliseconds that other processes on a shared machine need
(`experiments/benchmarks/busy_machine.py`)."""


def prepare_threads(environment: MutableMapping[str, str]) -> None:
    """Let idle threads sleep, and use at most as many threads as this process has cores.

    Variables that the user has set are not changed. `OMP_NUM_THREADS` is set only if the quota of
    the control group is below the affinity: OpenMP itself respects the affinity, and knows which
    logical cores share a physical core.
    """
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    if "OMP_NUM_THREADS" not in environment and num_cores() < _cores_of_affinity():
        environment["OMP_NUM_THREADS"] = str(num_cores())


def num_cores() -> int:
    """Return how many cores this process may use: the smaller of its affinity and its quota."""
    return max(1, math.ceil(min([_cores_of_affinity(), *_quotas()])))


def _cores_of_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
