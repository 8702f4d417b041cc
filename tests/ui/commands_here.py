"""Does the work of the pages' jobs in the test, which decides when each is seen to end."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from clew import warm
from clew.errors import ClewError
from clew.ui import access
from clew.ui.components import jobs
from clew.ui.components.jobs import Job


class CommandsHere:
    """Replaces the jobs of a server; each job waits until the test runs it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.asked: list[Job] = []
        monkeypatch.setattr(jobs, "jobs", lambda: self)
        monkeypatch.setattr(jobs, "SECONDS_AT_FIRST", 0.0)

    @property
    def last(self) -> Job:
        """The last requested job."""
        return self.asked[-1]

    def start(
        self,
        asked: object,
        *,
        title: str,
        action: access.Action,
        files: Mapping[str, bytes] | None = None,
    ) -> Job:
        """Store a request and write its files."""
        person = access.authorize(action)
        job_id = f"{len(self.asked):012x}"
        job = Job(job_id, title, self.folder / job_id, action, asked, person)
        job.folder.mkdir(parents=True)
        for name, content in (files or {}).items():
            (job.folder / name).write_bytes(content)
        self.asked.append(job)
        return job

    def find(self, job_id: str) -> Job | None:
        """Return a job by its id."""
        return next((job for job in self.asked if job.job_id == job_id), None)

    def warm_up(self) -> None:
        """Do nothing."""

    def run_last(self, *, report: bool = True) -> Job:
        """Do the last requested work; without `report` it still counts as running."""
        job, exit_code = self.last, 0
        with (job.folder / "stdout").open("w") as out:
            try:
                warm.perform(job.asked, job.folder, out.write)
            except ClewError as error:
                (job.folder / "stderr").write_text(f"clew: error: {error}\n")
                exit_code = error.exit_code
        if report:
            job.exit_code = exit_code
            job.ended.set()
        return job
