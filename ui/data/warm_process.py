"""The dashboard's side of the warm process (`clew.warm`), and the commands that it runs."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from clew.processes import child_environment
from clew.runs import store

PROGRAM = (sys.executable, "-m", "clew.warm")
SECONDS_TO_END = 5.0
NEVER_BEGAN = "the process that starts commands ended before this command started; try again"


class Command:
    """A requested command; it starts when the warm process reads the request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._exit_code: int | None = None
        self._started, self._ended = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        """Return the exit code, None while the command runs; negative if a signal ended it."""
        return self._exit_code

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the end; return the exit code, None if the command runs longer than that."""
        self._ended.wait(timeout_seconds)
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group, unless the command has ended."""
        self._started.wait()
        if self._pid and not self._ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def report(self, pid: int, exit_code: int | None) -> None:
        """Record the process id and the exit code that the warm process reports."""
        self._pid, self._exit_code = pid, exit_code
        if exit_code is not None:
            self._ended.set()
        self._started.set()

    def lose(self) -> None:
        """End the command, because the warm process is gone and cannot report its end."""
        if self._pid:
            self.send_signal(signal.SIGTERM)
            self.report(self._pid, -signal.SIGTERM)
            return
        with suppress(OSError):
            (self._folder / "stderr").write_text(f"clew: error: {NEVER_BEGAN}\n", encoding="utf-8")
        self.report(0, 1)


class WarmProcess:
    """The process that forks commands; it is started when first needed, and again if it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._commands: dict[str, Command] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the process unless it runs, without waiting for its imports, which take seconds."""
        with self._lock:
            self._open()

    def start(
        self, job_id: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> Command:
        """Request a command, which writes its output to files in a folder."""
        request = {
            "job_id": job_id,
            "arguments": list(arguments),
            "environment": dict(environment),
            "cwd": str(store.project_root()),
            "folder": str(folder),
        }
        with self._lock:
            requests = self._open()
            command = self._commands[job_id] = Command(folder)
            try:
                requests.write(json.dumps(request) + "\n")
                requests.flush()
            except (OSError, ValueError):  # the process just died, and its listener may have ended
                command.lose()
        return command

    def close(self) -> None:
        """End the process and the commands that it runs."""
        with self._lock:
            if self._process is None or self._listener is None:
                return
            self._process.terminate()
            self._listener.join(SECONDS_TO_END)

    def _open(self) -> IO[str]:
        """Start the process unless it runs; return the stream that takes requests."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment({}),
                cwd=store.project_root(),
                text=True,
                start_new_session=True,
            )
            self._commands = {}
            arguments = (self._process, self._commands)
            self._listener = threading.Thread(target=_listen, args=arguments, daemon=True)
            self._listener.start()
        assert self._process.stdin is not None
        return self._process.stdin


def _listen(process: "subprocess.Popen[str]", commands: dict[str, Command]) -> None:
    """Pass on what a warm process reports until it ends."""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            commands[report["job_id"]].report(report["pid"], report["exit_code"])
            if report["exit_code"] is not None:
                del commands[report["job_id"]]
    for command in list(commands.values()):
        command.lose()
