"""The strongest facts of unrolled scores."""

import numpy as np

from clew.influence.scores import Scored


def strongest(by_interval: np.ndarray, count: int, *, sign: int, every: bool = False) -> Scored:
    """Return the strongest facts of one sign for each test, ties to the smaller index.

    Args:
        by_interval: Influence `(interval, test, fact)`.
        count: Facts to keep.
        sign: 1 for proponents, -1 for opponents.
        every: Whether to keep facts of the other sign too.
    """
    whole = by_interval.sum(0)
    order = np.argsort(-sign * whole, axis=1, kind="stable")[:, :count]
    influence = np.take_along_axis(whole, order, 1)
    missing = np.zeros_like(order, bool) if every else sign * influence <= 0
    kept = np.take_along_axis(by_interval, order[None], 2).astype(np.float32)
    return Scored(
        train=np.where(missing, -1, order),
        influence=np.where(missing, 0.0, influence),
        by_checkpoint=np.where(missing[None], np.float32(0.0), kept),
        by_part=np.zeros((0, *order.shape), np.float32),
        cosine=None,
    )
