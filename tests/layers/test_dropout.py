"""Dropout with sixteen random bits per element."""

import pytest
import torch

from clew.layers.training_mode import dropout


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.9, 1e-9, 1 - 1e-9])
def test_share_and_scale(probability):
    torch.manual_seed(0)
    x = torch.ones(1001, 999)
    result = dropout(x, probability, True)
    share = (result == 0).double().mean().item()
    assert share == pytest.approx(probability, abs=1e-3)
    kept = result[result != 0]
    assert torch.all(kept == kept[0])
    if probability < 0.95:
        assert result.mean().item() == pytest.approx(1.0, abs=0.01)
        assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=2e-4)


def test_elements_are_independent_of_their_place():
    """Each of a word's four lanes drops the right share, and the lanes are uncorrelated."""
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(4_000_000), 0.3, True) == 0).view(-1, 4).double()
    torch.testing.assert_close(dropped.mean(0), torch.full((4,), 0.3).double(), atol=2e-3, rtol=0)
    correlation = torch.corrcoef(dropped.T) - torch.eye(4)
    assert correlation.abs().max() < 5e-3


def test_gradient_is_the_mask():
    torch.manual_seed(0)
    x = torch.randn(7, 5, requires_grad=True)
    result = dropout(x, 0.4, True)
    result.sum().backward()
    torch.testing.assert_close(result, x * x.grad)


def test_seeded_and_off():
    x = torch.randn(13, dtype=torch.bfloat16)
    torch.manual_seed(5)
    first = dropout(x, 0.5, True)
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.5, True))
    assert first.dtype == torch.bfloat16
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
