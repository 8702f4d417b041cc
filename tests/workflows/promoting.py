"""Runs promotions in separate processes that are killed at a step or start at the same moment.

The checks always pass, because only the steps that write are tested. The program reads a JSON
object from standard input, and forks one process for each promotion, which writes a file.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # both are imported once, before the forks
import torch
from mlflow import MlflowClient, pyfunc
from mlflow.utils import requirements_utils

from clew.errors import PromotionRefused
from clew.runs import mlflow_store
from clew.runs.registry import RegisteredVersion, Registry
from clew.workflows.promoting import promote as promote_module
from clew.workflows.promoting.gate import Check, Gate
from clew.workflows.promoting.promote import PromotionRequest, promote

__all__ = ["mlflow", "pyfunc"]

STEPS = (
    "get_registered_model",
    "create_run",
    "search_model_versions",
    "create_logged_model",
    "log_model_artifacts",
    "finalize_logged_model",
    "create_registered_model",
    "create_model_version",
    "set_model_version_tag",
    "set_registered_model_tag",
    "set_registered_model_alias",
    "delete_registered_model_alias",
    "delete_registered_model_tag",
)
"""Client calls of a promotion's main thread, at which it can be killed."""


def accept(gate: Gate) -> Any:
    """Load the candidate and let it pass."""
    yield gate._checkpoint()
    yield gate._weights()


def skip_serving(gate: Gate, registry: Registry, version: RegisteredVersion) -> Check:
    """Return that a version can be served, without trying it."""
    return Check("served", True, "taken for granted")


def before_each(hook: Callable[[str], None]) -> None:
    """Call `hook` with the name of each step just before the main thread runs it."""
    under_way: list[str] = []  # some of MLflow's calls make other calls

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            if under_way or threading.current_thread() is not threading.main_thread():
                return original(*args, **options)
            hook(name)
            under_way.append(name)
            try:
                return original(*args, **options)
            finally:
                under_way.clear()

        return stepped

    for name in STEPS:
        setattr(MlflowClient, name, wrapped(name, getattr(MlflowClient, name)))


def child(request: PromotionRequest, hook: Callable[[str], None]) -> str:
    """Promote in this process, and return the outcome."""
    torch.set_num_threads(1)
    Gate.checks = accept  # type: ignore[method-assign]
    Gate.served = skip_serving  # type: ignore[method-assign]
    before_each(hook)
    try:
        return promote(request).outcome
    except PromotionRefused as error:
        return f"refused: {error}"


def forked(work: Callable[[], None]) -> int:
    """Run work in a forked process, and return the process id."""
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    return process


def kill_at(step: int, request: PromotionRequest, trace: Path) -> None:
    """Promote, and die just before a step; write the names of earlier steps to `trace`."""
    taken: list[str] = []
    # The test itself handles dead promotions and runs.
    promote_module._end_dead_promotions = lambda registry: None
    mlflow_store.end_dead_runs = lambda client, kind: None  # type: ignore[attr-defined]

    def hook(name: str) -> None:
        if len(taken) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        taken.append(name)
        trace.write_text("\n".join(taken), encoding="utf-8")

    child(request, hook)


def race(requests: list[PromotionRequest], results: list[Path]) -> None:
    """Run all promotions at the same moment: each waits for the others before its first claim."""
    ready, go = os.pipe(), os.pipe()

    def compete(request: PromotionRequest, result: Path) -> None:
        os.close(go[1])

        def hook(name: str) -> None:
            if name == "set_registered_model_tag" and not waited:
                waited.append(name)
                os.write(ready[1], b".")
                os.read(go[0], 1)  # returns when the parent closes its end

        waited: list[str] = []
        try:
            result.write_text(child(request, hook), encoding="utf-8")
        finally:
            hook("set_registered_model_tag")  # one that failed earlier must not block the others

    processes = [
        forked(lambda r=request, p=path: compete(r, p))  # type: ignore[misc]
        for request, path in zip(requests, results, strict=True)
    ]
    for _ in processes:
        os.read(ready[0], 1)
    os.close(go[1])
    for process in processes:
        os.waitpid(process, 0)
    for end in (*ready, go[0]):
        os.close(end)


def main() -> None:
    """Run the promotions that standard input describes."""
    # MLflow maps all installed packages to modules. This takes a second, so do it before forking.
    requirements_utils._init_packages_to_modules_map()
    task = json.load(sys.stdin)
    folder = Path(task["folder"])
    for number, group in enumerate(task["groups"]):
        requests = [PromotionRequest(run_id=run_id, name=group["name"]) for run_id in group["runs"]]
        paths = [folder / f"{number}-{index}" for index in range(len(requests))]
        if (step := group.get("kill_at")) is None:
            race(requests, paths)
        else:
            process = forked(lambda s=step, r=requests[0], p=paths[0]: kill_at(s, r, p))  # type: ignore[misc]
            os.waitpid(process, 0)


if __name__ == "__main__":
    main()
