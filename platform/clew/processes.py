"""Settings of this process, and child processes that stop when this process stops."""

import ctypes
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

typed_command: ContextVar[str] = ContextVar("typed_command", default="")
"""The running command, as a person would type it; empty if a program calls Clew."""
PARENT_VARIABLE = "CLEW_PARENT"
"""Environment variable: id of the process whose end also ends this command."""
SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)
STOPPED_WITHIN_SECONDS = 8.0
"""How long a command may take to stop after the second request to stop."""
ONE_REQUEST_SECONDS = 0.1
"""SIGTERMs that follow each other faster are one request: see `end_with_parent`."""


def collect_garbage_rarely() -> None:
    """Let Python collect reference cycles after 50,000 new objects instead of 700.

    With the default, a sixth of the import time of torch and MLflow, and half of the time to read
    many runs, went into collections that found nothing. Training collects the newest objects itself
    (`clew.training.memory`).
    """
    gc.set_threshold(50_000, 20, 50)


def run_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    capture: bool = False,
    started: Callable[[subprocess.Popen[str]], None] = lambda process: None,
) -> tuple[int, str]:
    """Run a command to its end and return its exit code and its standard output.

    A SIGTERM to this process also stops a command of the main thread; `started` is called with the
    process, so that others can stop it. It has the variables of `environment` too, but
    not the run that `mlflow run` opened, which is for this process only. With `capture`, its output
    is not printed.
    """
    inherited = {key: value for key, value in os.environ.items() if key != "MLFLOW_RUN_ID"}
    with subprocess.Popen(
        command,
        env=inherited | dict(environment or {}),
        stdout=subprocess.PIPE if capture else None,
        text=True,
    ) as process:
        started(process)
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
    """Return whether a call returns or raises, tried in a fork of this process.

    This is for libraries that loop forever or crash on a damaged file. Only processor time counts,
    so a slow disk does not matter.
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
    """Ask the system to send this process a SIGTERM when the process in `CLEW_PARENT` dies.

    A study that is killed, even by SIGKILL, then also stops its training.

    Raises:
        SystemExit: If that process is dead already.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(130)


def end_at_second_signal() -> None:
    """Let a second SIGINT or SIGTERM end this process soon, whatever it is doing.

    Python runs a handler only between two of its instructions, so one long call of compiled code
    keeps a process from noticing any signal. A small process watches: Python tells it of signals
    through a pipe, from the handler in C. It kills this process if that does not stop by itself.
    """
    told, tells = os.pipe()
    if os.fork() == 0:
        os.close(tells)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _watch(told, os.getppid())
        os._exit(0)
    os.close(told)
    os.set_blocking(tells, False)
    signal.set_wakeup_fd(tells, warn_on_full_buffer=False)

    def stop_telling() -> None:  # a signal to a forked process is no request to stop its parent
        signal.set_wakeup_fd(-1)
        os.close(tells)

    os.register_at_fork(after_in_child=stop_telling)


def _watch(told: int, process: int) -> None:
    requests, last_term = 0, -ONE_REQUEST_SECONDS
    while requests < 2:
        number = os.read(told, 1)
        if not number:
            return
        now = time.monotonic()
        requests += number[0] == signal.SIGINT
        if number[0] == signal.SIGTERM:
            requests += now - last_term >= ONE_REQUEST_SECONDS
            last_term = now
    end = time.monotonic() + STOPPED_WITHIN_SECONDS
    while (left := end - time.monotonic()) > 0:
        if select.select([told], [], [], left)[0] and not os.read(told, 512):
            return
    os.write(2, b"clew: error: killed, because it did not stop; what it wrote before is whole\n")
    os.kill(process, signal.SIGKILL)
