"""Trains or explains in a separate process, to measure its memory peak alone."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from subprocess import Popen
from typing import Any

from clew.config.load import to_yaml
from clew.config.schema import RunConfig
from clew.errors import ClewError, Interrupted, ProtectedStop, UsageError
from clew.files import working_folder
from clew.processes import PARENT_VARIABLE, run_child
from clew.workflows.train import TrainResult

_ERRORS: dict[int, type[ClewError]] = {2: UsageError, 3: ProtectedStop, 130: Interrupted}


def train_in_child(
    config: RunConfig,
    *,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    resumes: str = "",
    num_threads: int | None = None,
    started: Callable[[Popen[str]], None] = lambda process: None,
) -> TrainResult:
    """Train like `train`, but in a new process, whose output is printed by this one.

    With `resumes`, a run with this configuration, it goes on from that run's last checkpoint. It
    uses `num_threads`; None: as many as this process. `started` is called with the process, for one
    that has to be stopped.
    """
    with working_folder("child") as folder:
        path, result = folder / "config.yaml", folder / "result.json"
        path.write_text(to_yaml(config), encoding="utf-8")
        command = [sys.executable, "-m", "clew", "train"]
        command += ["--resume", resumes] if resumes else ["--config", str(path)]
        command += ["--result-file", str(result), "--parent-run", parent_run_id or ""]
        command += ["--tags", json.dumps(dict(tags or {}))]
        threads = {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)}
        _run(command, "training", threads, started)
        return TrainResult(**json.loads(result.read_text(encoding="utf-8")))


def trace_in_child(model: str, tests: str, settings: Mapping[str, Any]) -> str:
    """Explain triples like `tracin`, but in a new process, and return the id of its run."""
    assignments = ",".join(f"{key}={value}" for key, value in settings.items())
    command = [sys.executable, "-m", "clew", "tracin", "--model", model, "--test", tests]
    command += ["--set", assignments, "--json"]
    return str(json.loads(_run(command, "tracin").splitlines()[-1])["run_id"])


def _run(
    command: list[str],
    what: str,
    environment: Mapping[str, str] | None = None,
    started: Callable[[Popen[str]], None] = lambda process: None,
) -> str:
    """Run a command and return what it prints; its exit code decides the class of an error."""
    own = {PARENT_VARIABLE: str(os.getpid())} | dict(environment or {})
    code, printed = run_child(command, environment=own, capture=True, started=started)
    if code:
        kind = _ERRORS.get(code, ClewError)
        raise kind(f"{what} ended with exit code {code}; its message is above")
    return printed
