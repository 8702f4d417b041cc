"""Losses over all entities against full label matrices, and fused losses against plain ones."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clew.link_prediction.losses import fused_one_vs_all
from clew.link_prediction.losses.one_vs_all import (
    LossFunction,
    OneVsAll,
    one_vs_all_loss,
    one_vs_all_row_losses,
)
from clew.link_prediction.losses.score_tiles import MINIMUM_CHUNK, EntityChunks, chunk_size

FUNCTIONS = get_args(LossFunction)


class Problem:
    """Random queries, entity table, bias and multi-label positives."""

    def __init__(
        self,
        batch,
        entities,
        dim,
        *,
        dtype,
        seed=0,
        bias=True,
        scale=1.0,
        positives=3,
        query_bias=False,
    ):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            # Always rounded to float32, so that float64 is the reference for float32.
            values = torch.randn(*shape, generator=generator) * scale
            return values.to(dtype).requires_grad_()

        self.queries, self.table = draw(batch, dim), draw(entities, dim)
        self.table.data /= 2 ** round(math.log2(dim) / 2)
        self.bias = draw(entities) if bias else None
        self.query_bias = draw(batch) if query_bias else None
        chosen = [
            torch.randperm(entities, generator=generator)[: 1 + (i + seed) % positives]
            for i in range(batch)
        ]
        self.row = torch.repeat_interleave(
            torch.arange(batch), torch.tensor([len(c) for c in chosen])
        )
        self.entity = torch.cat(chosen)

    @property
    def inputs(self):
        return [x for x in (self.queries, self.table, self.bias, self.query_bias) if x is not None]

    def loss(self, **options) -> Tensor:
        """Return the loss under test."""
        settings_ = OneVsAll(**options)
        plain = settings_.implementation == "plain"
        loss = one_vs_all_loss if plain else fused_one_vs_all.fused_one_vs_all_loss
        return loss(
            self.queries,
            self.table,
            self.bias,
            self.row,
            self.entity,
            settings=settings_,
            query_bias=self.query_bias,
        )

    def dense_loss(self, function, label_smoothing) -> Tensor:
        """Return the same loss by torch's own losses and a full label matrix."""
        self.scores = F.linear(self.queries, self.table, self.bias)
        if self.query_bias is not None:
            self.scores = self.scores + self.query_bias[:, None]
        scores = self.scores
        labels = torch.zeros_like(scores)
        labels[self.row, self.entity] = 1.0
        if function == "softmax_cross_entropy":
            labels = F.normalize(labels, p=1, dim=1)
        labels = (1 - label_smoothing) * labels + label_smoothing / scores.shape[1]
        self.labels = labels
        if function == "binary_cross_entropy":
            return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
        return F.cross_entropy(scores, labels, reduction="sum")

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, self.inputs, retain_graph=True))

    def gradient_magnitudes(self, truth: Tensor) -> list[float]:
        """Return the largest sum of absolute terms in each gradient of the dense loss."""
        (slope,) = torch.autograd.grad(truth, self.scores, retain_graph=True)
        queries, table = self.queries.detach().abs(), self.table.detach().abs()
        slope = slope.abs() + 2 * self.labels  # itself a difference: probability - label
        sums = [slope @ table, slope.T @ queries]
        sums += [slope.sum(dim=0)] if self.bias is not None else []
        sums += [slope.sum(dim=1)] if self.query_bias is not None else []
        return [x.max().item() for x in sums]


def assert_same(
    problem: Problem, loss: Tensor, exact: Problem, truth: Tensor, tolerance: float
) -> None:
    """Compare loss and gradients with the float64 reference of the same problem.

    Gradients are sums whose terms cancel: errors are relative to the sum of absolute terms.
    """
    assert abs(loss.double() - truth) <= tolerance * max(abs(truth), 1.0)
    magnitudes = exact.gradient_magnitudes(truth)
    gradients = zip(problem.gradients(loss), exact.gradients(truth), magnitudes, strict=True)
    for actual, expected, magnitude in gradients:
        assert actual.dtype == loss.dtype
        assert (actual.double() - expected).abs().max().item() <= tolerance * magnitude


@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize(("bias", "query_bias"), [(True, False), (False, False), (True, True)])
def test_equals_labels_written_out(
    implementation, function, smoothing, dtype, tolerance, bias, query_bias
):
    problem = Problem(7, 4500, 12, dtype=dtype, bias=bias, query_bias=query_bias)
    exact = Problem(7, 4500, 12, dtype=torch.float64, bias=bias, query_bias=query_bias)
    loss = problem.loss(
        function=function, label_smoothing=smoothing, implementation=implementation, chunk_bytes=1
    )
    assert loss.dtype == dtype
    assert_same(problem, loss, exact, exact.dense_loss(function, smoothing), tolerance)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 17), st.integers(2, 5003), st.integers(1, 13)),
    function=st.sampled_from(FUNCTIONS),
    smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    scale=st.sampled_from([0.01, 0.5, 1.0]),
    positives=st.integers(1, 5),
    seed=st.integers(0, 1000),
    double=st.booleans(),
)
def test_fused_equals_plain_for_sizes_that_divide_nothing(
    shape, function, smoothing, scale, positives, seed, double
):
    dtype, tolerance = (torch.float64, 1e-12) if double else (torch.float32, 1e-6)
    variant = {"seed": seed, "scale": scale, "positives": positives}
    problem, exact = (Problem(*shape, dtype=d, **variant) for d in (dtype, torch.float64))
    options = {"function": function, "label_smoothing": smoothing}
    fused = problem.loss(implementation="fused", chunk_bytes=1, **options)
    assert_same(problem, fused, exact, exact.dense_loss(function, smoothing), tolerance)
    if double:
        plain = problem.loss(implementation="plain", **options)
        assert_same(problem, plain, exact, exact.dense_loss(function, smoothing), tolerance)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_add_up_and_ignore_each_other(function):
    problem = Problem(6, 40, 5, dtype=torch.float64)
    settings_ = OneVsAll(function=function, label_smoothing=0.1)
    rows = one_vs_all_row_losses(
        problem.queries, problem.table, problem.bias, problem.row, problem.entity,
        settings=settings_,
    )  # fmt: skip
    torch.testing.assert_close(
        rows.sum(), problem.loss(function=function, label_smoothing=0.1), rtol=1e-12, atol=0
    )
    alone = problem.row == 2
    row = one_vs_all_row_losses(
        problem.queries[2:3], problem.table, problem.bias, problem.row[alone] - 2,
        problem.entity[alone], settings=settings_,
    )  # fmt: skip
    torch.testing.assert_close(rows[2:3], row, rtol=1e-12, atol=0)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("chunk_bytes", [1, 7 * 8 * 3000, 7 * 8 * 5000, 2**26])
def test_the_chunk_changes_nothing(function, chunk_bytes):
    problem = Problem(7, 6001, 4, dtype=torch.float64)
    options = {"function": function, "label_smoothing": 0.1}
    assert_same(
        problem,
        problem.loss(chunk_bytes=chunk_bytes, **options),
        problem,
        problem.dense_loss(function, 0.1),
        1e-12,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kept_bytes", "num_kept"), [(0, 0), (2 * 4 * 5 * 40, 2), (10**6, 3)])
def test_as_many_products_are_kept_as_fit(dtype, kept_bytes, num_kept, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    queries, table = (torch.randn(n, 6, generator=generator) for n in (5, 110))
    chunks = EntityChunks(queries, table, operand=dtype, size=40, kept_bytes=kept_bytes)
    first = [scores.clone() for _, _, scores in chunks]
    made, product = [], chunks.workspace.product

    def counted(name, *factors, dtype):
        made.append(name)
        return product(name, *factors, dtype=dtype)

    monkeypatch.setattr(chunks.workspace, "product", counted)
    second = [scores.clone() for _, _, scores in chunks]
    assert len(made) == 3 - num_kept
    torch.testing.assert_close(second, first, rtol=0.0, atol=0.0)
    assert [scores.shape for scores in first] == [(5, 40), (5, 40), (5, 30)]


def test_chunks_keep_to_the_budget_and_are_not_small():
    cpu = torch.device("cpu")
    assert MINIMUM_CHUNK / 2 < chunk_size(512, 14541, chunk_bytes=1, device=cpu) <= MINIMUM_CHUNK
    assert chunk_size(8, 100, chunk_bytes=2**26, device=cpu) == 100
    for budget in (2**22, 2**24, 2**26):
        size = chunk_size(256, 1_000_000, chunk_bytes=budget, device=cpu)
        assert 2 * 4 * 256 * size <= max(budget, 2 * 4 * 256 * MINIMUM_CHUNK)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bfloat16_autocast_is_float32_within_its_rounding(function):
    problem = Problem(33, 5000, 16, dtype=torch.float32)
    exact = Problem(33, 5000, 16, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = problem.loss(function=function, label_smoothing=0.1)
    assert loss.dtype == torch.float32
    assert_same(problem, loss, exact, exact.dense_loss(function, 0.1), 2**-7)


def test_half_precision_queries_get_half_precision_gradients():
    problem = Problem(5, 60, 8, dtype=torch.float32)
    problem.queries = problem.queries.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = problem.loss()
    assert [g.dtype for g in problem.gradients(loss)] == [
        torch.bfloat16, torch.float32, torch.float32,
    ]  # fmt: skip


def test_a_loss_scale_goes_through():
    problem = Problem(5, 3000, 8, dtype=torch.float32)
    plain = problem.gradients(problem.loss(implementation="plain"))
    scaled = torch.autograd.grad(problem.loss() * 65536.0, problem.inputs)
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other / 65536.0, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", ["queries", "table", "bias"])
def test_only_wanted_gradients_are_made(frozen):
    problem = Problem(5, 300, 8, dtype=torch.float64)
    expected = problem.gradients(problem.loss(implementation="plain"))
    left = [i for i, n in enumerate(("queries", "table", "bias")) if n != frozen]
    getattr(problem, frozen).requires_grad_(False)
    inputs = [problem.inputs[i] for i in left]
    actual = torch.autograd.grad(problem.loss(), inputs)
    torch.testing.assert_close(list(actual), [expected[i] for i in left], rtol=1e-10, atol=1e-10)


def test_without_gradients_there_is_only_a_value():
    problem = Problem(5, 300, 8, dtype=torch.float64)
    with torch.no_grad():
        assert not problem.loss().requires_grad
    torch.testing.assert_close(problem.loss(), problem.loss(implementation="plain"))


def test_a_second_backward_is_refused():
    loss = Problem(3, 30, 4, dtype=torch.float32).loss()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_row_without_positives_is_all_negatives():
    problem = Problem(4, 30, 4, dtype=torch.float64)
    keep = problem.row != 1
    problem.row, problem.entity = problem.row[keep], problem.entity[keep]
    loss = problem.loss()
    assert_same(problem, loss, problem, problem.dense_loss("binary_cross_entropy", 0.0), 1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_large_scores_are_exact_and_finite(function, implementation):
    problem = Problem(4, 3000, 4, dtype=torch.float64, scale=4.0)
    loss = problem.loss(function=function, label_smoothing=0.1, implementation=implementation)
    assert_same(problem, loss, problem, problem.dense_loss(function, 0.1), 1e-12)
    assert problem.scores.max() > 20
    huge = Problem(4, 3000, 4, dtype=torch.float32, scale=40.0)
    loss = huge.loss(function=function, label_smoothing=0.1, implementation=implementation)
    assert all(x.isfinite().all() for x in [loss, *huge.gradients(loss)])


def test_float16_products_keep_small_slopes(monkeypatch):
    """Slopes of 1e-7 are lost in float16 unless they are stored times a gain."""
    monkeypatch.setattr(fused_one_vs_all, "operand_type", lambda table: torch.float16)
    problem, exact = (Problem(3, 12, 4, dtype=d) for d in (torch.float32, torch.float64))
    for one in (problem, exact):
        one.bias.data.fill_(-16.0)
        one.row, one.entity = one.row[:0], one.entity[:0]
    actual = problem.gradients(problem.loss())
    expected = exact.gradients(exact.loss(implementation="plain"))
    for value, truth in zip(actual, expected, strict=True):
        assert (value - truth).abs().max() < 5e-3 * truth.abs().max()
