"""Runs two trainings that wait after their first epoch, so that a page can show them.

python -m tests.browser.held_training FOLDER OPTION...
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.browser.dashboard import ROOT

SEEDS = (5, 6)
MAX_SECONDS = 300
"""After this time a training continues by itself, so that nothing waits forever."""


@contextmanager
def held_trainings(uri: str, folder: Path, options: list[str]) -> Iterator[Callable[[], None]]:
    """Start two trainings; when both wait after an epoch, yield the function that releases them."""
    command = [sys.executable, "-m", "tests.browser.held_training", str(folder), *options]
    paths = [str(ROOT / "platform"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": uri,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)

    def let_go() -> None:
        (folder / "go").touch()

    try:
        while len(list(folder.glob("waits-*"))) < len(SEEDS):
            assert process.poll() is None, (folder / "said").read_text()
            time.sleep(0.05)
        yield let_go
    finally:
        let_go()
        assert process.wait(MAX_SECONDS) == 0, (folder / "said").read_text()


def main(folder: Path, options: list[str]) -> None:
    """Fork one training per seed, and exit with the code of the children."""
    importlib.import_module("clew.warm")  # what a training needs, once for both
    hold(folder)
    children = [fork(seed, options) for seed in SEEDS]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(codes, key=abs))


def hold(folder: Path) -> None:
    """Make every epoch of every training wait at its end for the file `go`."""
    from clew.training.trainer import Trainer

    close_epoch = Trainer._close_epoch

    def close_epoch_and_wait(self: Trainer) -> None:
        close_epoch(self)
        self.history.tracker.flush()
        (folder / f"waits-{os.getpid()}").touch()
        end = time.monotonic() + MAX_SECONDS
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.05)

    Trainer._close_epoch = close_epoch_and_wait  # type: ignore[method-assign]


def fork(seed: int, options: list[str]) -> int:
    """Start a training, and return its process id."""
    from clew.__main__ import main as run_command

    pid = os.fork()
    if pid == 0:
        sys.argv = ["clew", "train", *options, f"--seed={seed}"]
        run_command()
    return pid


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
