"""What trainings share with the rest of their process: one has it at a time, and puts it back."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clew.training.seeding import capture_generators, restore_generators

_TURN = threading.RLock()


@contextmanager
def own_process() -> Iterator[None]:
    """Let one training have the random generators, the number of threads and the determinism.

    They belong to the whole process. Two trainings that drew from the same generators at once would
    both end with numbers that no seed repeats, so the second one waits for the first. Afterwards
    all is as before: a caller's own random numbers do not begin again with each training.
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
