"""Killed processes: a training ends with its parent, and SIGTERM ends a command like Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clew.workflows import child

pytestmark = pytest.mark.slow

CHILD = """
import signal, sys
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it waits for sigwait, if it is early
open("listening", "w").close()
signal.sigwait([signal.SIGTERM])
Path("told").touch()
sys.exit(130)
"""
PARENT = """
import os, signal, subprocess, sys
from clew.errors import Interrupted
from clew.workflows import child

communicate = subprocess.Popen.communicate
os.mkfifo("listening")

def when_killed(process):
    open("listening").close()  # waits until the child opens it
    os.kill(os.getpid(), signal.SIGTERM)
    return communicate(process)

subprocess.Popen.communicate = when_killed
try:
    child._run([sys.executable, "child.py"], "training")
except Interrupted as error:
    sys.exit(str(error))
"""
COMMAND = """
import os, signal, sys, time
from pathlib import Path

from clew.__main__ import main
from clew.cli import cli

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored

@cli.command()
def wait():
    try:
        os.kill(os.getpid(), signal.Signals[os.environ["SENT"]])
        while True:
            time.sleep(0.1)
    finally:
        Path("closed").touch()

sys.argv = ["clew", "wait"]
main()
"""


def test_a_kill_of_the_study_ends_its_training(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    _, said = run(PARENT, tmp_path)
    assert (tmp_path / "told").exists()
    assert "training ended with exit code 130" in said


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGHUP"])
def test_a_kill_or_the_end_of_the_terminal_ends_a_command_as_ctrl_c_does(
    tmp_path: Path, sent: str
) -> None:
    exit_code, said = run(COMMAND, tmp_path, SENT=sent)
    assert exit_code == 130
    assert said.strip() == "clew: error: interrupted"
    assert (tmp_path / "closed").exists()


STUDY = """
import signal, sys
from clew.workflows import child

# What a shell starts in the background ignores SIGINT, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
child._run([sys.executable, "training.py"], "training")
"""
TRAINING = """
import sys, time
from pathlib import Path

from clew.__main__ import main
from clew.cli import cli

@cli.command()
def wait():
    alive = open("alive", "w")
    try:
        print("ready", file=alive, flush=True)
        while True:
            time.sleep(0.1)
    finally:
        Path("closed").touch()

sys.argv = ["clew", "wait"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_study_that_is_killed_takes_its_training_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "alive")
    (tmp_path / "training.py").write_text(TRAINING)
    environment = {"PYTHONPATH": str(Path(child.__file__).parents[2])}
    study = subprocess.Popen([sys.executable, "-c", STUDY], cwd=tmp_path, env=environment)
    with (tmp_path / "alive").open() as alive:
        assert alive.readline() == "ready\n"
        study.send_signal(number)  # only to this process; Ctrl-C would signal the training too
        assert study.wait() == -number
        assert alive.read() == ""  # returns when the training has ended
    assert (tmp_path / "closed").exists()


def run(script: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a script that gets a signal while it waits, and return its exit code and errors."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(Path(child.__file__).parents[2])} | environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr
