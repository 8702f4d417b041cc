"""Batches in an order that is a function of (seed, epoch, cursor) and of nothing else.

The order does not depend on the number of workers, on what was drawn before, or on whether
training was interrupted: batch number `cursor` of epoch `epoch` holds the same examples always.
"""

import hashlib
from collections.abc import Iterator
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clew.config.training import TrainingConfig
from clew.training.distributed import World


@runtime_checkable
class Batch(Protocol):
    """Examples that go through the model at once."""

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        ...

    @property
    def count(self) -> int:
        """What the summed loss is divided by: rows, tokens or targets."""
        ...

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device."""
        ...

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory; the loader calls this if it is asked to."""
        ...

    def units(self) -> dict[str, int]:
        """Return what throughput counts: `examples`, and `tokens` or `frames` where there are."""
        ...

    def describe(self) -> str:
        """Return a short identity of the batch for error messages."""
        ...


B_co = TypeVar("B_co", bound=Batch, covariant=True)
B = TypeVar("B", bound=Batch)


@runtime_checkable
class ExampleSource(Protocol[B_co]):
    """Examples addressed by index; picklable for worker processes."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch(self, indices: np.ndarray) -> B_co:
        """Return the examples at `indices` `(example,)` as one batch."""
        ...


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order of examples in an epoch, `(example,)`, from the seed and the epoch alone."""
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "little")))
    return generator.permutation(num_examples)


def batches_per_epoch(num_examples: int, batch_size: int, world_size: int = 1) -> int:
    """Return how many microbatches each process sees in an epoch."""
    return len(_bounds(num_examples, batch_size * world_size, world_size))


def _bounds(num_examples: int, wide: int, world_size: int) -> list[tuple[int, int]]:
    """Cut an epoch into global microbatches of `wide` examples.

    The last one may be smaller; if it would leave a process with a single example it joins the
    one before, because batch normalisation has no variance for one example.
    """
    starts = list(range(0, num_examples, wide))
    if len(starts) > 1 and num_examples - starts[-1] < 2 * world_size:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_examples], strict=True))


def microbatch_indices(
    order: np.ndarray, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> list[np.ndarray]:
    """Split an epoch's order into this process's microbatches.

    Each global microbatch of `batch_size * world_size` examples is dealt out by rank, so that
    n processes together see just what one process with an n times larger batch would see.
    """
    bounds = _bounds(len(order), batch_size * world_size, world_size)
    return [order[start:end][rank::world_size] for start, end in bounds]


class BatchLoader(Generic[B]):
    """Hands out the microbatches of one epoch after another, in an order that is the epoch's own.

    Persistent workers live as long as the loader. They hold the examples; which ones make up a
    batch is sent to them, so that each epoch may have its own plan.

    Args:
        source: The examples.
        settings: Batch size, seed of the order, and workers, which change nothing in the batches.
        world: Processes that share an epoch.
    """

    def __init__(
        self, source: ExampleSource[B], settings: TrainingConfig, world: World | None = None
    ) -> None:
        self._num_examples, self._settings = len(source), settings
        self._world = world or World()
        self._plan: list[np.ndarray] = []
        self._batches = DataLoader(
            _BatchesByIndices(source),
            batch_size=None,
            sampler=self._plan,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory and torch.cuda.is_available(),
            persistent_workers=settings.persistent_workers,
            prefetch_factor=settings.prefetch_factor,
            multiprocessing_context=settings.multiprocessing_context,
            # Its own: a draw for the workers' seeds from the global one would change dropout.
            generator=torch.Generator(),
        )

    def epoch(self, epoch: int, cursor: int = 0) -> Iterator[B]:
        """Yield the microbatches of an epoch from number `cursor` on; one epoch at a time."""
        order = epoch_order(self._num_examples, seed=self._settings.seed, epoch=epoch)
        self._plan[:] = microbatch_indices(
            order,
            batch_size=self._settings.batch_size,
            rank=self._world.rank,
            world_size=self._world.size,
        )[cursor:]
        yield from self._batches


class _BatchesByIndices(Dataset[B], Generic[B]):
    """Adapter for DataLoader: an item is the microbatch of some indices."""

    def __init__(self, source: ExampleSource[B]) -> None:
        self.source = source

    def __getitem__(self, indices: np.ndarray) -> B:
        return self.source.batch(indices)
