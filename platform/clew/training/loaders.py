"""Batches in an order that is a function of (seed, epoch, cursor) and of nothing else.

The order does not depend on the number of workers, on what was drawn before, or on whether
training was interrupted: batch number `cursor` of epoch `epoch` holds the same examples always.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clew.config.training import TrainingConfig
from clew.runs.processor import num_cores
from clew.training.distributed import World

logger = logging.getLogger(__name__)

BLOCKS_TOGETHER = 256
"""Blocks whose examples are mixed with each other."""


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


def order_pieces(
    num_examples: int, *, seed: int, epoch: int, block: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the order of examples in an epoch, piece by piece.

    Without blocks, the only piece is a random order of all examples. With blocks of so many
    consecutive examples, the blocks are put in a random order, at least `BLOCKS_TOGETHER` of them
    make a piece (all, if there are fewer), and the examples of a piece are put in a random order.
    Each example then comes at any place of the epoch with the same probability, but those of one
    block come near each other. How near is bounded: of a batch of `b` examples, the mean of any
    quantity has at most `1 + (b - 1) / BLOCKS_TOGETHER` times the variance that it has in a random
    order of all examples, up to terms of one part in the number of blocks; that is reached where
    the quantity is the same within each block.
    """
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "little")))
    if block is None:
        yield generator.permutation(num_examples)
        return
    starts = generator.permutation(-(-num_examples // block)) * block
    for together in np.array_split(starts, max(1, len(starts) // BLOCKS_TOGETHER)):
        members = (together[:, None] + np.arange(block)).reshape(-1)
        yield generator.permutation(members[members < num_examples])


def batches_per_epoch(num_examples: int, batch_size: int, world_size: int = 1) -> int:
    """Return how many microbatches each process sees in an epoch."""
    return len(_starts(num_examples, batch_size * world_size, world_size))


def _starts(num_examples: int, wide: int, world_size: int) -> range:
    """Return where the global microbatches of `wide` examples begin in an epoch's order.

    The last one may be smaller; if it would leave a process with a single example it joins the
    one before, because batch normalisation has no variance for one example.
    """
    starts = range(0, num_examples, wide)
    if len(starts) > 1 and num_examples - starts[-1] < 2 * world_size:
        return starts[:-1]
    return starts


def epoch_microbatches(
    num_examples: int, settings: TrainingConfig, epoch: int, *, rank: int = 0, world_size: int = 1
) -> Iterator[np.ndarray]:
    """Yield the examples of each of this process's microbatches in an epoch.

    Each global microbatch of `batch_size * world_size` examples is dealt out by rank, so that
    n processes together see just what one process with an n times larger batch would see. With
    `training.shuffle_block`, one piece of the order is in memory at a time.
    """
    pieces = order_pieces(
        num_examples, seed=settings.seed, epoch=epoch, block=settings.shuffle_block
    )
    starts = _starts(num_examples, settings.batch_size * world_size, world_size)
    left = np.empty(0, np.int64)
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else num_examples
        while len(left) < end - start:
            piece = next(pieces)
            left = np.concatenate([left, piece]) if len(left) else piece
        yield left[: end - start][rank::world_size]
        left = left[end - start :]


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
        self._plan = _Plan()
        if settings.num_workers > num_cores():
            logger.warning(
                "training.num_workers is %d, more than the cores here (%d); fewer may be faster",
                settings.num_workers,
                num_cores(),
            )
        self._batches = _QuietLoader(
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
        self._plan.make = lambda: islice(
            epoch_microbatches(
                self._num_examples,
                self._settings,
                epoch,
                rank=self._world.rank,
                world_size=self._world.size,
            ),
            cursor,
            None,
        )
        yield from self._batches


class _QuietLoader(DataLoader[B]):
    """A DataLoader that does not warn of more workers than cores, at its start and every epoch."""

    def check_worker_number_rationality(self) -> None:
        """Say nothing: the loader of batches has said it, in one line."""


class _Plan:
    """Which examples make up each batch of the running epoch; the DataLoader's sampler."""

    make: Callable[[], Iterator[np.ndarray]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.make()


class _BatchesByIndices(Dataset[B], Generic[B]):
    """Adapter for DataLoader: an item is the microbatch of some indices."""

    def __init__(self, source: ExampleSource[B]) -> None:
        self.source = source

    def __getitem__(self, indices: np.ndarray) -> B:
        return self.source.batch(indices)
