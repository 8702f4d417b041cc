"""Diagonal complex linear recurrence as one operator, forward and backward.

    c_t = lambda c_{t-1} + b_t        elementwise over eigenstates, c_{-1} given

Backward is the same scan, against time and with the conjugate eigenvalue (G the gradient of c):

    d_t = G_t + conj(lambda) d_{t+1},    db = d,    dc_{-1} = conj(lambda) d_0
    dlambda = sum_t d_t conj(c_{t-1})

On a CPU the chunked scan of `chunked_scan` does it, on a GPU the kernels of `triton_scan`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clew.layers.chunked_scan import eigenvalue_gradient, power, scan_into

RealSeries = Float[Tensor, "batch time state 2"]
RealState = Float[Tensor, "batch state 2"]
RealEigenvalues = Float[Tensor, "#batch state 2"]

DEFAULT_CHUNK_SIZE = 32


def scan(
    inputs: RealSeries,
    eigenvalues: RealEigenvalues,
    initial: RealState | None = None,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> RealSeries:
    """Return all states of `c_t = eigenvalue c_{t-1} + input_t`, `(batch, time, state, 2)`.

    Complex numbers are pairs of real and imaginary part, float32 (float64 in tests). The result
    does not depend on `chunk_size`, save for rounding. The state after the last step, to go on
    from, is `states[:, -1]`.

    Args:
        inputs: Drive of each eigenstate.
        eigenvalues: Multipliers within the closed unit disc, for all examples or for each.
        initial: State before the first step; zero unless given.
        chunk_size: Steps in a chunk, 1 or more.
    """
    if initial is None:
        initial = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
    states: Tensor = diagonal_scan(inputs, eigenvalues, initial, chunk_size)
    return states


def scan_by_loop(
    inputs: RealSeries, eigenvalues: RealEigenvalues, initial: RealState | None = None
) -> RealSeries:
    """Return what `scan` returns by one step after the other, left to autograd: the slow truth."""
    multiplier = torch.view_as_complex(eigenvalues)
    state = torch.zeros_like(torch.view_as_complex(inputs[:, 0]))
    if initial is not None:
        state = torch.view_as_complex(initial)
    states = []
    for step in torch.view_as_complex(inputs).unbind(1):
        state = multiplier * state + step
        states.append(state)
    return torch.view_as_real(torch.stack(states, dim=1))


# Custom operators: to autograd, torch.compile and vmap each is one opaque step. Autocast does not
# reach inside them.


@torch.library.custom_op("clew::diagonal_scan", mutates_args=())
def diagonal_scan(inputs: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    """Scan forwards."""
    states = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    scan_into(
        torch.view_as_complex(states),
        _complex(inputs),
        _complex(eigenvalues),
        _complex(initial),
        chunk_size=chunk_size,
    )
    return states


@torch.library.custom_op("clew::diagonal_scan_backward", mutates_args=())
def diagonal_scan_backward(
    gradient: Tensor, states: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of inputs, eigenvalues and initial state."""
    adjoint = torch.empty_like(states)
    d_inputs, start = torch.view_as_complex(adjoint), _complex(initial)
    conjugate = _complex(eigenvalues).conj().resolve_conj()
    scan_into(
        d_inputs,
        _complex(gradient),
        conjugate,
        torch.zeros_like(start),
        chunk_size=chunk_size,
        reverse=True,
    )
    d_eigenvalues = eigenvalue_gradient(d_inputs, _complex(states), start)
    if len(eigenvalues) < len(states):
        d_eigenvalues = d_eigenvalues.sum(0, keepdim=True)
    d_initial = conjugate * d_inputs[:, 0]
    return adjoint, torch.view_as_real(d_eigenvalues), torch.view_as_real(d_initial)


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


@diagonal_scan.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(inputs: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    from clew.layers import triton_scan

    powers = torch.view_as_real(power(_complex(eigenvalues), chunk_size))
    return triton_scan.forward(inputs, eigenvalues, initial, powers, chunk_size)


@diagonal_scan_backward.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(
    gradient: Tensor, states: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    from clew.layers import triton_scan

    conjugate = _complex(eigenvalues).conj().resolve_conj()
    pairs, powers = torch.view_as_real(conjugate), torch.view_as_real(power(conjugate, chunk_size))
    adjoint, d_eigenvalues = triton_scan.backward(
        gradient, states, pairs, initial, powers, chunk_size
    )
    if len(eigenvalues) < len(states):
        d_eigenvalues = d_eigenvalues.sum(0, keepdim=True)
    d_initial = conjugate * torch.view_as_complex(adjoint)[:, 0]
    return adjoint, d_eigenvalues, torch.view_as_real(d_initial)


@diagonal_scan.register_fake
def _(inputs: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    return torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)


@diagonal_scan_backward.register_fake
def _(
    gradient: Tensor, states: Tensor, eigenvalues: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(states),
        eigenvalues.new_empty(eigenvalues.shape),
        initial.new_empty(initial.shape),
    )


def _keep_states(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep the states, which the layer above keeps anyway, and nothing else of their size."""
    _, eigenvalues, initial, ctx.chunk_size = inputs
    ctx.save_for_backward(output, eigenvalues, initial)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    d_inputs, d_eigenvalues, d_initial = diagonal_scan_backward(
        gradient, *ctx.saved_tensors, ctx.chunk_size
    )
    return d_inputs, d_eigenvalues, d_initial, None


diagonal_scan.register_autograd(_backward, setup_context=_keep_states)


@diagonal_scan_backward.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], *tensors: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Take one backward pass after the other: gradients of several sums of one forward pass."""
    passes = [
        diagonal_scan_backward(
            *(
                value if dim is None else value.select(dim, i)
                for value, dim in zip(tensors, in_dims, strict=True)
            )
        )
        for i in range(info.batch_size)
    ]
    return tuple(torch.stack(parts) for parts in zip(*passes, strict=True)), (0, 0, 0)
