"""How many cores a process may use, and how its idle threads wait. Without torch.

OpenMP reads its environment when torch loads it, so a process prepares before that. What is set
here, child processes and the data loader's workers inherit.
"""

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = "2000"
"""Turns that an idle thread of libgomp waits before it sleeps, instead of 300,000. Those are
milliseconds in which it holds a core; on a machine that others use too, somebody wants that core,
and the wait is longest when it is (`experiments/benchmarks/busy_machine.py`)."""


def prepare_threads(environment: MutableMapping[str, str]) -> None:
    """Let idle threads sleep, and take no more of them than there are cores for this process.

    What a person has set stays. Threads are limited by the quota of the control group alone:
    OpenMP itself heeds the affinity, and knows which cores are two threads of one.
    """
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    if "OMP_NUM_THREADS" not in environment and num_cores() < _cores_of_affinity():
        environment["OMP_NUM_THREADS"] = str(num_cores())


def num_cores() -> int:
    """Return how many cores this process may use: of its affinity, and of its group's quota."""
    return max(1, math.ceil(min([_cores_of_affinity(), *_quotas()])))


def _cores_of_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield the quotas, in cores, of the process's control group and of those above it."""
    try:
        lines = OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        # In a container the path may be the host's: the group that is seen here is then the root.
        own = root / place.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                yield _quota(folder)


def _quota(folder: Path) -> float:
    """Return the quota of one group in cores: version 2 writes one file, version 1 writes two."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no quota here, or "max"
        return math.inf
