"""Checks that all processes of a run match, and finds out which process died or hangs.

Every process has a thread that sends a heartbeat twice a second to the store of the process group.
The error of a failed collective does not name its cause, but a missing heartbeat does.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from clew.errors import ConfigError, PeerError
from clew.training.distributed import World

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
LISTEN_SECONDS = 3.0
TRAINING_LEFT = "training stopped, and checkpoints written before are whole: continue with --resume"
LOST = ("connection", "timed out", "timeout", "gloo", "nccl", "peer", "socket")
"""Words in the errors of collectives that failed because of another process."""


def code_digest() -> str:
    """Return sixteen hexadecimal digits over the source files of this package."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def require_same(world: World, facts: Mapping[str, str]) -> None:
    """Check that all processes run with the same code, data and settings.

    Args:
        world: The processes.
        facts: Values that must be equal in all processes, by name.

    Raises:
        ConfigError: A process differs from the main process; all processes raise this error.
    """
    texts = world.gather_texts(json.dumps(dict(facts)), torch.device("cpu"))
    main, *others = (json.loads(text) for text in texts)
    for rank, own in enumerate(others, start=1):
        for name, value in main.items():
            if own[name] != value:
                raise ConfigError(
                    f"rank {rank} has {name} {own[name]}, rank 0 has {value}; start all processes "
                    f"with the same {name}"
                )


@contextmanager
def naming_lost_peers(world: World, left: str = TRAINING_LEFT) -> Iterator[None]:
    """Raise an error that names the process that died or hangs if a collective fails.

    Args:
        world: The processes.
        left: The end of the message: what was saved and what to do.

    Raises:
        PeerError: A collective failed because another process died, hangs or left.
    """
    if world.size == 1:
        yield
        return
    beats = _Beats(world)
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        silent = beats.silent()
        names = " and ".join(f"rank {rank}" for rank in silent) or "another process"
        did = "died or hangs" if silent else "has left or does not take part"
        raise PeerError(f"rank {world.rank} of {world.size}: {names} {did}; {left}") from error
    finally:
        beats.stop()


class _Beats:
    """Sends the heartbeats of this process in a thread and reads those of the others."""

    def __init__(self, world: World) -> None:
        self._world, self._ended = world, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @staticmethod
    def _store() -> TCPStore:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(address, port, timeout=timedelta(seconds=LISTEN_SECONDS))

    def _beat(self) -> None:
        count = 0
        with suppress(RuntimeError):  # the store ends with the process that hosts it
            store = self._store()
            while not self._ended.wait(BEAT_SECONDS):
                count += 1
                store.set(f"clew/beat/{self._world.rank}", str(count))

    def silent(self) -> list[int]:
        try:
            store = self._store()
            before = self._counts(store)
            time.sleep(LISTEN_SECONDS)
            after = self._counts(store)
        except RuntimeError:  # without torchrun, the main process hosts the store
            return [0]
        others = [rank for rank in range(self._world.size) if rank != self._world.rank]
        return [rank for rank in others if before[rank] == after[rank]]

    def _counts(self, store: TCPStore) -> list[bytes]:
        keys = [f"clew/beat/{rank}" for rank in range(self._world.size)]
        return [store.get(key) if store.check([key]) else b"" for key in keys]

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
