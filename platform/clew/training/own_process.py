"""Gives one training at a time the global state of the process, and restores it afterwards."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clew.training.seeding import capture_generators, restore_generators

_TURN = threading.RLock()


@contextmanager
def own_process() -> Iterator[None]:
    """Reserve the random generators, the number of threads and the determinism for one training.

    These settings belong to the whole process. If two trainings used the same generators at the
    same time, no seed could reproduce their results, so the second training waits for the first.
    Everything is restored afterwards, so that a training does not restart the caller's random
    numbers.
    """
    with _TURN:
        generators = capture_generators()
        threads, determinism = torch.get_num_threads(), torch.get_deterministic_debug_mode()
        try:
            yield
        finally:
            restore_generators(*generators)
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(determinism)
