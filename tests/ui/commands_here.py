"""Runs the pages' commands in the test, which decides when each starts and is seen to end."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clew.__main__ import run
from clew.ui import access
from clew.ui.components import job_view
from clew.ui.data import jobs as jobs_module
from clew.ui.data.jobs import Job
from clew.ui.data.warm_process import Command


class CommandsHere:
    """Replaces the jobs of a server; each job waits until the test runs it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.asked: list[tuple[Job, list[str]]] = []
        monkeypatch.setattr(jobs_module, "jobs", lambda: self)
        monkeypatch.setattr(job_view, "SECONDS_AT_FIRST", 0.0)

    @property
    def last(self) -> Job:
        """The last requested job."""
        return self.asked[-1][0]

    def start(
        self,
        arguments: Sequence[str],
        *,
        title: str,
        action: access.Action,
        files: Mapping[str, str | bytes] | None = None,
    ) -> Job:
        """Store a command and write its files."""
        person = access.authorize(action)
        job_id = f"{len(self.asked):012x}"
        folder = self.folder / job_id
        folder.mkdir(parents=True)
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        job = Job(job_id, title, folder, Command(folder), action, person)
        placed = [argument.replace("{folder}", str(folder)) for argument in arguments]
        self.asked.append((job, placed))
        return job

    def find(self, job_id: str) -> Job | None:
        """Return a job by its id."""
        return next((job for job, _ in self.asked if job.job_id == job_id), None)

    def warm_up(self) -> None:
        """Do nothing."""

    def run_last(self, *, report: bool = True) -> Job:
        """Run the last requested command; without `report` it still counts as running."""
        job, arguments = self.asked[-1]
        with (
            (job.folder / "stdout").open("w") as out,
            (job.folder / "stderr").open("w") as errors,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            exit_code = run(arguments)
        if report:
            job.process.report(0, exit_code)
        return job
