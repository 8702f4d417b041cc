"""What a command shows: its result, its progress, and a line when it was silent for long."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Self

import click
from pydantic_core import to_jsonable_python

from clew.errors import harmless

logger = logging.getLogger(__name__)
SILENT_SECONDS, BEAT_SECONDS = 25.0, 1.0


class Heartbeat(logging.Handler):
    """Ends a command's silences: after `SILENT_SECONDS` without a line, it logs one."""

    def __init__(self) -> None:
        super().__init__()
        self.doing = "at work"
        self._began = self._said = time.monotonic()
        self._ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Count the silence from this line."""
        self.heard()

    def heard(self) -> None:
        """Count the silence from now, because something else was shown."""
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        logging.getLogger("clew").addHandler(self)
        threading.Thread(target=self._watch, name="clew-heartbeat", daemon=True).start()
        BEATING.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        BEATING.remove(self)
        self._ended.set()
        logging.getLogger("clew").removeHandler(self)

    def _watch(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - self._said >= SILENT_SECONDS:
                self.heard()
                logger.info("%s, %.0f s after the start", self.doing, now - self._began)


BEATING: list[Heartbeat] = []
"""The heartbeats of the commands that run, the innermost last."""


def is_main_process() -> bool:
    """Whether this process prints for the command: torchrun's first process, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def tell(text: str = "", *, grey: bool = False, nl: bool = True) -> None:
    """Print a result; a name in it, from data or from a store, cannot control the terminal."""
    shown = harmless(text)
    click.echo(click.style(shown, fg="bright_black") if grey else shown, nl=nl)


def in_json(content: object) -> str:
    """Return a result as one line of JSON, in which a number that is not finite is null."""
    return json.dumps(to_jsonable_python(content, inf_nan_mode="null"))


def progress_bar(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows progress.

    It shows a bar on a terminal, or one JSON object per line; in a file, the heartbeat's lines say
    how far the command is.
    """
    from tqdm import tqdm

    hidden = True if as_json or logging.getLogger("clew").level > logging.INFO else None
    bar = tqdm(unit=f" {unit}", delay=1.0, disable=hidden, leave=False)
    began: tuple[float, int] | None = None  # at the first call: what came before takes no part

    def show(done: int, total: int) -> None:
        nonlocal began
        now = time.monotonic()
        began = began or (now, done)
        seconds, gained = now - began[0], done - began[1]
        if as_json:
            tell(in_json({"done": done, "total": total}))
        left = f", {seconds * (total - done) / gained:.0f} s left" if gained else ""
        for beat in BEATING[-1:]:
            if as_json or not bar.disable:
                beat.heard()
            beat.doing = f"{done:,} of {total:,} {unit}{left}"
            beat.doing = "at work" if done == total else beat.doing
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show
