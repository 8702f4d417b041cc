"""Units of work as tasks of a Ray cluster; only this file uses Ray.

A unit is a function of this package with its arguments. Ray places it where its resources are free,
and starts it again on another node if its node dies, so a unit can run twice.
"""

import os
import signal
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from platform import python_version
from typing import Any

from clew.config.services import ClusterRequest
from clew.errors import ClewError, ClusterError, described, refusing
from clew.files import DATA_VARIABLE
from clew.runs.hardware import Machine, describe_machine, num_cores
from clew.runs.store import SQLITE_PREFIX, tracking_uri
from clew.training.distributed import code_digest

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS, LOOK_SECONDS, NUM_RETRIES = 10.0, 120.0, 3
LOCAL_STORE_BYTES = 256 * 2**20
PASSED_ON = (DATA_VARIABLE, "MLFLOW_EXPERIMENT_NAME", "XDG_CACHE_HOME")


@dataclass(frozen=True)
class UnitOutcome:
    """The result of a unit, or the error that ended it; lost if the node of every attempt died."""

    result: Any
    error: ClewError | None = None
    is_lost: bool = False


@dataclass
class Cluster:
    """A cluster whose nodes run the same code as this process.

    `slots` units can run at the same time, on the nodes with the ids `_nodes`.
    """

    slots: int
    _task: Any
    _nodes: tuple[str, ...]
    machines: tuple[Machine, ...] = ()
    _running: dict[Any, Hashable] = field(default_factory=dict)

    def submit(self, key: Hashable, function: Callable[..., Any], *arguments: object) -> None:
        self._running[self._task.remote(_conditions(), function, arguments)] = key

    def finished(self) -> Iterator[tuple[Any, UnitOutcome]]:
        """Yield keys and outcomes of units as they end; more can be submitted meanwhile."""
        import ray

        while self._running:
            reference = ray.wait([*self._running], num_returns=1)[0][0]
            yield self._running.pop(reference), _outcome(reference)

    def on_each(self, function: Callable[..., Any], *arguments: object) -> list[Any]:
        """Return what a function returns on each node, without using its slots.

        A node that died is left out from now on: Ray names it for some seconds after its death.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        free = {"num_cpus": 0, "num_gpus": 0, "memory": None}
        pinned = [NodeAffinitySchedulingStrategy(node, soft=False) for node in self._nodes]
        tasks = [self._task.options(**free, scheduling_strategy=strategy) for strategy in pinned]
        asked = [task.remote(_conditions(), function, arguments) for task in tasks]
        outcomes = [_outcome(reference, LOOK_SECONDS) for reference in asked]
        alive = {node["NodeID"] for node in _alive(ray)}
        answered = {
            node: outcome
            for node, outcome in zip(self._nodes, outcomes, strict=True)
            if node in alive or not outcome.is_lost
        }
        errors = [outcome.error for outcome in answered.values() if outcome.error is not None]
        if errors or not answered:
            why = errors[0] if errors else "all of them died"
            raise ClusterError(f"a node cannot do its part: {why}")
        self._nodes = tuple(answered)
        return [outcome.result for outcome in answered.values()]

    def require_same(self, what: str, function: Callable[..., str], *arguments: object) -> None:
        """Refuse a cluster if a function of this package returns another value on a node."""
        here = function(*arguments)
        for found in self.on_each(function, *arguments):
            if found != here:
                raise ClusterError(
                    f"{what} on a node is {found}, here it is {here}; give all nodes the same "
                    "files, or leave --cluster out"
                )


@contextmanager
def opened_cluster(
    request: ClusterRequest | None, *, shows_output: bool = False
) -> Iterator[Cluster | None]:
    """Connect to a cluster, and check that its nodes can run the same work as this process.

    None if no cluster is asked for.
    """
    if request is None or not request.cluster:
        yield None
        return
    ray = _connected(request.cluster, shows_output=shows_output)
    try:
        alive = _alive(ray)
        needs, has = request.needs(alive), [node["Resources"] for node in alive]
        rooms = [min(int(had.get(kind, 0) / need) for kind, need in needs.items()) for had in has]
        if not any(rooms):
            raise ClusterError(
                f"no node of the cluster {request.cluster} has {needs}; they have {has}. Ask for "
                "less with --cpus-per-task, --gpus-per-task or --memory-gib-per-task"
            )
        hosts, store = {node["NodeManagerAddress"] for node in alive}, tracking_uri()
        if len(hosts) > 1 and store.startswith(SQLITE_PREFIX):
            raise ClusterError(
                f"the nodes of {request.cluster} are {len(hosts)} machines, but the tracking store "
                f"{store} is a file on one of them; set MLFLOW_TRACKING_URI to a server"
            )
        names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options = {names[kind]: need for kind, need in needs.items()}
        task = ray.remote(**options, max_retries=NUM_RETRIES)(_carry_out)
        used = tuple(n["NodeID"] for n, units in zip(alive, rooms, strict=True) if units)
        cluster = Cluster(sum(rooms), task, used)
        cluster.machines = tuple(cluster.on_each(describe_machine))
        yield cluster
    finally:
        ray.shutdown()


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _connected(address: str, *, shows_output: bool) -> Any:
    try:
        import ray
    except ImportError:
        raise ClusterError(
            "--cluster needs Ray, which is not installed; install it with "
            "pip install 'clew[cluster]', or leave --cluster out"
        ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    host, _, port = address.rpartition(":")
    if address not in (LOCAL, AUTO) and not (host and port.isdecimal()):
        raise ClusterError(f"--cluster is {address!r}; expected HOST:PORT, {AUTO} or {LOCAL}")
    own: dict[str, Any] = {"num_cpus": num_cores(), "object_store_memory": LOCAL_STORE_BYTES}
    wrong, kinds = f"the cluster {address} cannot be reached", (RuntimeError, ValueError, OSError)
    advice = "; give HOST:PORT of its head (ray start --head) and run this on one of its nodes, or "
    try:
        with refusing(wrong, *kinds, advice=f"{advice}give local", error=ClusterError):
            if host:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            started = own | {"include_dashboard": False} if address == LOCAL else {}
            ray.init(address, **started, log_to_driver=shows_output, configure_logging=False)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


def _outcome(reference: Any, timeout: float | None = None) -> UnitOutcome:
    import ray

    try:
        return UnitOutcome(ray.get(reference, timeout=timeout))
    except ray.exceptions.RayTaskError as failure:
        if isinstance(failure.cause, ClewError):
            return UnitOutcome(None, failure.cause)
        raise
    except ray.exceptions.RayError as failure:
        lost = f"lost, started again up to {NUM_RETRIES} times ({described(failure)}); check "
        lost += "whether its node has enough memory"
        return UnitOutcome(None, ClusterError(lost), is_lost=True)


@cache
def _code() -> str:
    return f"Clew {code_digest()[:8]} with torch {version('torch')}, Python {python_version()}"


def _conditions() -> tuple[str, str, dict[str, str]]:
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return _code(), os.getcwd(), given | {"MLFLOW_TRACKING_URI": tracking_uri()}


def _carry_out(
    conditions: tuple[str, str, dict[str, str]],
    function: Callable[..., Any],
    arguments: tuple[object, ...],
) -> Any:
    (expected, folder, environment), host = conditions, socket.gethostname()
    if _code() != expected:
        raise ClusterError(f"{host} runs {_code()}, the command {expected}; install the same there")
    advice = "; nodes need the same folders as the command, for example on a shared file system"
    with refusing(f"no such folder on {host}", OSError, advice=advice, error=ClusterError):
        os.chdir(folder)
    os.environ.update(environment)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    return function(*arguments)
