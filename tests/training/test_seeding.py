"""Only one training at a time uses the process, and the caller's state is restored."""

import random
import threading

import numpy as np
import torch

from clew.training.seeding import own_process, seed_everything


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_a_callers_random_numbers_go_on_after_a_training() -> None:
    seed_everything(1)
    draws()
    expected = draws()
    seed_everything(1)
    draws()
    with own_process():
        seed_everything(0)
        draws()
    assert draws() == expected


def test_threads_and_determinism_are_as_before_even_after_an_error() -> None:
    threads, determinism = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        with own_process():
            torch.set_num_threads(threads + 1)
            torch.set_deterministic_debug_mode("error")
            raise KeyError
    except KeyError:
        pass
    assert torch.get_num_threads() == threads
    assert torch.get_deterministic_debug_mode() == determinism


def test_trainings_in_threads_take_turns() -> None:
    begun, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def second() -> None:
        begun.set()
        with own_process():
            seen.append(ended.is_set())

    with own_process(), own_process():  # a training within a search already has the process
        thread = threading.Thread(target=second)
        thread.start()
        begun.wait()
        thread.join(0.2)
        assert thread.is_alive()
        ended.set()
    thread.join()
    assert seen == [True]
