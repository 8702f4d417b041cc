"""Child processes: all work that needs a model runs as `clew <verb>`, as on the command line.

They are forked from a warm process that has already imported torch and MLflow, so they start at
once. A job belongs to the server, not to a browser tab: a reloaded page finds the job by its id.
A job writes its output to files, which the pages read while they grow.
"""

import atexit
import json
import re
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from clew.errors import UsageError
from clew.runs import store
from clew.ui import access
from clew.ui.data.warm_process import Command, WarmProcess

MAX_RUNNING = 4
MAX_KEPT = 50
TAIL_CHARACTERS = 20_000
SECONDS_TO_STOP = 5.0
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")

JobState = Literal["running", "done", "refused", "failed", "cancelled"]


@dataclass
class Job:
    """One child process."""

    job_id: str
    title: str
    folder: Path
    process: Command
    action: access.Action
    person: str = ""
    """Who started it, empty if nobody has to sign in."""
    cancelled_by: str = ""
    started: float = field(default_factory=time.time)
    cancelled: bool = False

    @property
    def state(self) -> JobState:
        """Return the state of the job; exit code 3 (stopped to protect the result) is `refused`."""
        code = self.process.poll()
        if code is None:
            return "running"
        if self.cancelled:
            return "cancelled"
        return {0: "done", 3: "refused"}.get(code, "failed")  # type: ignore[return-value]

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, None while the job runs."""
        return self.process.poll()

    @property
    def seconds(self) -> float:
        """Return the seconds since the job started."""
        return time.time() - self.started

    def text_of(self, name: str) -> str:
        """Return the text of a file in the job's folder, empty if there is none."""
        with suppress(OSError):
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        return ""

    def output(self) -> str:
        return self.text_of("stdout")

    def log(self) -> str:
        return self.text_of("stderr")[-TAIL_CHARACTERS:]

    def message(self) -> str:
        """Return the last line of the log: the error message of a command that failed."""
        lines = [line for line in self.log().splitlines() if line.strip()]
        return lines[-1].removeprefix("clew: error: ") if lines else ""

    def events(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the job printed, one per line."""
        found = []
        for line in self.output().splitlines():
            with suppress(ValueError):
                content = json.loads(line) if line.startswith("{") else None
                if isinstance(content, dict):
                    found.append(content)
        return found

    def result(self) -> dict[str, Any] | None:
        """Return the whole output as one JSON object, None if it is not one."""
        with suppress(ValueError):
            content = json.loads(self.output())
            return content if isinstance(content, dict) else None
        return None

    def run_id(self) -> str:
        """Return the id of the run that the job made, empty if the job printed none."""
        for event in self.events():
            if isinstance(run_id := event.get("run_id"), str):
                return run_id
        found = RUN_ID.search(self.output())
        return found[0] if found else ""

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until the job ends, for at most `timeout_seconds`."""
        self.process.wait(timeout_seconds)

    def cancel(self) -> None:
        """Interrupt the job as Ctrl-C does; kill it if it does not end.

        Raises:
            AccessError: The person may not start such a job either.
        """
        person = access.authorize(self.action)
        if self.process.poll() is None:
            self.cancelled, self.cancelled_by = True, person
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        if self.process.wait(SECONDS_TO_STOP) is None:
            self.process.send_signal(signal.SIGKILL)


class Jobs:
    """The jobs of this server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clew-jobs-"))
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._warm = WarmProcess()
        atexit.register(self.close)

    def start(
        self,
        arguments: Sequence[str],
        *,
        title: str,
        action: access.Action,
        files: Mapping[str, str | bytes] | None = None,
    ) -> Job:
        """Start `clew` with arguments.

        `files` are first written to a new folder, whose path replaces `{folder}` in the arguments.
        What the command records names the signed-in person, or the system's user if there is none.

        Raises:
            AccessError: The person may not do this.
            UsageError: Too many jobs are running.
        """
        person = access.authorize(action)
        with self._lock:
            running = sum(job.state == "running" for job in self._jobs.values())
            if running >= MAX_RUNNING:
                raise UsageError(
                    f"{running} commands are running, which is the limit; wait until one ends, or "
                    "cancel one"
                )
            job_id = uuid.uuid4().hex[:12]
            folder = self.folder / job_id
            folder.mkdir()
            for name, content in (files or {}).items():
                (folder / name).parent.mkdir(exist_ok=True)
                data = content.encode() if isinstance(content, str) else content
                (folder / name).write_bytes(data)
            placed = [argument.replace("{folder}", str(folder)) for argument in arguments]
            environment = {"MLFLOW_TRACKING_URI": store.tracking_uri()}
            environment |= {store.PERSON_VARIABLE: person} if person else {}
            process = self._warm.start(job_id, placed, folder, environment)
            job = Job(job_id, title, folder, process, action, person)
            self._jobs[job_id] = job
            self._forget_old()
            return job

    def find(self, job_id: str) -> Job | None:
        """Return a job, None if the server does not have it (any more)."""
        return self._jobs.get(job_id)

    def close(self) -> None:
        self._warm.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def warm_up(self) -> None:
        """Get ready for the first command, in the background."""
        self._warm.open()

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if job.state != "running"]
        for job in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[job.job_id]
            shutil.rmtree(job.folder, ignore_errors=True)


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """Return the jobs of this server."""
    return Jobs()


def find(job_id: str) -> Job | None:
    """Return a job of this server, None if it does not have it (any more)."""
    return jobs().find(job_id)
