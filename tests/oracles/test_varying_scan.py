"""The scan with a multiplier for each step against the loop, and its Triton kernels against it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clew.layers.scan import scan


def varying_scan_by_loop(inputs: Tensor, multipliers: Tensor, initial: Tensor | None) -> Tensor:
    """Return the result of `scan` from a loop over time with plain autograd."""
    drive, factors = torch.view_as_complex(inputs), torch.view_as_complex(multipliers)
    state = torch.zeros_like(drive[:, 0]) if initial is None else torch.view_as_complex(initial)
    states = []
    for step in range(inputs.shape[1]):
        state = factors[:, step] * state + drive[:, step]
        states.append(state)
    return torch.view_as_real(torch.stack(states, dim=1))


KERNELS = """
import torch
from clew.layers import scan as operators, triton_scan

def compare(batch, time, states, chunk):
    generator = torch.Generator().manual_seed(time)
    def normal(*shape):
        return torch.randn(*shape, 2, generator=generator)
    inputs, initial = normal(batch, time, states), normal(batch, states)
    gradient = normal(batch, time, states)
    modulus = torch.rand(batch, time, states, generator=generator)
    modulus[:, ::5] = 0.0
    angle = 3 * torch.rand(batch, time, states, generator=generator)
    multipliers = torch.view_as_real(torch.polar(modulus, angle))
    expected = operators.diagonal_scan(inputs, multipliers, initial, 16)
    found = triton_scan.forward(inputs, multipliers, initial, None, chunk)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    adjoint, d_multipliers, _ = operators.diagonal_scan_backward(
        gradient, expected, multipliers, initial, 16
    )
    later, _ = operators.against_time(operators.conjugated(multipliers), None)
    found = triton_scan.backward(gradient, expected, later, initial, None, chunk)
    torch.testing.assert_close(found[0], adjoint, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(found[1], d_multipliers, rtol=2e-5, atol=2e-5)

for time, chunk in ((1, 8), (7, 1), (16, 8), (33, 8), (33, 64)):
    compare(2, time, 5, chunk)
compare(1, 40, 130, 16)  # more states than a block holds
print("equal")
"""


def problem(time: int, batch: int = 2, states: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, multipliers from 0 to the unit circle, and an initial state."""
    generator = torch.Generator().manual_seed(time)
    double = {"dtype": torch.float64, "generator": generator}
    inputs = torch.randn(batch, time, states, 2, **double)
    modulus = torch.rand(batch, time, states, **double).clamp(0.05, 0.95)
    modulus = torch.where(modulus > 0.9, 1.0, torch.where(modulus < 0.1, 0.0, modulus))
    multipliers = torch.polar(modulus, 3 * torch.rand(batch, time, states, **double))
    return inputs, torch.view_as_real(multipliers), torch.randn(batch, states, 2, **double)


def with_gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in tensors]
    states = function(*leaves)
    weights = torch.randn(states.shape, dtype=states.dtype, generator=torch.Generator())
    return [states.detach(), *torch.autograd.grad((states * weights).sum(), leaves)]


@pytest.mark.parametrize("time", [1, 2, 7, 48, 61, 100])
@pytest.mark.parametrize("chunk_size", [1, 7, 16, 100])
def test_value_and_gradients_equal_the_loop_for_every_chunk_size(
    time: int, chunk_size: int
) -> None:
    tensors = problem(time)
    fast = with_gradients(lambda *a: scan(*a, chunk_size=chunk_size), *tensors)
    slow = with_gradients(varying_scan_by_loop, *tensors)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_gradcheck() -> None:
    leaves = tuple(t.requires_grad_() for t in problem(time=11))
    assert torch.autograd.gradcheck(lambda *a: scan(*a, chunk_size=3), leaves)


@pytest.mark.parametrize("starts_known", [False, True])
def test_the_same_multipliers_in_every_step_are_the_fixed_scan(starts_known: bool) -> None:
    inputs, multipliers, initial = problem(time=50)
    values = multipliers[:, 1] * 0.9 + 0.05
    starts = torch.zeros(2, 50, dtype=torch.bool)
    starts[0, [0, 17, 18]] = starts[1, 30] = starts_known
    each = values.unsqueeze(1) * ~starts[:, :, None, None]
    found = scan(inputs, each, initial, chunk_size=8)
    expected = scan(inputs, values, initial, chunk_size=8, starts=starts)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_several_sums_in_one_pass() -> None:
    leaves = [t.requires_grad_() for t in problem(time=20)]
    states = scan(*leaves, chunk_size=4)
    weights = torch.randn(3, *states.shape, dtype=states.dtype)
    together = torch.autograd.grad(
        states, leaves, weights, is_grads_batched=True, retain_graph=True
    )
    for i, weight in enumerate(weights):
        alone = torch.autograd.grad(states, leaves, weight, retain_graph=True)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[i], b)


@pytest.mark.slow
def test_kernels_equal_the_chunked_scan(interpreted: Callable[[str], str]) -> None:
    assert interpreted(KERNELS) == "equal"
