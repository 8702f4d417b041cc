"""Counts the files of the product whose functions run for one attribution, one training step, ...

    python -m experiments.files_run            # the table
    python -m experiments.files_run attribute  # also the files, with how many functions of each ran

A file counts if a function in it ran while the work was done; the bodies of modules and of classes
do not count. The work is done twice in a fresh store, and only the second time is counted, so that
imports stay out. The preset is `umls`, with one epoch; an attribution explains one triple of a run
that nothing else has explained, in the default form.
"""

import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "platform", ROOT / "ui")
TRIPLE = ("virus", "causes", "pathologic_function")


class Counting:
    """Collects the functions that run between `start` and `stop`, in new threads as well."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def start(self) -> None:
        """Begin to collect, from nothing."""
        self._codes = set()
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    def stop(self) -> Counter[str]:
        """Stop to collect, and return how many functions of each file ran."""
        sys.setprofile(None)
        threading.setprofile(None)
        files = [Path(os.path.realpath(code.co_filename)) for code in set(self._codes)]
        inside = [file for file in files if any(folder in file.parents for folder in FOLDERS)]
        return Counter(str(file.relative_to(ROOT)) for file in inside)

    def _saw(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:
            self._codes.add(frame.f_code)


def of(work: Callable[[], object]) -> Counter[str]:
    """Return how many functions of each file run during some work."""
    counting = Counting()
    counting.start()
    work()
    return counting.stop()


@contextmanager
def last_step() -> Iterator[list[Counter[str]]]:
    """Count from the end of the last but one optimizer step of a run to the end of the last.

    The first steps can belong to the prediction of memory.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counting, found = Counting(), [Counter[str]()]

    def done(*_: object) -> None:
        found[0] = counting.stop()
        counting.start()

    hook = register_optimizer_step_post_hook(done)
    try:
        yield found
    finally:
        counting.stop()
        hook.remove()


def measured() -> dict[str, Counter[str]]:
    """Return how many functions of each file run for each kind of work."""
    import clew

    first, found = str(clew.train("umls", epochs=1).run_id), {}
    found["training of one epoch"] = of(lambda: clew.train("umls", epochs=1))
    with last_step() as steps:
        second = str(clew.train("umls", epochs=1).run_id)
    found["training step"] = steps[0]
    clew.load(first)
    found["opening a run (clew.load)"] = of(lambda: clew.load(first))
    clew.attribute(first, [TRIPLE])
    found["attribute, one triple"] = of(lambda: clew.attribute(second, [TRIPLE]))
    return found


def main() -> None:
    """Print how many files run for each kind of work, and which, for the kinds that are named."""
    with tempfile.TemporaryDirectory(prefix="files-run-") as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.chdir(folder)
        for kind, files in measured().items():
            print(f"{kind:30}{len(files):4} files {sum(files.values()):5} functions")
            if any(word in kind for word in sys.argv[1:]):
                for file, count in sorted(files.items()):
                    print(f"    {count:3} {file}")


if __name__ == "__main__":
    main()
