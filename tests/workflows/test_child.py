"""Processes that are killed: a training ends with its parent, a command as by Ctrl-C."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from clew.workflows import child

CHILD = """
import signal, sys, time
from pathlib import Path

def end(*_):
    Path("told").touch()
    sys.exit(130)

signal.signal(signal.SIGTERM, end)
Path("started").touch()
time.sleep(120)
"""
PARENT = """
import sys
from clew.errors import Interrupted
from clew.workflows import child

try:
    child._run([sys.executable, "child.py"], "training")
except Interrupted as error:
    sys.exit(str(error))
"""
COMMAND = """
import sys, time
from pathlib import Path

from clew.__main__ import main
from clew.cli import cli

@cli.command()
def wait():
    Path("started").touch()
    try:
        time.sleep(120)
    finally:
        Path("closed").touch()

sys.argv = ["clew", "wait"]
main()
"""


def test_a_kill_of_the_study_ends_its_training(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    _, said = kill_once_started(PARENT, tmp_path)
    assert (tmp_path / "told").exists()
    assert "training ended with exit code 130" in said


def test_a_kill_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    exit_code, said = kill_once_started(COMMAND, tmp_path)
    assert exit_code == 130
    assert said.strip() == "clew: error: interrupted"
    assert (tmp_path / "closed").exists()


def kill_once_started(script: str, folder: Path) -> tuple[int, str]:
    """Run a script until it writes `started`, send SIGTERM; return exit code and errors."""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(Path(child.__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    return process.returncode, said
