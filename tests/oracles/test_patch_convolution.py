"""The convolution with its normalisation folded in, against the layers one after another."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clew.layers.training_mode import observed_statistics
from clew.link_prediction.models import conve
from clew.link_prediction.models.conve import projected_maps


def layers(channels, kernel, *, size=(8, 6), bias, dtype):
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, channels, kernel, bias=bias)
    norm = nn.BatchNorm2d(channels)
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.uniform_(-1, 1)
    positions = (size[0] - kernel[0] + 1) * (size[1] - kernel[1] + 1)
    projection = nn.Linear(channels * positions, 4, bias=bias)
    return [module.to(dtype) for module in (convolution, norm, projection)]


def one_after_another(x, convolution, norm, projection, *, dropout, activation="relu"):
    maps = getattr(F, activation)(norm(convolution(x)))
    return projection(F.dropout2d(maps, dropout, training=True).flatten(1))


def run(function, x, *modules, **options):
    """Return projected maps, gradients and buffers."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    maps = function(x, *modules, **options)
    weights = torch.linspace(-1, 1, maps.numel(), dtype=x.dtype).view(maps.shape)
    (maps * weights).sum().backward()
    gradients = [x.grad] + [p.grad for module in modules for p in module.parameters()]
    return maps, gradients, list(modules[1].buffers())


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 5), (8, 6)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dropout", "activation"), [(0.0, "relu"), (0.4, "relu"), (0.4, "silu")])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_equals_the_layers(kernel, bias, dropout, activation, dtype, tolerance, monkeypatch):
    options = {"dropout": dropout, "activation": activation}
    torch.manual_seed(2)
    x = torch.randn(7, 1, 8, 6, dtype=dtype) * 2 + 0.5
    monkeypatch.setattr(conve, "_BLOCK_ROWS", 3)
    own, other = (layers(5, kernel, bias=bias, dtype=dtype) for _ in range(2))
    for _ in range(2):  # update the running statistics twice
        actual = run(projected_maps, x, *own, **options)
        expected = run(one_after_another, x, *other, **options)
        torch.testing.assert_close(actual[0], expected[0], rtol=tolerance, atol=tolerance)
        for one, two in zip(actual[1], expected[1], strict=True):
            if one is not None:  # a bias before a normalisation has no gradient
                torch.testing.assert_close(one, two, rtol=tolerance, atol=10 * tolerance)
        for one, two in zip(actual[2], expected[2], strict=True):
            torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_second_derivatives_are_those_of_the_layers(bias, activation, monkeypatch):
    torch.manual_seed(3)
    x = torch.randn(7, 1, 8, 6, dtype=torch.float64) * 2 + 0.5
    monkeypatch.setattr(conve, "_BLOCK_ROWS", 3)
    found = []
    for function in (projected_maps, one_after_another):
        modules = layers(5, (3, 2), bias=bias, dtype=torch.float64)
        inputs = [x.clone().requires_grad_(), *(p for m in modules for p in m.parameters())]
        torch.manual_seed(1)
        with observed_statistics(nn.Sequential(*modules)) as statistics:
            maps = function(inputs[0], *modules, dropout=0.4, activation=activation)
        gradients = torch.autograd.grad(
            maps.square().sum(), inputs, create_graph=True, allow_unused=True
        )
        known = [g for g in gradients if g is not None and g.abs().max() > 1e-6]
        total = sum((g * torch.linspace(-1, 2, g.numel()).view_as(g)).sum() for g in known)
        mean, variance = statistics[modules[1]]
        total = total + mean.square().sum() + variance.square().sum()
        found.append(torch.autograd.grad(total, inputs))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-8)


def test_bfloat16_is_float32_within_its_rounding():
    torch.manual_seed(2)
    x = torch.randn(16, 1, 8, 8)
    own = layers(5, (3, 3), size=(8, 8), bias=True, dtype=torch.float32)
    exact = copy.deepcopy(own)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        maps = projected_maps(x, *own, dropout=0.0)
    assert maps.dtype == torch.bfloat16
    expected = one_after_another(x, *exact, dropout=0.0)
    torch.testing.assert_close(maps.float(), expected, rtol=2**-6, atol=2**-5)
    for one, two in zip(own[1].buffers(), exact[1].buffers(), strict=True):
        torch.testing.assert_close(one, two)
