"""A process that imports everything once and then forks for each command that it is asked to run.

    python -m clew.warm

A new Python process spends seconds on importing torch and MLflow; a fork of this process spends
none. Requests are lines of JSON on standard input. Reports about the commands are lines of JSON on
standard output. This process ends when its input ends; the commands continue.

This process never computes: a fork has only the thread that forked, so this process must not start
other threads.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pydantic import BaseModel

from clew.__main__ import main as run_command
from clew.__main__ import prepare_environment
from clew.processes import collect_garbage_rarely

PRELOADED = (
    "torch._dynamo",  # every optimizer imports it
    "clew.cli.explanations",
    "clew.cli.models",
    "clew.workflows.predict",
    "clew.workflows.predict_frames",
    "clew.workflows.predict_text",
    "clew.workflows.promote",
    "clew.workflows.predict",
    "clew.workflows.explaining.tracin",
)
HELD = {signal.SIGCHLD, signal.SIGTERM}


class Request(BaseModel):
    """A command to run."""

    job_id: str
    arguments: list[str]
    """Arguments of `clew`."""
    environment: dict[str, str]
    """Variables in addition to the environment of this process."""
    cwd: Path
    folder: Path
    """Folder for the files `stdout` and `stderr`."""


class Report(BaseModel):
    """A report that a command started or ended."""

    job_id: str
    pid: int
    exit_code: int | None = None
    """None if the command started; negative if a signal ended it."""

    def send(self) -> None:
        """Write the report as one line, short enough for a single atomic write."""
        os.write(1, self.model_dump_json().encode() + b"\n")


class Forks:
    """The commands that are running."""

    def __init__(self) -> None:
        self._running: dict[int, str] = {}

    def start(self, request: Request) -> None:
        """Fork a child that runs the command; the child never returns from this method."""
        # Signals are blocked until the child is registered, because it can end immediately.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
            become(request)
            run_and_end()
        self._running[pid] = request.job_id
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)

    def collect(self, number: int, frame: FrameType | None) -> None:
        """Report the commands that have ended; this is the handler of SIGCHLD."""
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            Report(job_id=self._running.pop(pid), pid=pid, exit_code=code).send()


def become(request: Request) -> None:
    """Turn this fork into an independent process for one command.

    The fork itself reports that it started. If the parent process is killed at that moment, the
    program that requested the command still knows which process to stop.
    """
    os.setsid()
    Report(job_id=request.job_id, pid=os.getpid()).send()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(request.folder / "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        os.open(request.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
    )
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # the old one has read ahead
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(request.environment)
    os.chdir(request.cwd)
    sys.argv = ["clew", *request.arguments]


def run_and_end() -> NoReturn:
    """Run the command, run its exit functions, and end the process.

    A normal exit of the interpreter clears every imported module, which takes more than half a
    second. `multiprocessing` ends its forks in the same way as this function.
    """
    code: object = 1
    try:
        run_command()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # a traceback, as the interpreter shows it
        traceback.print_exc()
    finally:
        with suppress(BaseException):  # a second interruption, or a closed output
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def preload() -> None:
    for name in PRELOADED:
        import_module(name)
    import_module("clew.runs.mlflow_store").preload_databases()


def main() -> None:
    """Serve requests until the input ends."""
    collect_garbage_rarely()
    prepare_environment()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the dashboard
    preload()
    gc.freeze()  # else a collection in a fork, above all the last one, copies all of this memory
    forks = Forks()
    signal.signal(signal.SIGCHLD, forks.collect)
    for line in sys.stdin:
        forks.start(Request.model_validate_json(line))


if __name__ == "__main__":
    main()
