"""Child processes of the dashboard: their output, end and cancellation; and the real work."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from clew.errors import UsageError
from clew.runs import store
from clew.ui import access
from clew.ui.components import jobs as jobs_module
from clew.ui.components.jobs import Job, Jobs
from clew.ui.work import Question
from tests.recorded import MODEL, Recorded
from tests.ui import work_of_tests
from tests.ui.work_of_tests import Work

RUN_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def server() -> Iterator[Jobs]:
    """Return jobs whose forks do the work of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "WORK", work_of_tests.__name__)
        found = Jobs()
        yield found
        found.close()


@pytest.fixture
def jobs(server: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return server


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a named pipe: opening one end waits for the other."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def start(jobs: Jobs, call: object, *given: object, **files: bytes) -> Job:
    work = Work(call, given)  # type: ignore[arg-type]
    return jobs.start(work, title="a test", action="ask", files=files)


def finished(job: Job) -> Job:
    job.wait()
    return job


def test_what_it_says_and_its_end_are_found(jobs: Jobs) -> None:
    job = finished(start(jobs, work_of_tests.say, "done\n"))
    assert (job.state, job.output(), job.exit_code) == ("done", "done\n", 0)
    assert jobs.find(job.job_id) is job
    assert jobs.find("unknown") is None


@pytest.mark.parametrize(("exit_code", "state"), [(3, "refused"), (2, "failed"), (130, "failed")])
def test_the_exit_code_says_how_it_ended(jobs: Jobs, exit_code: int, state: str) -> None:
    job = finished(start(jobs, work_of_tests.end, exit_code))
    assert (job.state, job.exit_code) == (state, exit_code)


def test_a_mistake_is_in_its_log(jobs: Jobs) -> None:
    job = finished(start(jobs, work_of_tests.fail))
    assert job.state == "failed"
    assert "ValueError: a mistake" in job.log()


def test_it_ends_when_its_threads_have(jobs: Jobs) -> None:
    job = finished(start(jobs, work_of_tests.leave_a_thread))
    assert (job.state, job.output()) == ("done", "a thread ends")


def test_the_page_is_not_run_in_the_child(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ModuleType("__main__")
    page.__file__ = "/no/such/page.py"
    monkeypatch.setitem(sys.modules, "__main__", page)
    job = finished(start(jobs, work_of_tests.main_module))
    assert job.state == "done", job.log()
    assert sys.modules["__main__"] is page


def test_events_come_while_it_runs_and_it_is_cancelled(jobs: Jobs, pipe: Path) -> None:
    said = '{"name": "weights", "passed": true}\n{broken\n[1]\n'
    job = start(jobs, work_of_tests.wait, str(pipe), said)
    with pipe.open() as held:
        held.readline()
        assert job.events() == [{"name": "weights", "passed": True}]
        assert job.state == "running"
        job.cancel()
        assert finished(job).state == "cancelled"


def test_one_that_does_not_listen_is_killed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    monkeypatch.setattr(jobs_module, "SECONDS_TO_STOP", 0.2)
    job = start(jobs, work_of_tests.wait_deaf, str(pipe))
    with pipe.open() as held:
        held.readline()
        job.cancel()
        assert finished(job).exit_code == -signal.SIGKILL
    assert job.state == "cancelled"


def test_one_that_was_done_before_it_could_be_cancelled_is_done(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    monkeypatch.setattr(jobs_module, "SECONDS_TO_STOP", 600.0)  # it is not killed
    job = start(jobs, work_of_tests.wait_and_finish, str(pipe))
    with pipe.open() as held:
        held.readline()
        job.cancel()
        assert finished(job).state == "done"


def test_a_button_that_is_pressed_twice_starts_one_command(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    def promote(person: str) -> Job:
        monkeypatch.setattr(access, "authorize", lambda action: person)
        asked = Work(work_of_tests.wait, (str(pipe), ""))
        return jobs.start(asked, title="Promote", action="promote")

    first = promote("ada@lovelace.org")
    with pipe.open() as held:
        held.readline()
        assert promote("ada@lovelace.org") is first
        other = promote("grace@hopper.org")
        held.readline()
        first.cancel()
        other.cancel()
        assert other is not first
        assert finished(other).state == finished(first).state == "cancelled"
        third = promote("ada@lovelace.org")
        third.cancel()
        assert third is not first
        assert finished(third).state == "cancelled"


def test_what_a_killed_server_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if child == 0:
        (Jobs().folder / "uploaded").write_bytes(b"frames")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    first, second = Jobs(), Jobs()
    assert not left.exists()
    assert first.folder.is_dir(), "its server is alive"
    for each in (first, second):
        each.close()
    assert not list(tmp_path.iterdir())


def test_an_upload_that_cannot_be_written_leaves_nothing(jobs: Jobs) -> None:
    before = {*jobs.folder.iterdir()}
    with pytest.raises(OSError):
        start(jobs, work_of_tests.read, "frames", **{"frames": b"1", "frames/images.npy": b"2"})
    assert {*jobs.folder.iterdir()} == before


def test_too_many_at_once_are_refused(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MAX_RUNNING", 0)
    with pytest.raises(UsageError):
        start(jobs, work_of_tests.say, "one more")


def test_the_limit_is_for_each_person_and_answers_do_not_wait_for_long_work(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    monkeypatch.setattr(jobs_module, "MAX_RUNNING", 1)
    monkeypatch.setattr(access, "authorize", lambda action: "ada@lovelace.org")
    long = jobs.start(Work(work_of_tests.wait, (str(pipe), "")), title="Train", action="train")
    with pipe.open() as held:
        held.readline()
        with pytest.raises(UsageError):
            jobs.start(Work(work_of_tests.say, ("again",)), title="Explain", action="explain")
        answer = jobs.start(Work(work_of_tests.say, ("yes",)), title="Ask", action="ask")
        assert finished(answer).output() == "yes"
        monkeypatch.setattr(access, "authorize", lambda action: "grace@hopper.org")
        other = jobs.start(Work(work_of_tests.say, ("mine",)), title="Train", action="train")
        assert finished(other).output() == "mine"
        long.cancel()
        assert finished(long).state == "cancelled"


def test_files_go_beside_the_work(jobs: Jobs) -> None:
    job = finished(start(jobs, work_of_tests.read, "test.txt", **{"test.txt": b"a, b\tr\tc\n"}))
    assert job.output() == "a, b\tr\tc\n"


def test_the_end_of_the_server_ends_them(
    server: Jobs, monkeypatch: pytest.MonkeyPatch, pipe: Path
) -> None:
    own = Jobs()
    job = start(own, work_of_tests.wait, str(pipe), "")
    with pipe.open() as held:
        held.readline()
        own.close()
        assert held.read() == ""  # returns when the process that held it is dead
    assert finished(job).state == "failed"
    assert not own.folder.exists()


def test_jobs_start_again_after_the_process_that_forks_has_died(jobs: Jobs, pipe: Path) -> None:
    job = start(jobs, work_of_tests.wait, str(pipe), "")
    with pipe.open() as held:
        forks = int(held.readline())
        os.kill(forks, signal.SIGKILL)
        assert held.read() == ""  # the job does not outlive it
    # Its files are closed before it counts as dead, and a dying one would still be connected to.
    os.waitid(os.P_PID, forks, os.WEXITED | os.WNOWAIT)
    assert finished(job).state == "failed"
    assert finished(start(jobs, work_of_tests.say, "again")).output() == "again"


def test_a_job_knows_its_person_and_store(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("CLEW_DATA", "/data")
    folders = f"/data:{store.project_root() / 'runs' / 'left_out'}"
    for person, told in (("ada@lovelace.org", ["ada@lovelace.org", folders]), ("", [None, None])):
        monkeypatch.setattr(access, "authorize", lambda action, person=person: person)
        assert finished(start(jobs, work_of_tests.who)).output() == f"{uri} {told}"


def test_the_run_of_an_explanation_is_found(jobs: Jobs) -> None:
    said = f'{{"done": 1, "total": 2}}\n{{"run_id": "{RUN_ID}"}}\n'
    assert finished(start(jobs, work_of_tests.say, said)).run_id() == RUN_ID


@pytest.mark.slow
def test_the_real_work_answers_and_refuses(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded.uri)
    monkeypatch.setattr(jobs_module, "WORK", "clew.warm")
    own = Jobs()
    asked = Question(f"models:/{MODEL}@champion", "eicosanoid", "affects", "", None)
    job = finished(own.start(asked, title="ask", action="ask"))
    result = job.result()
    assert result is not None, job.log()
    known = [answer["known"] for answer in result["predictions"][0]["answers"]]
    assert known == sorted(known), "new answers first"
    assert {*known} == {False, True}
    unknown = Question(asked.model, "<b>nobody</b>", "affects", "", None)
    refused = finished(own.start(unknown, title="ask", action="ask"))
    assert (refused.state, refused.exit_code) == ("failed", UsageError.exit_code)
    assert "<b>nobody</b>" in refused.message()
    assert "Traceback" not in refused.log()
    own.close()
