"""The order of examples is a function of seed, epoch and cursor, whoever prepares the batches."""

import itertools
from typing import Any

import numpy as np
import pytest

from clew.data.loaders import LoaderSettings, batches_per_epoch, epoch_order, iterate_batches


def ids(source: Any, **settings: Any) -> list[list[int]]:
    return [b.ids.tolist() for b in iterate_batches(source, batch_size=5, **settings)]


@pytest.fixture
def source(toy_task: Any) -> Any:
    return toy_task(num_examples=23).train_examples()


def test_any_cursor_continues_the_same_epoch(source: Any) -> None:
    whole = ids(source, seed=1, epoch=2)
    assert len(whole) == batches_per_epoch(23, 5) == 5
    for cursor in range(len(whole) + 1):
        assert ids(source, seed=1, epoch=2, cursor=cursor) == whole[cursor:]


def test_epochs_and_seeds_differ_and_repeat(source: Any) -> None:
    orders = {(s, e): tuple(epoch_order(23, seed=s, epoch=e)) for s in (0, 1) for e in (0, 1)}
    assert len(set(orders.values())) == 4
    assert tuple(epoch_order(23, seed=1, epoch=0)) == orders[1, 0]
    assert (np.sort(orders[0, 0]) == np.arange(23)).all()


@pytest.mark.parametrize(
    ("workers", "persistent", "prefetch", "context"),
    # A spawned worker takes a second to start: once is enough.
    [*itertools.product([1, 2], [False, True], [None, 3], ["fork"]), (1, False, None, "spawn")],
)
def test_workers_do_not_change_the_order(
    source: Any, workers: int, persistent: bool, prefetch: int | None, context: str
) -> None:
    settings = LoaderSettings(
        num_workers=workers,
        pin_memory=True,
        persistent_workers=persistent,
        prefetch_factor=prefetch,
        multiprocessing_context=context,
    )
    assert ids(source, seed=0, epoch=0, cursor=1, settings=settings) == ids(
        source, seed=0, epoch=0, cursor=1
    )
