"""Child processes of the dashboard: real commands, their output, end and cancellation."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.errors import UsageError
from clew.ui import access
from clew.ui.data import jobs as jobs_module
from clew.ui.data import warm_process
from clew.ui.data.jobs import Job, Jobs


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = Jobs()
    yield found
    found.close()


@pytest.fixture(scope="module")
def real_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Return jobs whose warm process imports everything that commands need, which takes 7 s."""
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        found = Jobs()
        yield found
        found.close()


def finished(job: Job) -> Job:
    job.wait()
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


def shell(monkeypatch: pytest.MonkeyPatch, program: str, *, before: str = "") -> None:
    """Make jobs run a Python program instead of the command line, in forks as usual.

    The program `before` runs in the process that forks.
    """
    warm = f"""
import sys
from clew import warm
{before}
def run_program():
    exec({program!r})
    sys.exit()
warm.preload, warm.run_command = lambda: None, run_program
warm.main()
"""
    monkeypatch.setattr(warm_process, "PROGRAM", (sys.executable, "-c", warm))


def test_a_command_that_works(real_jobs: Jobs) -> None:
    job = finished(real_jobs.start(["--version"], title="version", action="ask"))
    assert job.state == "done"
    assert "version" in job.output()
    assert real_jobs.find(job.job_id) is job
    assert real_jobs.find("unknown") is None


def test_a_command_that_fails_says_why(real_jobs: Jobs) -> None:
    job = finished(
        real_jobs.start(["data", "--name=<b>no such data</b>"], title="data", action="ask")
    )
    assert job.state == "failed"
    assert job.exit_code == 2
    assert "<b>no such data</b>" in job.message()
    assert "Traceback" not in job.log()


def test_a_refusal_is_not_a_failure(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "raise SystemExit(3)")
    assert finished(jobs.start([], title="refused", action="ask")).state == "refused"


def test_events_come_while_it_runs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path) -> None:
    shell(
        monkeypatch,
        "print('{\"name\": \"weights\", \"passed\": true}'); print('{broken'); print('[1]')\n"
        + SAY_SO_AND_WAIT.format(pipe=pipe),
    )
    job = jobs.start([], title="events", action="ask")
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
    job = jobs.start([], title="deaf", action="ask")
    pipe.read_text()
    job.cancel()
    assert finished(job).exit_code == -signal.SIGKILL
    assert job.state == "cancelled"


def test_too_many_at_once_are_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "import signal; signal.pause()")
    for _ in range(jobs_module.MAX_RUNNING):
        jobs.start([], title="waits", action="ask")
    with pytest.raises(UsageError, match="commands are running"):
        jobs.start([], title="one more", action="ask")


def test_files_go_beside_the_command(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shell(monkeypatch, "import sys; print(open(sys.argv[1]).read())")
    job = jobs.start(
        ["{folder}/test.txt"], title="file", action="ask", files={"test.txt": "a, b\tr\tc\n"}
    )
    assert finished(job).output() == "a, b\tr\tc\n\n"


def test_the_end_of_the_server_ends_them(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    program = f"held = open('{pipe}', 'w'); print('alive', file=held, flush=True); "
    shell(monkeypatch, program + "import signal; signal.pause()")
    job = jobs.start([], title="waits", action="ask")
    with pipe.open() as held:
        assert held.readline() == "alive\n"
        jobs.close()
        assert held.read() == ""  # returns when the process that held it is dead
    assert finished(job).exit_code == -signal.SIGTERM
    assert not jobs.folder.exists()


def test_what_had_not_begun_at_the_end_never_does(jobs: Jobs) -> None:
    job = jobs.start(["demo"], title="waits for the imports", action="ask")
    jobs.close()
    assert finished(job).state == "failed"
    assert job.output() == ""


def test_commands_start_again_after_the_warm_process_died(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    shell(monkeypatch, "import os; print(os.getppid())\n" + SAY_SO_AND_WAIT.format(pipe=pipe))
    job = jobs.start([], title="waits", action="ask")
    pipe.read_text()
    os.kill(int(job.output()), signal.SIGKILL)
    assert finished(job).exit_code == -signal.SIGTERM
    shell(monkeypatch, "print('again')")
    assert finished(jobs.start([], title="the next", action="ask")).output() == "again\n"


DIES_AFTER_ITS_FORK = """
import os, signal
fork = os.fork
def fork_and_die():
    pid = fork()
    if pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
os.fork = fork_and_die
"""


def test_a_command_ends_with_the_process_that_died_when_it_had_forked(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(monkeypatch, "import time\nwhile True: time.sleep(0.1)", before=DIES_AFTER_ITS_FORK)
    job = finished(jobs.start([], title="waits", action="ask"))
    assert job.exit_code == -signal.SIGTERM
    assert warm_process.NEVER_BEGAN not in job.log()


def test_a_command_knows_its_person_and_store(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = "print(os.environ['MLFLOW_TRACKING_URI'], os.environ.get('CLEW_USER'))"
    shell(monkeypatch, "import os; " + program)
    monkeypatch.delenv("CLEW_USER", raising=False)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for person, known in (("ada@lovelace.org", "ada@lovelace.org"), ("", "None")):
        monkeypatch.setattr(access, "authorize", lambda action, person=person: person)
        job = finished(jobs.start([], title="", action="ask"))
        assert job.output() == f"{uri} {known}\n"


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
    job = finished(jobs.start([], title="trace", action="ask"))
    assert job.run_id() == "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("end", "exit_code", "said"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("pass", 0, ""),
        ("raise ValueError('a mistake')", 1, "ValueError: a mistake"),
    ],
)
def test_a_command_ends_when_its_threads_and_its_last_calls_have(
    end: str, exit_code: int, said: str
) -> None:
    program = f"""
import atexit, threading
from clew import warm

def command():
    started = threading.Event()
    def thread():
        started.wait()
        print("a thread ends")
    threading.Thread(target=thread).start()
    atexit.register(lambda: print("the last call"))
    started.set()
    {end}

warm.run_command = command
warm.run_and_end()
"""
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == exit_code
    assert found.stdout == "a thread ends\nthe last call\n"
    assert said in found.stderr
    assert ("Traceback" in found.stderr) == bool(said)
