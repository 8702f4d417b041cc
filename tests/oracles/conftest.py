"""Runs Triton kernels without a GPU, by Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def interpreted() -> Callable[[str], str]:
    """Return a function that runs code with interpreted kernels and returns its output.

    Triton chooses the interpreter when it is imported, so the code runs in a new process.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the package triton is not installed; there is none for this system")

    def run(code: str) -> str:
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(["platform", *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    return run
