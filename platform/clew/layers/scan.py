"""Diagonal complex linear recurrence as one operator with a forward and a backward pass.

    c_t = lambda c_{t-1} + b_t        elementwise over eigenstates, c_{-1} given

The backward pass is the same scan, backwards in time and with the conjugate eigenvalue. G is the
gradient of c:

    d_t = G_t + conj(lambda) d_{t+1},    db = d,    dc_{-1} = conj(lambda) d_0
    dlambda = sum_t d_t conj(c_{t-1})

If a sequence starts within the series, lambda is 0 in its first step. The CPU uses the chunked
scan of `chunked_scan`, and a GPU uses the kernels of `triton_scan`.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clew.layers.chunked_scan import Fixed, eigenvalue_gradient, power, scan_into

RealSeries = Float[Tensor, "batch time state 2"]
RealState = Float[Tensor, "batch state 2"]
RealEigenvalues = Float[Tensor, "#batch state 2"]
Starts = Bool[Tensor, "batch time"]

DEFAULT_CHUNK_SIZE = 32


def scan(
    inputs: RealSeries,
    eigenvalues: RealEigenvalues,
    initial: RealState | None = None,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    starts: Starts | None = None,
) -> RealSeries:
    """Return all states of `c_t = eigenvalue c_{t-1} + input_t`, `(batch, time, state, 2)`.

    Complex numbers are pairs of real and imaginary part in float32 (float64 in tests). The result
    depends on `chunk_size` only by rounding. To continue a series, pass the state after its last
    step, `states[:, -1]`, as `initial`.

    Args:
        inputs: Input of each eigenstate.
        eigenvalues: Multipliers in the closed unit disc, shared by all examples or one per example.
        initial: State before the first step; zero if not given.
        chunk_size: Steps per chunk, 1 or more.
        starts: Steps that start a new sequence, so that the previous state is ignored.
    """
    if initial is None:
        initial = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
    keep = None if starts is None else (~starts).to(inputs.dtype)
    states: Tensor = diagonal_scan(inputs, eigenvalues, initial, chunk_size, keep)
    return states


def scan_by_loop(
    inputs: RealSeries,
    eigenvalues: RealEigenvalues,
    initial: RealState | None = None,
    *,
    starts: Starts | None = None,
) -> RealSeries:
    """Return the result of `scan` from a loop over time with plain autograd, for tests."""
    multiplier = torch.view_as_complex(eigenvalues)
    state = torch.zeros_like(torch.view_as_complex(inputs[:, 0]))
    if initial is not None:
        state = torch.view_as_complex(initial)
    states = []
    for time, step in enumerate(torch.view_as_complex(inputs).unbind(1)):
        if starts is not None:
            state = torch.where(starts[:, time, None], 0.0, state)
        state = multiplier * state + step
        states.append(state)
    return torch.view_as_real(torch.stack(states, dim=1))


# Custom operators are opaque for autograd, torch.compile and vmap. Autocast has no effect inside
# them.


@torch.library.custom_op("clew::diagonal_scan", mutates_args=())
def diagonal_scan(
    inputs: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> Tensor:
    """Return the states of the scan forwards in time."""
    states = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    scan_into(
        torch.view_as_complex(states),
        as_complex(inputs),
        Fixed(as_complex(eigenvalues), keep),
        as_complex(initial),
        chunk_size=chunk_size,
    )
    return states


@torch.library.custom_op("clew::diagonal_scan_backward", mutates_args=())
def diagonal_scan_backward(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    adjoint = torch.empty_like(states)
    d_inputs, start = torch.view_as_complex(adjoint), as_complex(initial)
    conjugate = as_complex(eigenvalues).conj().resolve_conj()
    scan_into(
        d_inputs,
        as_complex(gradient),
        Fixed(conjugate, against_time(keep)),
        torch.zeros_like(start),
        chunk_size=chunk_size,
        reverse=True,
    )
    d_eigenvalues = eigenvalue_gradient(d_inputs, as_complex(states), start, keep)
    if len(eigenvalues) < len(states):
        d_eigenvalues = d_eigenvalues.sum(0, keepdim=True)
    return adjoint, torch.view_as_real(d_eigenvalues), _initial_gradient(conjugate, adjoint, keep)


def against_time(keep: Tensor | None) -> Tensor | None:
    """Return `keep` for the scan backwards in time: each step gets the value of the step after."""
    return None if keep is None else torch.nn.functional.pad(keep[:, 1:], (0, 1), value=1.0)


def _initial_gradient(conjugate: Tensor, adjoint: Tensor, keep: Tensor | None) -> Tensor:
    d_initial = conjugate * torch.view_as_complex(adjoint)[:, 0]
    return torch.view_as_real(d_initial if keep is None else d_initial * keep[:, :1])


def as_complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


@diagonal_scan.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(
    inputs: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> Tensor:
    from clew.layers import triton_scan

    powers = torch.view_as_real(power(as_complex(eigenvalues), chunk_size))
    return triton_scan.forward(inputs, eigenvalues, initial, powers, chunk_size, keep)


@diagonal_scan_backward.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    from clew.layers import triton_scan

    conjugate = as_complex(eigenvalues).conj().resolve_conj()
    pairs, powers = torch.view_as_real(conjugate), torch.view_as_real(power(conjugate, chunk_size))
    reached = initial if keep is None else initial * keep[:, :1, None]
    adjoint, d_eigenvalues = triton_scan.backward(
        gradient, states, pairs, reached, powers, chunk_size, against_time(keep)
    )
    if len(eigenvalues) < len(states):
        d_eigenvalues = d_eigenvalues.sum(0, keepdim=True)
    return adjoint, d_eigenvalues, _initial_gradient(conjugate, adjoint, keep)


@diagonal_scan.register_fake
def _(
    inputs: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> Tensor:
    return torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)


@diagonal_scan_backward.register_fake
def _(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(states),
        eigenvalues.new_empty(eigenvalues.shape),
        initial.new_empty(initial.shape),
    )


def _keep_states(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save only the states, which the next layer saves anyway, and small tensors."""
    _, eigenvalues, initial, ctx.chunk_size, keep = inputs
    ctx.save_for_backward(output, eigenvalues, initial, keep)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    *tensors, keep = ctx.saved_tensors
    # If gradients are enabled (create_graph), the gradient itself will be differentiated.
    rule: Callable[..., tuple[Tensor, Tensor, Tensor]] = diagonal_scan_backward
    if torch.is_grad_enabled():
        rule = _differentiable_backward
    d_inputs, d_eigenvalues, d_initial = rule(gradient, *tensors, ctx.chunk_size, keep)
    return d_inputs, d_eigenvalues, d_initial, None, None


def _differentiable_backward(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    conjugate, start = conjugated(eigenvalues), torch.zeros_like(initial)
    reached = None if keep is None else against_time(keep)
    flipped = None if reached is None else reached.flip(1)
    adjoint = diagonal_scan(gradient.flip(1), conjugate, start, chunk_size, flipped).flip(1)
    earlier = torch.cat([initial[:, None], states[:, :-1]], dim=1)
    if keep is not None:
        earlier = earlier * keep[:, :, None, None]
    d_eigenvalues = times(adjoint, conjugated(earlier)).sum(1)
    if len(eigenvalues) < len(states):
        d_eigenvalues = d_eigenvalues.sum(0, keepdim=True)
    d_initial = times(conjugate, adjoint[:, 0])
    return adjoint, d_eigenvalues, d_initial if keep is None else d_initial * keep[:, :1, None]


def conjugated(pairs: Tensor) -> Tensor:
    return pairs * pairs.new_tensor([1.0, -1.0])


def times(a: Tensor, b: Tensor) -> Tensor:
    return torch.view_as_real(as_complex(a) * as_complex(b))


diagonal_scan.register_autograd(_backward, setup_context=_keep_states)


def in_turn(operator: Any) -> Callable[..., Any]:
    """Return a vmap rule that calls an operator with three results once per batch element.

    The gradients of several sums of one forward pass are computed with vmap and need this rule.
    """

    def rule(
        info: Any, in_dims: tuple[int | None, ...], *tensors: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        passes = [
            operator(
                *(
                    value if dim is None else value.select(dim, i)
                    for value, dim in zip(tensors, in_dims, strict=True)
                )
            )
            for i in range(info.batch_size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*passes, strict=True)), (0, 0, 0)

    return rule


diagonal_scan_backward.register_vmap(in_turn(diagonal_scan_backward))
