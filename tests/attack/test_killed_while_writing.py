"""A training that is killed at any file operation of a checkpoint resumes to the same result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded import ROOT

pytestmark = pytest.mark.slow

FEWEST_OPERATIONS = 50
"""The least number of operations: there are six files, two folders and the best checkpoint."""


def test_every_file_operation_of_a_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.dying", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    *problems, number = done.stdout.splitlines() or ["nothing was printed"]
    assert (done.returncode, problems) == (0, []), done.stderr
    assert int(number) >= FEWEST_OPERATIONS
