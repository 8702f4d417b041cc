"""Units of work on the nodes of a cluster; only this file uses Ray.

A unit is a function of this package with its arguments. It depends on no other unit, and can run
twice: if a node dies, Ray starts its units again on another node. The result of a unit is returned
to this process once, and nothing is merged on the nodes. A running unit can ask this process
questions (`Channel`).
"""

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from clew.errors import ClewError, ClusterError, described
from clew.runs.hardware import Machine, num_cores
from clew.workflows.clusters.nodes import (
    ClusterRequest,
    CommandSettings,
    called,
    carry_out,
    describe,
    needs_of,
    origin,
    require_same_code,
    require_server,
    room,
    shown,
)

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS, LOOK_SECONDS, FULL_SECONDS = 10.0, 120.0, 10.0
NUM_RETRIES = 3
"""How often a unit is started again because its node died."""
LOCAL_STORE_BYTES = 256 * 2**20

R = TypeVar("R")


class Desk:
    """Passes questions and answers on; a Ray actor on the node of the process that answers."""

    def __init__(self) -> None:
        self._questions: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()

    async def ask(self, question: str) -> str:
        """Wait for the answer to a question, and return it."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._questions.put((number, question))
        return await self._answers[number]

    async def take(self) -> tuple[int, str]:
        return await self._questions.get()

    async def answer(self, number: int, text: str) -> None:
        self._answers.pop(number).set_result(text)


class ChannelLine:
    """A unit's end of the channel, which is passed with the unit's arguments."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def ask(self, question: str) -> str:
        import ray

        return str(ray.get(self._desk.ask.remote(question)))


class Channel:
    """The end of the channel in the process that answers."""

    def __init__(self, ray: Any, desk: Any, answer: Callable[[str], str]) -> None:
        self._ray, self._desk, self._answer = ray, desk, answer
        self.next = desk.take.remote()
        """Ray's reference to the next question."""

    @property
    def line(self) -> ChannelLine:
        return ChannelLine(self._desk)

    def answer(self) -> None:
        number, question = self._ray.get(self.next)
        self._desk.answer.remote(number, self._answer(question))
        self.next = self._desk.take.remote()


@dataclass(frozen=True)
class UnitOutcome(Generic[R]):
    """The result of a unit, or the error that ended it."""

    result: R | None
    error: ClewError | None = None
    is_lost: bool = False
    """Whether the node of every attempt died."""


@dataclass
class Cluster:
    """A cluster with room for units, whose nodes all run the same code as this process."""

    address: str
    slots: int
    """Number of units that can run at the same time."""
    machines: tuple[Machine, ...]
    """The machines of the nodes."""
    _ray: Any
    _origin: CommandSettings
    _options: dict[str, Any]
    _nodes: dict[str, str]
    """Id of each node to its name for messages."""
    _running: dict[Any, Hashable] = field(default_factory=dict)

    def submit(self, key: Hashable, function: Callable[..., Any], *arguments: object) -> None:
        task = self._ray.remote(carry_out).options(**self._options)
        self._running[task.remote(self._origin, function, arguments)] = key

    def finished(self, channel: Channel | None = None) -> Iterator[tuple[Any, UnitOutcome[Any]]]:
        """Yield the keys and outcomes of units as they end, until none is left.

        More units can be submitted meanwhile. Questions on `channel` are answered while waiting.
        """
        while self._running:
            waiting = [*self._running, *([channel.next] if channel else [])]
            reference = self._ray.wait(waiting, num_returns=1)[0][0]
            if channel and reference == channel.next:
                channel.answer()
            else:
                yield self._running.pop(reference), self._outcome(reference)

    def channel(self, answer: Callable[[str], str]) -> Channel:
        here = self._ray.get_runtime_context().get_node_id()
        desk = self._ray.remote(Desk).options(num_cpus=0, max_concurrency=1000, **_at(here))
        return Channel(self._ray, desk.remote(), answer)

    def require_same(self, what: str, function: Callable[..., str], *arguments: object) -> None:
        """Refuse a cluster if a function of this package returns another value on a node.

        Raises:
            ClusterError: The values differ. The message names the node.
        """
        here = function(*arguments)
        for node, found in self._on_each(function, *arguments).items():
            if found != here:
                raise ClusterError(
                    f"{what} on node {node} is {found}, here it is {here}; give all nodes the same "
                    "files, or leave --cluster out"
                )

    def _on_each(self, function: Callable[..., R], *arguments: object) -> dict[str, R]:
        """Return what a function returns on each node, without using slots; skip dead nodes.

        Raises:
            ClusterError: A node does not answer or cannot run the function, or all nodes died.
        """
        task, began = self._ray.remote(carry_out), time.monotonic()
        found: dict[str, Any] = {}
        while waiting := {i: node for i, node in self._living().items() if node not in found}:
            asked = {}
            for node_id, node in waiting.items():
                options = {"num_cpus": 0, "max_retries": 0, **_at(node_id)}
                asked[node] = task.options(**options).remote(self._origin, function, arguments)
            outcomes = {node: self._answer(node, reference) for node, reference in asked.items()}
            found |= {node: o.result for node, o in outcomes.items() if not o.is_lost}
            lost = {node: o.error for node, o in outcomes.items() if o.is_lost}
            for node, error in lost.items():
                if time.monotonic() - began > LOOK_SECONDS:
                    raise ClusterError(f"node {node} does not answer: {error}")
            if lost:
                time.sleep(1)  # Ray lists a dead node for some more seconds
        if not found:
            raise ClusterError(f"all nodes of the cluster {self.address} died; restart it")
        return found

    def _living(self) -> dict[str, str]:
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return {node_id: node for node_id, node in self._nodes.items() if node_id in alive}

    def _answer(self, node: str, reference: object) -> UnitOutcome[Any]:
        try:
            outcome = self._outcome(reference, timeout=LOOK_SECONDS)
        except self._ray.exceptions.RayTaskError as failure:
            reason = described(failure.cause or failure)
            raise ClusterError(
                f"node {node} cannot run Clew ({reason}); install the same versions as here"
            ) from None
        if outcome.error is not None and not outcome.is_lost:
            raise ClusterError(f"node {node}: {outcome.error}")
        return outcome

    def _outcome(self, reference: object, timeout: float | None = None) -> UnitOutcome[Any]:
        errors = self._ray.exceptions
        try:
            return UnitOutcome(self._ray.get(reference, timeout=timeout))
        except errors.GetTimeoutError:
            error: ClewError = ClusterError(f"does not answer for {timeout:.0f} s; restart it")
        except errors.RayTaskError as failure:
            if not isinstance(failure.cause, ClewError):
                raise
            error = failure.cause
        except errors.RayError as failure:
            lost = ClusterError(
                f"lost, started again up to {NUM_RETRIES} times ({described(failure)}); check "
                "whether its node has enough memory"
            )
            return UnitOutcome(None, lost, is_lost=True)
        return UnitOutcome(None, error)


def _at(node_id: str) -> dict[str, object]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


@contextmanager
def opened_cluster(request: ClusterRequest, *, shows_output: bool = False) -> Iterator[Cluster]:
    """Connect to a cluster, and check that its nodes can run the same work as this process.

    Args:
        request: The cluster, and the resources that a unit needs.
        shows_output: Print the output of units here.

    Raises:
        ClusterError: Ray is not installed, the cluster cannot be reached, a node has other code or
            other folders, or there is no room for one unit.
    """
    ray = _connected(request.address, shows_output=shows_output)
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        needs = needs_of(request, alive)
        rooms = {node["NodeID"]: room(node["Resources"], needs) for node in alive}
        if not any(rooms.values()):
            raise ClusterError(
                f"no node of the cluster {request.address} has {shown(needs)}; it has "
                f"{'; '.join(shown(node['Resources']) for node in alive)}. Ask for less with "
                "--cpus-per-task, --gpus-per-task or --memory-gib-per-task"
            )
        used = {n["NodeID"]: called(n) for n in alive if rooms[n["NodeID"]]}
        require_server(request.address, {n["NodeManagerAddress"] for n in alive})
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
        options |= {"memory": needs["memory"]} if "memory" in needs else {}
        options |= {"max_retries": NUM_RETRIES, "retry_exceptions": False}
        cluster = Cluster(request.address, 0, (), ray, origin(), options, used)
        cluster.machines = require_same_code(cluster._on_each(describe))
        cluster.slots = sum(rooms[node_id] for node_id in cluster._living())
        _require_room(ray, request.address, needs)
        yield cluster
    finally:
        ray.shutdown()


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
    settings: dict[str, Any] = {"address": address}
    if address == LOCAL:
        settings |= {
            "num_cpus": num_cores(),
            "include_dashboard": False,
            "object_store_memory": LOCAL_STORE_BYTES,
        }
    elif address != AUTO:
        _require_reachable(address)
    try:
        ray.init(**settings, log_to_driver=shows_output, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"no Ray cluster at {address} ({described(error)}); give HOST:PORT of its head and run "
            "this on one of its nodes (ray start --address HOST:PORT joins this machine to it), or "
            "give local"
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


def _require_reachable(address: str) -> None:
    """Refuse an address where no server listens, because Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"--cluster is {address!r}; expected HOST:PORT, {AUTO} or {LOCAL}")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"the cluster {address} cannot be reached ({described(error)}); start its head with "
            "ray start --head, or correct the address"
        ) from None


def _require_room(ray: Any, address: str, needs: Mapping[str, float]) -> None:
    """Refuse a cluster that is full with other work, because units would wait silently."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(needs)])
    has_room = group.wait(FULL_SECONDS)
    remove_placement_group(group)
    if not has_room:
        raise ClusterError(
            f"the cluster {address} is full: a task needs {shown(needs)}, and "
            f"{shown(ray.available_resources())} are free; wait until its other work ends, or add "
            "a node"
        )
