"""Processes: ours, and children with our environment that are not left behind when we stop."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

typed_command: ContextVar[str] = ContextVar("typed_command", default="")
"""The command that is being run, as a person would type it; empty where a program calls us."""
PARENT_VARIABLE = "CLEW_PARENT"
"""Environment variable: the process that a command of ours must not outlive."""
SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def collect_garbage_rarely() -> None:
    """Let Python look for reference cycles after 50,000 new objects instead of 700.

    A sixth of the time that torch and MLflow take to be imported went into searches that find
    nothing, and half of the time of reading many runs. Training searches among the newest objects
    itself (`clew.training.memory`).
    """
    gc.set_threshold(50_000, 20, 50)


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return our environment and `more`, less the run that `mlflow run` opened for us alone."""
    own = {key: value for key, value in os.environ.items() if key != "MLFLOW_RUN_ID"}
    return own | dict(more)


def run_child(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, capture: bool = False
) -> tuple[int, str]:
    """Run a command to its end; return its exit code and what it printed.

    A SIGTERM to us is one to it, so that whoever stops us stops it too.

    Args:
        command: Program and arguments.
        environment: Variables besides our own.
        capture: Return what it prints instead of printing it where we do.

    Raises:
        OSError: there is no such program.
    """
    with subprocess.Popen(
        command,
        env=child_environment(environment or {}),
        stdout=subprocess.PIPE if capture else None,
        text=True,
    ) as process:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            printed, _ = process.communicate()
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)
    return process.returncode, printed or ""


def ends_within(processor_seconds: float, call: Callable[[], object]) -> bool:
    """Whether a call ends, by itself or by an exception, tried in a copy of this process.

    For libraries that a damaged file sends into an endless loop, or ends. Only processor time
    counts, so a slow disk does not.
    """
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, processor_seconds)
            call()
        finally:
            os._exit(0)
    return not os.WIFSIGNALED(os.waitpid(child, 0)[1])


def end_with_parent() -> None:
    """Let the system send us a SIGTERM when the process that `CLEW_PARENT` names dies.

    A study that is killed, even by SIGKILL, so takes its training with it. Only Linux can.

    Raises:
        SystemExit: it is dead already.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(130)
