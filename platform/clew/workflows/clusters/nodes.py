"""The requirements of a command on a cluster's nodes, and the resources that a unit needs."""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, TypeVar

from clew.errors import ClusterError
from clew.files import DATA_VARIABLE
from clew.runs.hardware import Machine, describe_machine
from clew.runs.store import SQLITE_PREFIX, tracking_uri

PASSED_ON = (DATA_VARIABLE, "MLFLOW_EXPERIMENT_NAME", "XDG_CACHE_HOME")
"""Environment variables that units get from the command."""
GIB = 2**30

R = TypeVar("R")


@dataclass(frozen=True)
class ClusterRequest:
    """A cluster, and the resources that a unit of work needs on a node."""

    address: str
    """HOST:PORT of its head, `auto` for the cluster on this machine, `local` to start one here."""
    cpus: float = 1.0
    gpus: float | None = None
    """None: one if the cluster has GPUs, else zero."""
    memory_gib: float | None = None
    """None: no memory is reserved."""


@dataclass(frozen=True)
class CommandSettings:
    """The folder and the environment variables that a unit gets from the command."""

    folder: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class ClusterNode:
    """The code and the machine of a node."""

    code: str
    machine: Machine


def needs_of(request: ClusterRequest, nodes: list[dict[str, Any]]) -> dict[str, float]:
    """Return the resources that a unit needs on a node, by Ray's names."""
    has_gpus = any(node["Resources"].get("GPU", 0) for node in nodes)
    gpus = (1.0 if has_gpus else 0.0) if request.gpus is None else request.gpus
    needs = {"CPU": request.cpus} | ({"GPU": gpus} if gpus else {})
    return needs | ({"memory": request.memory_gib * GIB} if request.memory_gib else {})


def room(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    return min(int(resources.get(kind, 0) / need) for kind, need in needs.items())


def shown(resources: Mapping[str, float]) -> str:
    """Return resources as text for messages."""
    memory = resources.get("memory")
    parts = [f"{resources[kind]:g} {kind}" for kind in ("CPU", "GPU") if kind in resources]
    return ", ".join([*parts, *([f"{memory / GIB:.1f} GiB"] if memory else [])]) or "nothing"


def called(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def require_server(address: str, hosts: set[str]) -> None:
    """Refuse a tracking store that other machines cannot use.

    Raises:
        ClusterError: The store is a file, and the cluster has several machines.
    """
    if len(hosts) > 1 and tracking_uri().startswith(SQLITE_PREFIX):
        raise ClusterError(
            f"the nodes of {address} are {len(hosts)} machines, but the tracking store "
            f"{tracking_uri()} is a file on one of them; set MLFLOW_TRACKING_URI to a server"
        )


def require_same_code(nodes: Mapping[str, ClusterNode]) -> tuple[Machine, ...]:
    """Check that all nodes run the same code as this process, and return their machines.

    Raises:
        ClusterError: A node runs other code than this process.
    """
    here = describe().code
    for name, node in nodes.items():
        if node.code != here:
            raise ClusterError(
                f"node {name} runs {node.code}, this command {here}; install the same versions "
                "there"
            )
    return tuple(node.machine for node in nodes.values())


def origin() -> CommandSettings:
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return CommandSettings(os.getcwd(), given | {"MLFLOW_TRACKING_URI": tracking_uri()})


def describe() -> ClusterNode:
    """Return the code and the machine of this process."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    code = f"Clew {digest.hexdigest()[:8]} with torch {version('torch')}, Python {python_version()}"
    return ClusterNode(code, describe_machine())


def carry_out(
    origin: CommandSettings, function: Callable[..., R], arguments: tuple[object, ...]
) -> R:
    """Run a unit in a Ray process, in the working directory of the command.

    Raises:
        ClusterError: This node does not have that folder.
    """
    try:
        os.chdir(origin.folder)
    except OSError as error:
        raise ClusterError(
            f"{origin.folder}: {error.strerror} on {socket.gethostname()}; nodes need the same "
            "folders as the command, for example on a shared file system"
        ) from None
    os.environ.update(origin.environment)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    return function(*arguments)
