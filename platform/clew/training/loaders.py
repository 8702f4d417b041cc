"""Loads batches in an order that depends only on the seed, the epoch and the cursor.

The order does not depend on the number of workers, on earlier random numbers, or on whether
training was interrupted: batch number `cursor` of epoch `epoch` always has the same examples.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clew.config.training import TrainingConfig
from clew.runs.hardware import num_cores
from clew.training.distributed import World

logger = logging.getLogger(__name__)

BLOCKS_TOGETHER = 256
"""Minimum number of blocks whose examples are shuffled together."""


@runtime_checkable
class Batch(Protocol):
    """Examples that go through the model together."""

    @property
    def num_examples(self) -> int:
        """Number of examples."""

    @property
    def count(self) -> float:
        """The number that the summed loss is divided by: rows, tokens or targets."""

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device."""

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory; the loader calls this if `pin_memory` is set."""

    def units(self) -> dict[str, int]:
        """Return the counts for throughput: `examples`, and `tokens` or `frames` if present."""

    def describe(self) -> str:
        """Return a short description that identifies the batch in error messages."""


class TensorBatch:
    """What a batch has in common with others if all its fields are tensors, or None."""

    def to(self, device: torch.device) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        return type(self)(**{k: v if v is None else change(v) for k, v in vars(self).items()})


B_co = TypeVar("B_co", bound=Batch, covariant=True)
B = TypeVar("B", bound=Batch)


@runtime_checkable
class ExampleSource(Protocol[B_co]):
    """Examples that are read by index; it must be picklable for worker processes."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def batch(self, indices: np.ndarray) -> B_co:
        """Return the examples at `indices` `(example,)` as one batch."""


def order_pieces(
    num_examples: int, *, seed: int, epoch: int, block: int | None = None
) -> Iterator[np.ndarray]:
    """Yield the order of examples in an epoch, piece by piece.

    If `block` is None, the only piece is a random order of all examples. Otherwise the examples are
    divided into blocks of `block` consecutive examples, and the blocks are shuffled. Each piece
    consists of at least `BLOCKS_TOGETHER` blocks (or all, if there are fewer), whose examples are
    shuffled together.

    With blocks, each example still has the same probability for each place in the epoch, but the
    examples of one block are near each other. This effect is bounded: in a batch of `b` examples,
    the variance of the mean of any quantity is at most `1 + (b - 1) / BLOCKS_TOGETHER` times its
    variance in a random order of all examples, up to terms of order 1 / (number of blocks). The
    bound is reached if the quantity is constant within each block.
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
    return len(_starts(num_examples, batch_size * world_size, world_size))


def _starts(num_examples: int, wide: int, world_size: int) -> range:
    """Return the start indices of the global microbatches of `wide` examples in an epoch's order.

    The last microbatch can be smaller. If it would leave a process with fewer than two examples,
    it is merged into the one before, because batch normalisation has no variance for one example.
    """
    starts = range(0, num_examples, wide)
    if len(starts) > 1 and num_examples - starts[-1] < 2 * world_size:
        return starts[:-1]
    return starts


def epoch_microbatches(
    num_examples: int, settings: TrainingConfig, epoch: int, *, rank: int = 0, world_size: int = 1
) -> Iterator[np.ndarray]:
    """Yield the example indices of each of this process's microbatches in an epoch.

    Each global microbatch of `batch_size * world_size` examples is divided among the ranks. So n
    processes together get exactly the examples that one process with an n times larger batch would
    get. With `training.shuffle_block`, only one piece of the order is in memory at a time.
    """
    pieces = order_pieces(
        num_examples, seed=settings.seed, epoch=epoch, block=settings.shuffle_block
    )
    starts = _starts(num_examples, settings.batch_size * world_size, world_size)
    left = np.empty(0, np.int64)
    for start, end in pairwise([*starts, num_examples]):
        while len(left) < end - start:
            piece = next(pieces)
            left = np.concatenate([left, piece]) if len(left) else piece
        yield left[: end - start][rank::world_size]
        left = left[end - start :]


class BatchLoader(Generic[B]):
    """Loads the microbatches of an epoch; each epoch has its own order.

    Persistent workers live as long as the loader. They hold the examples and are sent the indices
    of each batch, so that each epoch can have its own order.
    """

    def __init__(
        self, source: ExampleSource[B], settings: TrainingConfig, world: World | None = None
    ) -> None:
        self._source, self._num_examples, self._settings = source, len(source), settings
        self._world = world or World()
        self._plan = _Plan()
        if settings.num_workers > num_cores():
            logger.warning(
                "training.num_workers is %d, more than this machine's cores (%d); fewer may be "
                "faster",
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
            # Drawing the workers' seeds from the global generator would change dropout.
            generator=torch.Generator(),
        )

    def epoch(self, epoch: int, cursor: int = 0) -> Iterator[B]:
        """Yield the microbatches of an epoch from number `cursor`; iterate one epoch at a time."""
        batches = partial(epoch_microbatches, self._num_examples, self._settings, epoch)
        rank, size = self._world.rank, self._world.size
        self._plan.make = lambda: islice(batches(rank=rank, world_size=size), cursor, None)
        alone = not (self._settings.num_workers or self._settings.pin_memory)
        # A DataLoader without workers takes as long as making a small batch does.
        yield from map(self._source.batch, self._plan) if alone else self._batches


class _QuietLoader(DataLoader[B]):
    """A DataLoader that does not repeat the warning about more workers than cores each epoch."""

    def check_worker_number_rationality(self) -> None:
        """Do nothing, because `BatchLoader` has already warned once."""


class _Plan:
    """The DataLoader's sampler: yields the example indices of each batch of the current epoch."""

    make: Callable[[], Iterator[np.ndarray]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.make()


class _BatchesByIndices(Dataset[B], Generic[B]):
    """Adapter for DataLoader: an item is the microbatch of an array of indices."""

    def __init__(self, source: ExampleSource[B]) -> None:
        self.source = source

    def __getitem__(self, indices: np.ndarray) -> B:
        return self.source.batch(indices)
