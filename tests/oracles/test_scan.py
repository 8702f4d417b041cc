"""The chunked scan against one step after the other, in double precision, and its invariances."""

import itertools

import pytest
import torch
from torch import Tensor

from clew.layers import scan as pairs


def complex_form(function):
    """Turn a function of real pairs into one of complex numbers and shared eigenvalues."""

    def called(inputs: Tensor, eigenvalues: Tensor, initial: Tensor | None = None, **keywords):
        values = (inputs, eigenvalues.expand(1, -1), initial)
        real = (None if v is None else torch.view_as_real(v) for v in values)
        return torch.view_as_complex(function(*real, **keywords))

    return called


scan, scan_by_loop = complex_form(pairs.scan), complex_form(pairs.scan_by_loop)
LENGTHS = [1, 2, 7, 48, 61, 100]


def problem(time: int = 61, batch: int = 2, states: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, eigenvalues from 0 to just inside the unit circle, and an initial state."""
    generator = torch.Generator().manual_seed(time)
    kind = torch.complex128
    inputs = torch.randn(batch, time, states, dtype=kind, generator=generator)
    modulus = torch.tensor([0.0, 0.3, 0.9, 0.999, 1 - 1 / 32768], dtype=torch.float64)[:states]
    phase = torch.rand(states, dtype=torch.float64, generator=generator) * 3
    initial = torch.randn(batch, states, dtype=kind, generator=generator)
    return inputs, torch.polar(modulus, phase), initial


def with_gradients(function, *tensors: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in tensors]
    states = function(*leaves)
    weights = torch.randn(states.shape, dtype=states.dtype, generator=torch.Generator())
    gradients = torch.autograd.grad((states * weights).real.sum(), leaves)
    return [states.detach(), *gradients]


@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("chunk_size", [1, 2, 7, 16, 64, 100])
def test_value_and_gradients_equal_the_loop_for_every_chunk_size(time: int, chunk_size: int):
    tensors = problem(time)
    fast = with_gradients(lambda *a: scan(*a, chunk_size=chunk_size), *tensors)
    slow = with_gradients(scan_by_loop, *tensors)
    for name, a, b in zip(("states", "inputs", "eigenvalues", "initial"), fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk_size", [1, 3, 4])
def test_gradcheck(chunk_size: int):
    inputs, eigenvalues, initial = (t.requires_grad_() for t in problem(time=11, states=4))

    def function(*leaves: Tensor) -> Tensor:
        return scan(*leaves, chunk_size=chunk_size)

    assert torch.autograd.gradcheck(function, (inputs, eigenvalues, initial))


def test_gradients_of_decay_and_frequency_follow_the_closed_form():
    """dalpha = Re(conj(dlambda) lambda), domega = Re(conj(dlambda) i lambda)."""
    inputs, _, initial = problem(time=40, states=3)
    alpha = torch.tensor([-0.5, -0.01, -1e-4], dtype=torch.float64, requires_grad=True)
    omega = torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    eigenvalues = torch.exp(torch.complex(alpha, omega))
    eigenvalues.retain_grad()
    scan(inputs, eigenvalues, initial, chunk_size=8).abs().square().sum().backward()
    assert eigenvalues.grad is not None
    conjugate, value = eigenvalues.grad.conj(), eigenvalues.detach()
    torch.testing.assert_close(alpha.grad, (conjugate * value).real)
    torch.testing.assert_close(omega.grad, (conjugate * 1j * value).real)


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 64, 200])
def test_outputs_before_a_changed_input_are_bit_equal(chunk_size: int):
    inputs, eigenvalues, initial = (t.to(torch.complex64) for t in problem(time=200))
    before = scan(inputs, eigenvalues, initial, chunk_size=chunk_size)
    for changed in (0, 1, 15, 16, 63, 64, 130, 199):
        other = inputs.clone()
        other[:, changed] += 1.0
        after = scan(other, eigenvalues, initial, chunk_size=chunk_size)
        assert torch.equal(before[:, :changed], after[:, :changed])
        assert not torch.equal(before[:, changed:], after[:, changed:])


@pytest.mark.parametrize("split", [1, 5, 16, 31, 32, 60])
def test_a_sequence_may_be_split_anywhere(split: int):
    inputs, eigenvalues, initial = problem(time=61)
    whole = scan(inputs, eigenvalues, initial, chunk_size=16)
    left = scan(inputs[:, :split], eigenvalues, initial, chunk_size=16)
    right = scan(inputs[:, split:], eigenvalues, left[:, -1], chunk_size=16)
    torch.testing.assert_close(torch.cat([left, right], dim=1), whole, rtol=1e-12, atol=1e-12)


def test_gradient_crosses_a_split_through_the_carried_state():
    inputs, eigenvalues, initial = problem(time=60)
    inputs.requires_grad_()
    left = scan(inputs[:, :25], eigenvalues, initial, chunk_size=8)
    right = scan(inputs[:, 25:], eigenvalues, left[:, -1], chunk_size=8)
    (split,) = torch.autograd.grad(right[:, -1].abs().square().sum(), inputs)
    states = scan(inputs, eigenvalues, initial, chunk_size=8)
    (whole,) = torch.autograd.grad(states[:, -1].abs().square().sum(), inputs)
    torch.testing.assert_close(split, whole)
    assert split[:, 0].abs().max() > 0


@pytest.mark.parametrize("modulus", [0.0, 0.5, 0.9999, 1 - 1 / 32768])
def test_float32_stays_finite_and_accurate_over_32768_steps(modulus: float):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(1, 32768, 2, dtype=torch.complex128, generator=generator)
    inputs *= (1 - modulus**2) ** 0.5
    eigenvalues = torch.polar(
        torch.full((2,), modulus, dtype=torch.float64), torch.tensor([0.01, 2.0]).double()
    ).to(torch.complex64)
    single = scan(inputs.to(torch.complex64), eigenvalues)
    double = scan(inputs, eigenvalues.to(torch.complex128), chunk_size=64)
    assert single.isfinite().all()
    assert (single - double).abs().max() < 3e-4 * max(1.0, float(double.abs().max()))


def test_the_gradient_of_the_last_state_reaches_the_first_of_30000_inputs():
    eigenvalues = torch.polar(torch.tensor([1 - 1 / 32768, 0.55]), torch.tensor([0.3, 0.3]))
    inputs = torch.zeros(1, 30_000, 2, dtype=torch.complex64, requires_grad=True)
    scan(inputs, eigenvalues)[:, -1].real.sum().backward()
    assert inputs.grad is not None
    slow, fast = inputs.grad[0, 0].abs().tolist()
    assert slow == pytest.approx((1 - 1 / 32768) ** 29_999, rel=1e-3)
    assert fast == 0.0  # a memory of two steps, as in layers with |lambda| near 0.5


def test_autocast_does_not_reach_the_scan():
    inputs, eigenvalues, initial = (t.to(torch.complex64) for t in problem(time=64))
    plain = scan(inputs, eigenvalues, initial)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scan(inputs, eigenvalues, initial), plain)


def test_inputs_and_gradients_are_left_as_they_were():
    inputs, eigenvalues, initial = problem(time=50)
    kept = inputs.clone()
    states = scan(inputs.requires_grad_(), eigenvalues, initial, chunk_size=8)
    gradient = torch.ones_like(states)
    states.backward(gradient)
    assert torch.equal(inputs, kept)
    assert torch.equal(gradient, torch.ones_like(states))


def test_each_example_may_have_its_own_eigenvalues():
    inputs, eigenvalues, initial = problem(time=40, batch=3)
    each = torch.stack([eigenvalues * factor for factor in (1.0, 0.5, 1j)])
    together = with_gradients(
        lambda *a: torch.view_as_complex(pairs.scan(*map(torch.view_as_real, a), chunk_size=8)),
        inputs,
        each,
        initial,
    )
    alone = torch.cat(
        [scan(inputs[i : i + 1], each[i], initial[i : i + 1], chunk_size=8) for i in range(3)]
    )
    torch.testing.assert_close(together[0], alone)
    shared = with_gradients(scan, inputs, eigenvalues, initial)[2]
    expanded = with_gradients(
        lambda *a: torch.view_as_complex(pairs.scan(*map(torch.view_as_real, a))),
        inputs,
        eigenvalues.expand(3, -1).clone(),
        initial,
    )[2]
    torch.testing.assert_close(expanded.sum(0), shared)


def test_several_gradients_of_one_forward_pass_at_once():
    inputs, eigenvalues, initial = (t.requires_grad_() for t in problem(time=20))
    losses = scan(inputs, eigenvalues, initial).abs().square().sum((1, 2))
    leaves = (inputs, eigenvalues, initial)
    rows = torch.eye(2, dtype=torch.float64)
    batched = torch.autograd.grad(losses, leaves, rows, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        single = torch.autograd.grad(losses[i], leaves, retain_graph=True)
        for a, b in zip(batched, single, strict=True):
            torch.testing.assert_close(a[i], b)


def documents(time: int, batch: int = 2) -> Tensor:
    """Return document starts within each row, some in the same chunk, some at chunk borders."""
    generator = torch.Generator().manual_seed(time)
    starts = torch.rand(batch, time, generator=generator) < 0.15
    starts[0, 0], starts[-1, 0] = True, False
    starts[:, [t for t in (7, 15, 16, 64) if t < time]] = True
    return starts


@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("chunk_size", [1, 2, 7, 16, 64])
def test_starts_equal_the_loop_for_every_chunk_size(time: int, chunk_size: int):
    tensors, starts = problem(time), documents(time)
    fast = with_gradients(lambda *a: scan(*a, chunk_size=chunk_size, starts=starts), *tensors)
    slow = with_gradients(lambda *a: scan_by_loop(*a, starts=starts), *tensors)
    for name, a, b in zip(("states", "inputs", "eigenvalues", "initial"), fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk_size", [1, 7, 16])
def test_starts_are_the_documents_one_by_one(chunk_size: int):
    inputs, eigenvalues, initial = problem(time=61, batch=1)
    starts = documents(61, batch=1)
    starts[:, 0] = True
    found = scan(inputs, eigenvalues, initial, chunk_size=chunk_size, starts=starts)
    cuts = [0, *starts[0].nonzero()[:, 0].tolist(), 61]
    alone = [
        scan(inputs[:, a:b], eigenvalues, None, chunk_size=chunk_size)
        for a, b in itertools.pairwise(cuts)
        if b > a
    ]
    torch.testing.assert_close(found, torch.cat(alone, dim=1), rtol=1e-12, atol=1e-12)


def test_several_gradients_with_starts_at_once():
    inputs, eigenvalues, initial = (t.requires_grad_() for t in problem(time=20))
    states = scan(inputs, eigenvalues, initial, chunk_size=4, starts=documents(20))
    losses, leaves = states.abs().square().sum((1, 2)), (inputs, eigenvalues, initial)
    rows = torch.eye(2, dtype=torch.float64)
    batched = torch.autograd.grad(losses, leaves, rows, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        single = torch.autograd.grad(losses[i], leaves, retain_graph=True)
        for a, b in zip(batched, single, strict=True):
            torch.testing.assert_close(a[i], b)


def test_the_operator_is_one_that_torch_can_compile():
    inputs, eigenvalues, initial = (torch.view_as_real(t) for t in problem(time=11))
    keep = (~documents(11)).double()
    tensors = (inputs, eigenvalues.unsqueeze(0), initial)
    leaves = tuple(t.clone().requires_grad_() for t in tensors)
    for last in (None, keep):
        torch.library.opcheck(pairs.diagonal_scan, (*leaves, 4, last))
