"""A cluster of Ray on this machine, and nodes of it that die in the middle of their work."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.workflows.clusters.cluster import Cluster

STORE_BYTES = 80 * 2**20
FEW = {"num_cpus": 1, "object_store_memory": STORE_BYTES}


def die_once(doomed: str, sign: str, function: Callable[..., Any], arguments: Any) -> Any:
    """Carry out a unit; on the doomed node, kill that node before the result is handed over.

    Elsewhere a unit waits until that has happened, so that the node surely gets one.
    """
    import ray

    if ray.get_runtime_context().get_node_id() == doomed:
        function(*arguments)
        Path(sign).touch()
        # Ray's process for the node, and this one: they die together where a machine dies.
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    while not Path(sign).exists():
        time.sleep(0.05)
    return function(*arguments)


def die() -> None:
    """End the process that works on a unit, as the system does where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_the_middle(patch: pytest.MonkeyPatch, doomed: str, sign: Path) -> None:
    """Let the first unit on a node kill it."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    submit = Cluster.submit

    def submitted(self: Cluster, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        submit(self, key, die_once, doomed, str(sign), function, arguments)

    patch.setattr(Cluster, "submit", submitted)
