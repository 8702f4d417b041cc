"""The fused loss's Triton kernels against PyTorch's operations, without a GPU."""

import pytest

pytestmark = pytest.mark.slow

COMPARISON = """
import torch
from clew.link_prediction.losses.score_tiles import Slopes, Workspace
from clew.link_prediction.losses.triton_slopes import TritonSlopes

def close(a, b, tolerance):
    torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)

def close_or_none(a, b, biased):
    assert (a is not None) == (b is not None) == biased
    if biased:
        close(a, b, 1e-5)

def compare(batch, columns, operand, gain, biased):
    generator = torch.Generator().manual_seed(columns)
    scores = 12 * torch.randn(batch, columns, generator=generator) - 6
    bias = torch.randn(columns, generator=generator) if biased else None
    mass = torch.rand(batch, generator=generator)
    kernels, exact = (
        kind(Workspace(torch.device("cpu")), kept, gain)
        for kind, kept in ((TritonSlopes, operand), (Slopes, torch.float64))
    )
    wide = None if bias is None else bias.double()
    close(kernels.softplus(scores.clone(), bias), exact.softplus(scores.double(), wide), 1e-6)
    total, slope = kernels.sigmoid(scores.clone(), bias)
    expected_total, expected = exact.sigmoid(scores.double(), wide)
    rounding = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[operand]
    close(total, expected_total, 1e-6)
    assert slope.scaled.dtype == operand
    close(slope.scaled.double() / gain, expected.scaled, rounding)
    close_or_none(slope.columns, expected.columns, biased)
    log_sum, _ = kernels.log_sum(scores.clone(), bias)
    exponentials = scores.double()
    expected_log_sum, largest = exact.log_sum(exponentials, wide)
    close(log_sum, expected_log_sum, 1e-6)
    slope = kernels.softmax(scores.clone(), bias, log_sum, mass)
    expected = exact.softmax(scores.double(), wide, expected_log_sum, mass.double())
    factor = mass.double() * (largest - expected_log_sum).exp()
    again = exact.from_exponentials(exponentials, wide, factor)
    close(again.scaled, expected.scaled, 1e-12)
    close(slope.scaled.double() / gain, expected.scaled, max(rounding, 1e-5))
    close_or_none(slope.columns, expected.columns, biased)

for batch, columns in ((1, 1), (33, 65), (7, 130), (64, 700)):
    compare(batch, columns, torch.float32, 1.0, True)
    compare(batch, columns, torch.bfloat16, 1.0, False)
    compare(batch, columns, torch.float16, 4096.0, True)

# Far below zero softplus(s) is exp(s): nothing of it may be rounded away.
far = torch.full((3, 5), -30.0)
kernels = TritonSlopes(Workspace(torch.device("cpu")), torch.float32, 1.0)
close(kernels.softplus(far, None), 15 * torch.exp(torch.tensor(-30.0)), 1e-18)
print("equal")
"""


def test_kernels_equal_pytorchs_operations(interpreted):
    assert interpreted(COMPARISON) == "equal"
