"""A Ray cluster on this machine, with nodes that die in the middle of their work."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.workflows.cluster import Cluster

STORE_BYTES = 80 * 2**20
FEW = {"num_cpus": 1, "object_store_memory": STORE_BYTES}


def die_once(doomed: str, sign: str, function: Callable[..., Any], arguments: Any) -> Any:
    """Run a unit of work; on the doomed node, kill the node before it returns the result.

    On other nodes a unit waits until this has happened, so that the doomed node always gets one.
    """
    import ray

    if ray.get_runtime_context().get_node_id() == doomed:
        function(*arguments)
        Path(sign).touch()
        # Kill Ray's process for the node and this one: both die when a machine dies.
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    while not Path(sign).exists():
        time.sleep(0.05)
    return function(*arguments)


def die() -> None:
    """Kill the process that works on a unit, as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_the_middle(patch: pytest.MonkeyPatch, doomed: str, sign: Path) -> None:
    """Make the first unit of work on a node kill the node."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    submit = Cluster.submit

    def submitted(self: Cluster, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        submit(self, key, die_once, doomed, str(sign), function, arguments)

    patch.setattr(Cluster, "submit", submitted)


def raylet_of(node: str) -> int | None:
    """Return the process id of Ray's process for a node, on that node; elsewhere None."""
    import ray

    return os.getppid() if ray.get_runtime_context().get_node_id() == node else None
