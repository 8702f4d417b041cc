"""Child processes for all work that needs a model.

They are forks of a process that has already imported torch and MLflow (`multiprocessing`'s
forkserver), so they start at once. A job belongs to the server, not to a browser tab: a reloaded
page finds it by its id. It writes its output to files, which the pages read while they grow.
"""

import atexit
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import streamlit as st

from clew.errors import UsageError
from clew.files import ONLY_DATA_VARIABLE, data_folder, working_folder
from clew.runs import store
from clew.ui import access
from clew.ui.components import basics
from clew.ui.components.tables import seconds_text
from clew.ui.work import EXIT_CODE_FILE, LEFT_OUT, WORK, start_work

MAX_RUNNING = 4
"""Commands of one person that run at once; answers count apart from what takes longer."""
MAX_KEPT = 50
TAIL_CHARACTERS = 20_000
SECONDS_TO_STOP = 5.0

JobState = Literal["running", "done", "refused", "failed", "cancelled"]
SECONDS_BETWEEN = 0.5
SECONDS_AT_FIRST = 1.0
TAIL_LINES = 30
ICONS = {"running": "▶", "done": "✓", "refused": "✗", "failed": "✗", "cancelled": "■"}


@dataclass
class Job:
    """One child process."""

    job_id: str
    title: str
    folder: Path
    action: access.Action
    asked: object
    """One of the requests of `clew.ui.work`."""
    person: str = ""
    """Who started it, empty if nobody has to sign in."""
    cancelled_by: str = ""
    started: float = field(default_factory=time.time)
    cancelled: bool = False
    exit_code: int | None = None
    """None while the job runs; negative if a signal ended it."""
    pid: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def state(self) -> JobState:
        """Return the state of the job; exit code 3 (stopped to protect the result) is `refused`."""
        if self.exit_code is None:
            return "running"
        if self.cancelled and self.exit_code:  # it may have ended before it was told
            return "cancelled"
        return {0: "done", 3: "refused"}.get(self.exit_code, "failed")  # type: ignore[return-value]

    @property
    def seconds(self) -> float:
        return time.time() - self.started

    def text_of(self, name: str) -> str:
        """Return the text of a file in the job's folder, empty if there is none."""
        with suppress(OSError):
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        return ""

    def output(self) -> str:
        return self.text_of("stdout")

    def log(self) -> str:
        """Return the end of the job's standard error."""
        return self.text_of("stderr")[-TAIL_CHARACTERS:]

    def message(self) -> str:
        """Return the last line of the log: the error message of a job that failed."""
        lines = [line for line in self.log().splitlines() if line.strip()]
        return lines[-1].removeprefix("clew: error: ") if lines else ""

    def events(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the job wrote, one per line."""
        found = []
        for line in self.output().splitlines():
            with suppress(ValueError):
                if line.startswith("{"):
                    found.append(json.loads(line))
        return found

    def result(self) -> dict[str, Any] | None:
        """Return the last JSON object that the job wrote, None if there is none."""
        return next(reversed(self.events()), None)

    def run_id(self) -> str:
        """Return the id of the run that the job made, empty if the job wrote none."""
        return next((str(event["run_id"]) for event in self.events() if event.get("run_id")), "")

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until the job ends, for at most `timeout_seconds`."""
        self.ended.wait(timeout_seconds)

    def cancel(self) -> None:
        """Interrupt the job as Ctrl-C does; kill it if it does not end.

        Raises:
            AccessError: The person may not start such a job either.
        """
        person = access.authorize(self.action)
        if not self.ended.is_set():
            self.cancelled, self.cancelled_by = True, person
            threading.Thread(target=self.end, args=(signal.SIGINT,), daemon=True).start()

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the job's processes; kill them if they do not end."""
        for each in (number, signal.SIGKILL):
            if not self.ended.is_set():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, each)
                self.ended.wait(SECONDS_TO_STOP)

    def watch(self, process: ForkServerProcess) -> None:
        """Wait for the end of the process, and keep its exit code."""
        process.join()
        written = self.text_of(EXIT_CODE_FILE)
        if not written:  # it was killed, or lives on without the process that forked it
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.exit_code = int(written) if written else process.exitcode
        self.ended.set()


def folders_of_data() -> str:
    """Return the folders whose data people who sign in may read, with `os.pathsep` between them."""
    return os.pathsep.join([str(data_folder() or ""), str(store.project_root() / LEFT_OUT)])


class Jobs:
    """The jobs of this server."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self.folder = self._held.enter_context(working_folder("jobs"))
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([WORK])
        atexit.register(self.close)

    def start(
        self,
        asked: object,
        *,
        title: str,
        action: access.Action,
        files: Mapping[str, bytes] | None = None,
    ) -> Job:
        """Start a job, unless the person has the same one running, which is returned.

        `files` are first written to its folder. What it records names the signed-in person, or the
        system's user if there is none.

        Raises:
            AccessError: The person may not do this.
            UsageError: Too many jobs are running.
        """
        person = access.authorize(action)
        with self._lock:
            kept, is_answer = self._jobs.values(), action == "ask"
            own = [job for job in kept if job.person == person and job.state == "running"]
            again = (job for job in own if job.asked == asked and not job.cancelled)
            if not is_answer and (twice := next(again, None)):  # a button was pressed twice
                return twice
            running = sum((job.action == "ask") == is_answer for job in own)
            if running >= MAX_RUNNING:
                problem = f"{running} of your commands are running, which is the limit"
                raise UsageError(f"{problem}; wait until one ends, or cancel one")
            job_id = uuid.uuid4().hex[:12]
            job = Job(job_id, title, self.folder / job_id, action, asked, person)
            job.folder.mkdir()
            try:
                for name, content in (files or {}).items():
                    (job.folder / name).parent.mkdir(exist_ok=True)
                    (job.folder / name).write_bytes(content)
            except OSError:  # the disk is full
                shutil.rmtree(job.folder, ignore_errors=True)
                raise
            environment = {"MLFLOW_TRACKING_URI": store.tracking_uri()}
            if person:
                environment |= {store.PERSON_VARIABLE: person}
                environment |= {ONLY_DATA_VARIABLE: folders_of_data()}
            given = (WORK, asked, job.folder, environment, store.project_root())
            process = self._context.Process(target=start_work, args=given)
            with _nothing_to_import():
                process.start()
            assert process.pid is not None
            job.pid = process.pid
            threading.Thread(target=job.watch, args=(process,), daemon=True).start()
            self._jobs[job_id] = job
            ended = [job for job in kept if job.state != "running"]
            for old in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
                del self._jobs[old.job_id]
                shutil.rmtree(old.folder, ignore_errors=True)
            return job

    def find(self, job_id: str) -> Job | None:
        """Return a job, None if the server does not have it (any more)."""
        return self._jobs.get(job_id)

    def close(self) -> None:
        for job in self._jobs.values():
            job.end(signal.SIGTERM)
        self._held.close()

    def warm_up(self) -> None:
        """Get ready for the first job, in the background."""
        with _nothing_to_import():
            forkserver.ensure_running()


@contextmanager
def _nothing_to_import() -> Iterator[None]:
    """Hide the page, which Streamlit puts into the place of `__main__`: children would run it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    return Jobs()


Show = Callable[[Job], None]


def show(job_id: str, *, progress: Show | None = None, result: Show | None = None) -> None:
    """Show a job with its output so far, refreshed while it runs, and its result once it has ended.

    If the server does not have the job (any more), a note is shown.
    """
    job = jobs().find(job_id)
    if job is None:
        basics.note("This dashboard no longer knows that command; start it again.")
        return
    if job.state == "running" and job.seconds < SECONDS_AT_FIRST:
        job.wait(SECONDS_AT_FIRST)  # most jobs have ended by then, and need no refresh
    running = job.state == "running"

    def body() -> None:
        with basics.guarded("The command"):
            _body(job, progress)
        if running and job.state != "running":
            st.rerun()

    st.fragment(body, run_every=SECONDS_BETWEEN if running else None)()
    if not running and result is not None:
        with basics.guarded("The result"):
            result(job)


def _body(job: Job, progress: Show | None) -> None:
    state, log = job.state, job.log().replace("\r", "\n").strip().splitlines()
    line = f"{ICONS[state]} **{basics.markdown(job.title)}** · {state}"
    if who := job.cancelled_by or job.person:
        line += f" by {basics.markdown(who)}" if job.cancelled_by else f", {basics.markdown(who)}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{line} · {seconds_text(job.seconds)}" if state == "running" else line)
        if state == "running":
            cancel, allowed = basics.attempt(job.cancel), access.may(job.action)
            st.button("Cancel", f"cancel-{job.job_id}", on_click=cancel, disabled=not allowed)
    if state == "running":
        last = basics.markdown(log[-1][:200]) if log else "working …"
        st.progress(_share(job.events()), text=last)
    if progress is not None:
        progress(job)
    if state in {"failed", "refused"}:
        st.error(basics.markdown(job.message() or f"It ended with exit code {job.exit_code}."))
    if log:
        with st.expander("Its messages"):
            st.code("\n".join(log[-TAIL_LINES:]), language=None, wrap_lines=True)


def _share(events: list[dict[str, Any]]) -> float:
    """Return the share that is done, if the command reports it, else a small share."""
    for event in reversed(events):
        done, total = event.get("done"), event.get("total")
        if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
            return max(0.0, min(1.0, done / total))
    return 0.05
