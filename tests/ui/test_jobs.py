"""Child processes of the dashboard: real commands, their output, their end, cancelling them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.errors import UsageError
from clew.ui.components.answers import traced_run
from clew.ui.data import jobs as jobs_module
from clew.ui.data.jobs import Job, Jobs


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = Jobs()
    yield found
    found.close()


def finished(job: Job) -> Job:
    job.process.wait()
    return job


SAY_SO_AND_WAIT = """
open('{pipe}', 'w').close()
import time
while True: time.sleep(0.1)
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a named pipe: opening one end waits for the other."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def shell(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let jobs run a Python program in place of the command line."""
    import subprocess
    import sys

    def spawn(arguments: list[str], folder: Path, person: str) -> "subprocess.Popen[bytes]":
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, "-u", "-c", program, *arguments],
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    monkeypatch.setattr(jobs_module, "_spawn", spawn)


def test_a_command_that_works(jobs: Jobs) -> None:
    job = finished(jobs.start(["--version"], title="version"))
    assert job.state == "done"
    assert "version" in job.output()
    assert jobs.find(job.job_id) is job
    assert jobs.find("unknown") is None


def test_a_command_that_fails_says_why(jobs: Jobs) -> None:
    job = finished(jobs.start(["data", "--name=<b>no such data</b>"], title="data"))
    assert job.state == "failed"
    assert job.exit_code == 2
    assert "<b>no such data</b>" in job.message()
    assert "Traceback" not in job.log()


def test_a_refusal_is_not_a_failure(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "raise SystemExit(3)")
    assert finished(jobs.start([], title="refused")).state == "refused"


def test_events_come_while_it_runs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path) -> None:
    shell(
        monkeypatch,
        "print('{\"name\": \"weights\", \"passed\": true}'); print('{broken'); print('[1]')\n"
        + SAY_SO_AND_WAIT.format(pipe=pipe),
    )
    job = jobs.start([], title="events")
    pipe.read_text()
    assert job.events() == [{"name": "weights", "passed": True}]
    assert job.state == "running"
    job.cancel()
    assert finished(job).state == "cancelled"


def test_one_that_does_not_listen_is_killed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    monkeypatch.setattr(jobs_module, "SECONDS_TO_STOP", 0.2)
    shell(
        monkeypatch,
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        + SAY_SO_AND_WAIT.format(pipe=pipe),
    )
    job = jobs.start([], title="deaf")
    pipe.read_text()
    job.cancel()
    assert finished(job).exit_code == -signal.SIGKILL
    assert job.state == "cancelled"


def test_too_many_at_once_are_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "import signal; signal.pause()")
    for _ in range(jobs_module.MAX_RUNNING):
        jobs.start([], title="waits")
    with pytest.raises(UsageError, match="commands are running"):
        jobs.start([], title="one more")


def test_files_go_beside_the_command(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "import sys; print(open(sys.argv[1]).read())")
    job = jobs.start(["{folder}/test.txt"], title="file", files={"test.txt": "a, b\tr\tc\n"})
    assert finished(job).output() == "a, b\tr\tc\n\n"


def test_the_end_of_the_server_ends_them(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "import signal; signal.pause()")
    job = jobs.start([], title="waits")
    jobs.close()
    assert finished(job).exit_code == -signal.SIGTERM
    assert not jobs.folder.exists()


@pytest.mark.parametrize(
    "output",
    [
        "run 0123456789abcdef0123456789abcdef  10 tests\n",
        '{"done": 1, "total": 2}\n{"run_id": "0123456789abcdef0123456789abcdef"}\n',
    ],
)
def test_the_run_of_an_explanation_is_found(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    shell(monkeypatch, f"print({output!r})")
    job = finished(jobs.start([], title="trace"))
    assert traced_run(job) == "0123456789abcdef0123456789abcdef"
