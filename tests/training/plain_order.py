"""A reference for the examples of each microbatch, with the order of an epoch in memory."""

import numpy as np

from clew.training.loaders import order_pieces


def epoch_order(
    num_examples: int, *, seed: int, epoch: int, block: int | None = None
) -> np.ndarray:
    return np.concatenate(list(order_pieces(num_examples, seed=seed, epoch=epoch, block=block)))


def microbatches(
    order: np.ndarray, *, batch_size: int, rank: int = 0, world_size: int = 1
) -> list[np.ndarray]:
    """Return a process's microbatches: every n-th example of each global microbatch.

    A last global microbatch with fewer than two examples per process joins the one before.
    """
    starts = list(range(0, len(order), batch_size * world_size))
    if len(starts) > 1 and len(order) - starts[-1] < 2 * world_size:
        starts.pop()
    ends = [*starts[1:], len(order)]
    return [order[a:b][rank::world_size] for a, b in zip(starts, ends, strict=True)]
