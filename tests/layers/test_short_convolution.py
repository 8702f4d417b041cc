"""Short causal convolutions against a loop over steps."""

import pytest
import torch
from torch import Tensor

from clew.layers.eigenstate import ShortConvolution, _Filter


def build(width: int, dim: int = 5) -> ShortConvolution:
    torch.manual_seed(0)
    return ShortConvolution(dim, width).double()


def by_steps(kernel: Tensor, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for i in range(min(len(kernel), t + 1)):
            out[:, t] += kernel[i] * x[:, t - i]
    return out


@pytest.mark.parametrize("width", [2, 3, 7])
@pytest.mark.parametrize("time", [1, 2, 9])
def test_it_is_the_sum_over_the_last_steps(width: int, time: int):
    layer, x = build(width), torch.randn(3, time, 5, dtype=torch.float64)
    assert layer.kernel is not None
    torch.testing.assert_close(layer(x)[0], by_steps(layer.kernel, x))


@pytest.mark.parametrize("split", [0, 1, 2, 5, 8])
def test_a_series_may_be_split_at_any_step(split: int):
    layer, x = build(4), torch.randn(2, 8, 5, dtype=torch.float64)
    left, state = layer(x[:, :split])
    right, end = layer(x[:, split:], state)
    whole, whole_end = layer(x)
    assert torch.equal(torch.cat([left, right], dim=1), whole)
    assert torch.equal(end, whole_end)
    assert torch.equal(end, x[:, -3:])


def test_gradients_of_inputs_and_of_each_examples_filter():
    inputs = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    for positions in (None, torch.tensor([[0, 1, 0, 0], [5, 6, 7, 0]])):
        assert torch.autograd.gradcheck(_Filter.apply, (inputs, kernel, positions))


def test_a_filter_sees_its_own_document_alone():
    layer, x = build(4), torch.randn(1, 8, 5, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 0, 0, 1, 2, 3, 4]])
    found, _ = layer(x, None, positions)
    alone = [layer(part)[0] for part in (x[:, :2], x[:, 2:3], x[:, 3:])]
    torch.testing.assert_close(found, torch.cat(alone, dim=1))


def test_a_width_of_one_is_no_filter():
    layer, x = build(1), torch.randn(2, 4, 5, dtype=torch.float64)
    out, state = layer(x)
    assert out is x
    assert state.shape == (2, 0, 5)
    assert layer(x, state)[0] is x
    assert not list(layer.parameters())


def test_initial_filters_pass_the_step_itself_on():
    kernel = ShortConvolution(4000, 3).kernel
    assert kernel is not None
    assert kernel.mean(1).tolist() == pytest.approx([1.0, 0.0, 0.0], abs=0.03)
    assert kernel.std(1).tolist() == pytest.approx([0.3, 0.3, 0.3], abs=0.02)


def test_half_precision_inputs_stay_so():
    layer = ShortConvolution(5, 3)
    out, _ = layer(torch.randn(2, 4, 5).bfloat16())
    assert out.dtype == torch.bfloat16
