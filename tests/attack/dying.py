"""A training that kills itself at one of the file operations that write checkpoints.

    python -m tests.attack.dying FOLDER [FIRST LAST]

trains once without being killed. Then it trains once for every file operation of the second
checkpoint, including those that write the best checkpoint and remove the first one. Each of these
trainings is killed at its operation, checked, and resumed. The program prints every problem, and at
the end the number of operations.

The processes are forked from one that has imported everything and computed nothing.
"""

import hashlib
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import torch._dynamo  # noqa: F401  # takes 2 s, and every optimizer loads it: once, before the forks

from clew.config.load import load
from clew.config.schema import RunConfig
from clew.errors import CheckpointError
from clew.training.checkpointing import Checkpointer
from clew.training.checkpoints import require_whole
from clew.training.manifest import list_checkpoints
from clew.workflows import resume as resuming
from clew.workflows import train as workflow
from clew.workflows.resume import ResumePoint, find_in_folder
from clew.workflows.train import train
from tests.attack.material import SPLITS, write_graph
from tests.memory_tracker import MemoryTracker

CHANGES = """
    open mkdir rename replace unlink remove rmdir link symlink fsync ftruncate truncate write
    writelines close flush sendfile chmod copy_file_range utime serialize_file __exit__
"""
COUNTED = ("write", "write_best", "_store")


class Trap:
    """Counts the calls that change files, and kills this process before one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal, self.num_seen, self._depth = fatal, 0, 0

    def arm(self) -> None:
        """Count the calls inside every method that writes a checkpoint."""
        for name in COUNTED:
            setattr(Checkpointer, name, self._watched(getattr(Checkpointer, name)))

    def _watched(self, method: Callable[..., None]) -> Callable[..., None]:
        def watched(checkpointer: Checkpointer, *arguments: object, **named: object) -> None:
            counts = checkpointer.resumable.progress.epoch == 2
            self._depth += counts
            sys.setprofile(self._seen if self._depth else None)
            try:
                method(checkpointer, *arguments, **named)
            finally:
                self._depth -= counts
                if not self._depth:
                    sys.setprofile(None)

        return watched

    def _seen(self, frame: FrameType, event: str, function: object) -> None:
        if event != "c_call" or getattr(function, "__name__", "") not in CHANGES.split():
            return
        owner = getattr(function, "__self__", None)
        module = getattr(function, "__module__", "") or ""
        if not (
            isinstance(owner, io.IOBase) or module in {"posix", "io", "_io"} or "safe" in module
        ):
            return  # no file operation, such as str.replace
        self.num_seen += 1
        if self.num_seen == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], object]) -> int:
    """Do work in a forked process; return its exit code, or the negative number of a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def configuration(graph: Path) -> RunConfig:
    files = {f"data.{split}": str(graph / f"{split}.txt") for split in SPLITS}
    small = {
        "model.embedding_dim": 16,
        "model.output_channels": 4,
        "training.num_epochs": 3,
        "training.checkpoint_frequency": 1,
        "training.ema_decay": 0.5,
        "training.device": "cpu",
        "training.num_threads": 1,
        "evaluation.every_epochs": 1,
        "tracking.log_mfu": False,
        "tracking.log_system_metrics": False,
    }
    return load("umls", files | small)


def main(folder: Path, first: int = 1, last: int | None = None) -> None:
    write_graph(folder / "graph")
    # No tracking store is needed: how its runs end is tested elsewhere.
    workflow.open_training_run = lambda *_, **__: MemoryTracker()  # type: ignore[assignment]
    resuming.end_if_dead = lambda run_id: None
    workflow.predicted_memory = lambda *_: {}  # half the time of such a small training
    config, count = configuration(folder / "graph"), folder / "count"

    def trained(kept: Path, fatal: int | None) -> None:
        trap = Trap(fatal)
        trap.arm()
        train(config, checkpoint_dir=kept)
        count.write_text(str(trap.num_seen))

    assert in_child(partial(trained, folder / "whole", None)) == 0
    right, num_operations = digests(folder / "whole"), int(count.read_text())
    for fatal in range(first, (last or num_operations) + 1):
        kept = folder / f"killed {fatal}"
        ended = in_child(partial(trained, kept, fatal))
        found = problems_of(kept) if ended == -signal.SIGKILL else [f"ended with {ended}"]
        if in_child(partial(train, partial(found_in, kept), checkpoint_dir=kept)):
            found.append("cannot be resumed")
        elif digests(kept) != right:
            found.append("resumed to another result")
        sys.stdout.writelines(f"killed at {fatal}: {problem}\n" for problem in found)
        shutil.rmtree(kept)
    sys.stdout.write(f"{num_operations}\n")


def found_in(kept: Path, downloads: Path) -> ResumePoint:
    return find_in_folder(kept, None, {})


def problems_of(kept: Path) -> list[str]:
    """Return the problems of a folder that a killed training left."""
    found = []
    checkpoints = list_checkpoints(kept / "checkpoints")
    if not checkpoints or checkpoints[-1].epoch not in (1, 2):
        found.append(f"checkpoints of epochs {[record.epoch for record in checkpoints]}")
    for path in [*(record.path for record in checkpoints), kept / "best"]:
        try:
            if path.is_dir():
                require_whole(path)
        except CheckpointError as error:
            found.append(str(error))
    return found


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each file of weights or optimizer state in a folder."""
    paths = sorted(folder.glob("**/*.safetensors"))
    shown = {str(path.relative_to(folder)): path for path in paths if path.name[0] != "."}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in shown.items()
        if "/." not in name and not name.startswith(".")
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
