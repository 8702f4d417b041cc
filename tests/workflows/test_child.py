"""A training in a process of its own: a kill of its parent reaches it."""

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


def test_a_kill_of_the_study_ends_its_training(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    platform = Path(child.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(platform)},
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        deadline = time.monotonic() + 120
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        parent.send_signal(signal.SIGTERM)
        _, said = parent.communicate(timeout=60)
    assert (tmp_path / "told").exists()
    assert "training ended with exit code 130" in said
