"""Seeds, captures and restores all random generators."""

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def seed_everything(seed: int, *, rank: int = 0) -> None:
    """Seed Python, NumPy and torch; each process of a data-parallel run gets its own stream."""
    random.seed(seed + rank)
    np.random.seed((seed + rank) % 2**32)
    torch.manual_seed(seed + rank)


def capture_generators() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the states of all generators as tensors and as JSON values."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "python": torch.tensor(internal, dtype=torch.int64),
    }
    # If CUDA is not initialized, nothing was drawn there, and asking would allocate GPU memory.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        tensors["cuda"] = torch.cuda.get_rng_state()
    values = {"numpy": [int(position), int(has_gauss), float(cached)], "python": [version, gauss]}
    return tensors, values


def restore_generators(tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    torch.set_rng_state(tensors["torch"])
    position, has_gauss, cached = values["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, cached))
    version, gauss = values["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def effects_of(model: nn.Module) -> Callable[[], None]:
    """Return a function that undoes what forward and backward change from now on.

    That is the model's buffers, all generators and the gradients.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tensors, values = capture_generators()

    def undo() -> None:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        restore_generators(tensors, values)
        model.zero_grad(set_to_none=True)

    return undo


NUMBERS_OF_MODULE = 1024
"""As many numbers take about the memory of the Python objects around a tensor of a model."""


class DrawingApart(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes this thread draw random tensors from a separate generator.

    A model draws initial weights even if weights from a file replace them. With torch's global
    generator, this would change the random numbers of a run in another thread, and no seed
    could reproduce that training.

    Args:
        most_numbers: Most numbers for the tensors that are made inside; `MemoryError` if exceeded.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes longer than torch itself

    def __init__(self, most_numbers: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._left = torch.Generator(), most_numbers

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, size = dict(kwargs or {}), args[0] if args else None
        if isinstance(size, list) and all(isinstance(length, int) for length in size):
            # Those of a new tensor, which is not made yet, and the memory of its module.
            self._left -= math.prod(size) + NUMBERS_OF_MODULE
            if self._left < 0:
                raise MemoryError
        if torch.Tag.nondeterministic_seeded in func.tags:
            takes_one = any(argument.name == "generator" for argument in func._schema.arguments)
            func = func if takes_one else func.overloadpacket.generator
            given["generator"] = self._generator
        return func(*args, **given)


_TURN = threading.RLock()


@contextmanager
def own_process() -> Iterator[None]:
    """Reserve the random generators, the number of threads and the determinism for one run.

    These settings belong to the whole process. If two runs used the same generators at the
    same time, no seed could reproduce their results, so the second training waits for the first.
    Everything is restored afterwards, so that a run does not restart the caller's random
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
