"""The order of examples depends only on seed, epoch and cursor, not on the workers."""

import itertools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.training import TrainingConfig
from clew.training.loaders import (
    BLOCKS_TOGETHER,
    BatchLoader,
    batches_per_epoch,
    epoch_microbatches,
    order_pieces,
)
from tests.training.plain_order import epoch_order, microbatches


class SaysWho:
    """Examples whose batch carries the process that prepared it."""

    def __len__(self) -> int:
        return 12

    def batch(self, indices: np.ndarray) -> Any:
        return torch.tensor([os.getpid(), *indices])


def ids(source: Any, *, seed: int, epoch: int, cursor: int = 0, **settings: Any) -> list[list[int]]:
    loader = BatchLoader(source, TrainingConfig(batch_size=5, seed=seed, **settings))
    return [batch.ids.tolist() for batch in loader.epoch(epoch, cursor)]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "persistent", "prefetch", "context"),
    # A spawned worker takes a second to start, so it is tested once.
    [*itertools.product([1, 2], [False, True], [None, 3], ["fork"]), (1, False, None, "spawn")],
)
def test_workers_do_not_change_the_order(
    source: Any, workers: int, persistent: bool, prefetch: int | None, context: str
) -> None:
    helped = ids(
        source,
        seed=0,
        epoch=0,
        cursor=1,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=persistent,
        prefetch_factor=prefetch,
        multiprocessing_context=context,
    )
    assert helped == ids(source, seed=0, epoch=0, cursor=1)


def test_more_workers_than_cores_are_said_in_one_line(
    source: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clew.training.loaders.num_cores", lambda: 1)
    few = TrainingConfig(num_workers=1, multiprocessing_context="fork")
    BatchLoader(source, few)
    assert not caplog.messages
    BatchLoader(source, few.model_copy(update={"num_workers": 1000}))  # torch warns too
    (line,) = caplog.messages
    assert line == (
        "training.num_workers is 1000, more than this machine's cores (1); fewer may be faster"
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_are_the_same_over_epochs(persistent: bool) -> None:
    settings = TrainingConfig(
        batch_size=2, num_workers=2, persistent_workers=persistent, multiprocessing_context="fork"
    )
    loader = BatchLoader(SaysWho(), settings)
    plain = BatchLoader(SaysWho(), TrainingConfig(batch_size=2))
    workers = []
    for epoch in range(3):
        found = [batch.tolist() for batch in loader.epoch(epoch)]
        assert [batch[1:] for batch in found] == [b[1:].tolist() for b in plain.epoch(epoch)]
        workers.append({batch[0] for batch in found})
    assert all(os.getpid() not in each for each in workers)
    assert len(set.union(*workers)) == (2 if persistent else 6)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_was_left_early_does_not_reach_the_next(
    source: Any, persistent: bool
) -> None:
    settings = TrainingConfig(
        batch_size=5, num_workers=1, persistent_workers=persistent, prefetch_factor=3
    )
    loader = BatchLoader(source, settings)
    next(loader.epoch(0))
    assert [b.ids.tolist() for b in loader.epoch(1)] == ids(source, seed=0, epoch=1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_leave_the_random_numbers_of_dropout_alone(source: Any, num_workers: int) -> None:
    before = torch.get_rng_state()
    ids(source, seed=0, epoch=0, num_workers=num_workers)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_training_keeps_its_workers_and_moves_no_number(
    make_trainer: Any, toy_task: Any, persistent: bool
) -> None:
    plain, helped = toy_task(dropout=0.5), toy_task(dropout=0.5)
    make_trainer(plain).train()
    prepare, learn, workers = helped.examples.batch, helped.loss, []

    def signed(indices: np.ndarray) -> Any:
        batch = prepare(indices)
        return replace(batch, ids=torch.full_like(batch.ids, os.getpid()))

    def loss(model: Any, batch: Any) -> Any:
        workers.extend(batch.ids.tolist())
        return learn(model, batch)

    trainer = make_trainer(
        helped,
        training__num_workers=1,
        training__persistent_workers=persistent,
        training__multiprocessing_context="fork",
    )
    helped.examples.batch, helped.loss = signed, loss
    trainer.train()
    assert helped.losses == plain.losses
    assert len(set(workers)) == (1 if persistent else 3)
    assert os.getpid() not in workers


@pytest.mark.parametrize(("num_examples", "block"), [(23, 5), (7000, 3), (7001, 3), (5, 100)])
def test_an_order_in_blocks_is_all_examples_in_pieces_of_whole_blocks(
    num_examples: int, block: int
) -> None:
    pieces = list(order_pieces(num_examples, seed=1, epoch=2, block=block))
    order = np.concatenate(pieces)
    assert (np.sort(order) == np.arange(num_examples)).all()
    assert (order == epoch_order(num_examples, seed=1, epoch=2, block=block)).all()
    other = epoch_order(num_examples, seed=1, epoch=3, block=block)
    assert not (order == other).all()
    num_blocks = -(-num_examples // block)
    of_piece = [set((piece // block).tolist()) for piece in pieces]
    assert sum(map(len, of_piece)) == num_blocks, "no block is in two pieces"
    assert all(
        min(num_blocks, BLOCKS_TOGETHER) <= len(blocks) < 2 * BLOCKS_TOGETHER for blocks in of_piece
    )


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_microbatches_are_the_same_whether_the_order_is_whole_or_in_pieces(
    block: int | None, world_size: int
) -> None:
    settings = TrainingConfig(batch_size=50, seed=4, shuffle_block=block)
    for num_examples in (1, 99, 101, 1999, 2001):
        order = epoch_order(num_examples, seed=4, epoch=1, block=block)
        for rank in range(world_size):
            world = {"rank": rank, "world_size": world_size}
            whole = microbatches(order, batch_size=50, **world)
            dealt = list(epoch_microbatches(num_examples, settings, 1, **world))
            assert [part.tolist() for part in dealt] == [part.tolist() for part in whole]
            assert len(dealt) == batches_per_epoch(num_examples, 50, world_size)


def test_a_loader_with_blocks_continues_at_any_cursor(source: Any) -> None:
    whole = ids(source, seed=1, epoch=2, shuffle_block=4)
    assert whole != ids(source, seed=1, epoch=2)
    for cursor in range(len(whole) + 1):
        assert ids(source, seed=1, epoch=2, cursor=cursor, shuffle_block=4) == whole[cursor:]


def test_batches_of_a_shuffle_in_blocks_vary_as_much_as_is_stated_and_no_more() -> None:
    """The quantity is constant within each block, which is the worst case; its variance is 1."""
    block, num_blocks, batch_size, epochs = 8, 2048, 256, 40
    quantity = np.repeat(np.random.default_rng(0).standard_normal(num_blocks), block)
    quantity = (quantity - quantity.mean()) / quantity.std()

    def spread(shuffle_block: int | None) -> float:
        settings = TrainingConfig(batch_size=batch_size, shuffle_block=shuffle_block)
        means = [
            quantity[batch].mean()
            for epoch in range(epochs)
            for batch in epoch_microbatches(len(quantity), settings, epoch)
        ]
        return float(np.var(means)) * batch_size

    bound = 1 + (batch_size - 1) / BLOCKS_TOGETHER
    assert spread(None) == pytest.approx(1.0, abs=0.1)
    assert 1.6 < spread(block) < bound
    assert spread(1) == pytest.approx(1.0, abs=0.1), "blocks of one example say nothing"


def test_an_example_comes_anywhere_in_an_epoch_of_blocks() -> None:
    """The mean position of each tenth of the examples, over epochs, is the middle of an epoch."""
    num_examples, epochs = 20_000, 60
    places = np.zeros(num_examples)
    for epoch in range(epochs):
        order = epoch_order(num_examples, seed=0, epoch=epoch, block=8)
        places[order] += np.arange(num_examples) / num_examples / epochs
    tenths = places.reshape(10, -1).mean(1)
    # 250 blocks in each tenth: the mean of a uniform place has a deviation of 0.29 / sqrt(250 * 60)
    np.testing.assert_allclose(tenths, 0.5, atol=4 * 0.29 / np.sqrt(250 * 60))
