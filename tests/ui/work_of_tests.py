"""What jobs of tests do in their child processes, in place of `clew.warm`."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Work:
    """A function of this module, and what it is called with."""

    call: Callable[..., int]
    given: tuple[object, ...] = field(default=())


def run(asked: Work, folder: Path) -> int:
    return asked.call(folder, *asked.given)


def say(folder: Path, text: str) -> int:
    (folder / "stdout").write_text(text, encoding="utf-8")
    return 0


def end(folder: Path, exit_code: int) -> int:
    return exit_code


def fail(folder: Path) -> int:
    raise ValueError("a mistake")


def read(folder: Path, name: str) -> int:
    return say(folder, (folder / name).read_text(encoding="utf-8"))


def who(folder: Path) -> int:
    told = [os.environ.get(name) for name in ("CLEW_USER", "CLEW_ONLY_DATA_IN")]
    return say(folder, f"{os.environ['MLFLOW_TRACKING_URI']} {told}")


def wait(folder: Path, pipe: str, text: str, *, deaf: bool = False, code: int = 130) -> int:
    """Say something, tell the test through a named pipe, and wait to be ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.default_int_handler)
    say(folder, text)
    try:  # from here on: the signal may come as soon as the test has read its line
        with Path(pipe).open("w") as held:
            held.write(f"{os.getppid()}\n")
            held.flush()
            while True:
                time.sleep(0.1)
    except KeyboardInterrupt:
        return code


def wait_deaf(folder: Path, pipe: str) -> int:
    return wait(folder, pipe, "", deaf=True)


def wait_and_finish(folder: Path, pipe: str) -> int:
    return wait(folder, pipe, "", code=0)


def leave_a_thread(folder: Path) -> int:
    def write() -> None:
        time.sleep(0.1)
        say(folder, "a thread ends")

    threading.Thread(target=write).start()
    return 0


def main_module(folder: Path) -> int:
    """Say whether the child has imported the page."""
    return say(folder, str(getattr(sys.modules["__main__"], "__file__", None)))
