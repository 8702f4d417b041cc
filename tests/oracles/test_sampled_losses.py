"""Losses from a sample of entities: against explicit sums, and against all entities."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from clew.link_prediction.losses.one_vs_all import (
    LossFunction,
    OneVsAll,
    one_vs_all_row_losses,
    targets_of,
)
from clew.link_prediction.losses.sampled import (
    Negatives,
    NegativeSampler,
    SampledScores,
    degree_weights,
    expected_draws,
)

FUNCTIONS = get_args(LossFunction)
BATCH, ENTITIES, DIM = 6, 40, 5
ROW = torch.tensor([0, 0, 1, 2, 3, 4, 4, 4, 5])
ENTITY = torch.tensor([3, 39, 0, 17, 3, 1, 2, 30, 5])


def inputs(query_bias: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(BATCH, DIM), (ENTITIES, DIM), (ENTITIES,), (BATCH,)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes[: 3 + query_bias]
    ]


def targets(function: LossFunction, smoothing: float, dtype=torch.float64):
    settings = OneVsAll(function=function, label_smoothing=smoothing)
    queries, table = (torch.zeros(size, 1, dtype=dtype) for size in (BATCH, ENTITIES))
    return targets_of(queries, table, ROW, ENTITY, settings)


def sampled(function, smoothing, negatives: Negatives, values) -> torch.Tensor:
    queries, table, bias, query_bias = values
    labels = targets(function, smoothing, table.dtype)
    scores = SampledScores(
        queries, query_bias, labels, negatives, lambda ids: (table[ids], bias[ids])
    )
    return scores.losses(function)


def over_all(function, smoothing, values) -> torch.Tensor:
    queries, table, bias, query_bias = values
    settings = OneVsAll(function=function, label_smoothing=smoothing, implementation="plain")
    return one_vs_all_row_losses(
        queries, table, bias, ROW, ENTITY, settings=settings, query_bias=query_bias
    )


def written_out(function, smoothing, negatives: Negatives, values) -> list[float]:
    """Compute the loss by its definition, one number after another."""
    queries, table, bias, query_bias = (value.detach().tolist() for value in values)
    drawn = list(zip(negatives.entity.tolist(), negatives.rate.tolist(), strict=True))
    losses = []
    for b in range(BATCH):
        own = [e for row, e in zip(ROW.tolist(), ENTITY.tolist(), strict=True) if row == b]

        def score(e: int, b: int = b) -> float:
            product = sum(x * w for x, w in zip(queries[b], table[e], strict=True))
            return product + bias[e] + query_bias[b]

        rest = [(e, rate) for e, rate in drawn if e not in own]

        def total(f, own=own, rest=rest) -> float:
            return sum(f(score(e)) for e in own) + sum(f(score(e)) / rate for e, rate in rest)

        smoothed = smoothing / ENTITIES * total(lambda s: s)
        keep = 1 - smoothing
        if function == "binary_cross_entropy":
            labelled = keep * sum(map(score, own))
            losses.append(total(lambda s: math.log1p(math.exp(s))) - labelled - smoothed)
        else:
            labelled = keep / len(own) * sum(map(score, own))
            losses.append(math.log(total(math.exp)) - labelled - smoothed)
    return losses


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_definition_written_out(function, smoothing, weighted):
    values = inputs()
    weights = np.arange(1.0, ENTITIES + 1) ** 2 if weighted else None
    sampler = NegativeSampler(ENTITIES, 13, seed=3, weights=weights)
    hits = 0
    for example in range(20):
        negatives = sampler.draw(torch.arange(example, example + BATCH))
        hits += len(np.intersect1d(negatives.entity, ENTITY))
        losses = sampled(function, smoothing, negatives, values)
        expected = torch.tensor(
            written_out(function, smoothing, negatives, values), dtype=torch.float64
        )
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    assert hits > 20, "samples must meet positives, or nothing was taken away"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_with_every_entity_drawn_it_is_the_loss_over_all(function, weighted):
    values = inputs()
    weights = np.arange(1.0, ENTITIES + 1) ** 2 if weighted else None
    sampler = NegativeSampler(ENTITIES, ENTITIES, seed=0, weights=weights)
    negatives = sampler.draw(torch.arange(BATCH))
    assert negatives.entity.tolist() == list(range(ENTITIES))
    ours, expected = sampled(function, 0.1, negatives, values), over_all(function, 0.1, values)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.arange(1.0, BATCH + 1, dtype=torch.float64)
    ours, expected = (torch.autograd.grad(loss @ upstream, values) for loss in (ours, expected))
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_half_precision_only_the_products_are_rounded(function, smoothing):
    exact = [value.detach().bfloat16().float().requires_grad_() for value in inputs()]
    negatives = NegativeSampler(ENTITIES, 13, seed=3).draw(torch.arange(BATCH))
    expected = sampled(function, smoothing, negatives, exact)
    with torch.autocast("cpu", torch.bfloat16):
        losses = sampled(function, smoothing, negatives, exact)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, rtol=2e-3, atol=2e-3)
    ours, theirs = (torch.autograd.grad(loss.sum(), exact) for loss in (losses, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_many_samples_is_the_gradient_over_all(weighted):
    """The estimate of binary cross entropy is unbiased; that of softmax needs a larger sample."""
    values = inputs()
    weights = np.arange(1.0, ENTITIES + 1) if weighted else None
    expected = torch.autograd.grad(over_all("binary_cross_entropy", 0.1, values).sum(), values[1])[
        0
    ]
    sampler, total = NegativeSampler(ENTITIES, 15, seed=0, weights=weights), 0.0
    samples = 800
    squares = torch.zeros_like(expected)
    for step in range(samples):
        negatives = sampler.draw(torch.arange(step, step + 2))
        loss = sampled("binary_cross_entropy", 0.1, negatives, values).sum()
        gradient = torch.autograd.grad(loss, values[1])[0]
        total, squares = total + gradient, squares + gradient.square()
    mean = total / samples
    deviation = (squares / samples - mean.square()).clamp(min=1e-12).sqrt() / samples**0.5
    assert ((mean - expected).abs() / deviation).max() < 5.0  # of 200 numbers


def test_the_bias_of_the_softmax_shrinks_with_the_sample():
    values = inputs()
    expected = torch.autograd.grad(over_all("softmax_cross_entropy", 0.0, values).sum(), values[1])[
        0
    ]
    errors = []
    for draws in (5, 20, 35):
        sampler = NegativeSampler(ENTITIES, draws, seed=0)
        gradients = []
        for step in range(200):
            negatives = sampler.draw(torch.arange(step, step + 2))
            loss = sampled("softmax_cross_entropy", 0.0, negatives, values).sum()
            gradients.append(torch.autograd.grad(loss, values[1])[0])
        errors.append(float((torch.stack(gradients).mean(0) - expected).norm()))
    assert errors[0] > 1.5 * errors[1] > 2.0 * errors[2]


@pytest.mark.parametrize("weighted", [False, True])
def test_entities_are_drawn_as_often_as_expected(weighted):
    weights = np.linspace(1, 30, ENTITIES) ** 2 if weighted else None
    sampler = NegativeSampler(ENTITIES, 11, seed=5, weights=weights)
    rates = expected_draws(np.ones(ENTITIES) if weights is None else weights, 11)
    assert rates.sum() == pytest.approx(11)
    counts, samples = np.zeros(ENTITIES), 1500
    for example in range(samples):
        drawn = sampler.draw(torch.tensor([example]))
        assert (drawn.entity.diff() >= 0).all()
        np.testing.assert_allclose(drawn.rate, rates[drawn.entity], rtol=1e-12)
        counts += np.bincount(drawn.entity, minlength=ENTITIES)
    deviation = np.sqrt(np.maximum(rates, 1e-3) / samples)
    assert (np.abs(counts / samples - rates) / deviation).max() < 5.0


def test_no_rate_is_above_one_and_large_weights_are_certain():
    rates = expected_draws(np.array([100.0, 50.0, 1.0, 1.0, 1.0, 1.0]), 4)
    np.testing.assert_allclose(rates, [1.0, 1.0, 0.5, 0.5, 0.5, 0.5])


def test_a_sample_follows_from_the_seed_and_the_set_of_examples():
    sampler = NegativeSampler(1000, 50, seed=1)
    batch = torch.tensor([5, 900, 17])
    first = sampler.draw(batch).entity
    assert torch.equal(first, sampler.draw(batch.flip(0)).entity)
    parts = sampler.entropy(batch[:1]) + sampler.entropy(batch[1:])
    assert torch.equal(first, sampler.draw_from(parts).entity)
    assert not torch.equal(first, sampler.draw(torch.tensor([5, 900, 18])).entity)
    assert not torch.equal(first, NegativeSampler(1000, 50, seed=2).draw(batch).entity)


def test_more_draws_than_entities_are_all_of_them():
    assert NegativeSampler(7, 100, seed=0).draw(torch.tensor([1])).entity.tolist() == list(range(7))


def test_weights_count_both_ends_of_every_triple(monkeypatch):
    monkeypatch.setattr("clew.link_prediction.triples.BLOCK_ROWS", 2)
    triples = np.array([[0, 0, 1], [0, 1, 2], [0, 0, 0]], np.int32)
    np.testing.assert_allclose(degree_weights(triples, 4), np.array([5, 2, 2, 1]) ** 0.75)
