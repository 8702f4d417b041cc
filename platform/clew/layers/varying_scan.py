"""Diagonal complex linear recurrence with a separate multiplier for each step, as one operator.

    c_t = lambda_t c_{t-1} + b_t        elementwise over eigenstates, c_{-1} given

The backward pass is the same scan backwards in time. G is the gradient of c:

    d_t = G_t + conj(lambda_{t+1}) d_{t+1},    db = d,    dc_{-1} = conj(lambda_0) d_0
    dlambda_t = d_t conj(c_{t-1})

A step that ignores the previous state has the multiplier 0. The CPU uses the chunked scan of
`scan`, and a GPU uses the kernels of `triton_scan`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clew.layers.scan import (
    DEFAULT_CHUNK_SIZE,
    RealSeries,
    RealState,
    Varying,
    as_complex,
    conjugated,
    in_turn,
    scan_into,
    times,
)


def varying_scan(
    inputs: RealSeries,
    multipliers: RealSeries,
    initial: RealState | None = None,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> RealSeries:
    """Return all states of `c_t = multiplier_t c_{t-1} + input_t`, `(batch, time, state, 2)`.

    Complex numbers are pairs of real and imaginary part. The result depends on `chunk_size` only by
    rounding. The state after the last step is `states[:, -1]`.

    Args:
        inputs: Input of each eigenstate.
        multipliers: Multiplier of each eigenstate in each step, in the closed unit disc.
        initial: State before the first step; zero if not given.
        chunk_size: Steps per chunk, 1 or more.
    """
    if initial is None:
        initial = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
    states: Tensor = varying_diagonal_scan(inputs, multipliers, initial, chunk_size)
    return states


@torch.library.custom_op("clew::varying_diagonal_scan", mutates_args=())
def varying_diagonal_scan(
    inputs: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> Tensor:
    """Return the states of the scan forwards in time."""
    states = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    scan_into(
        torch.view_as_complex(states),
        as_complex(inputs),
        Varying(as_complex(multipliers)),
        as_complex(initial),
        chunk_size=chunk_size,
    )
    return states


@torch.library.custom_op("clew::varying_diagonal_scan_backward", mutates_args=())
def varying_diagonal_scan_backward(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    adjoint, conjugate = torch.empty_like(states), conjugated(multipliers)
    scan_into(
        torch.view_as_complex(adjoint),
        as_complex(gradient),
        Varying(torch.view_as_complex(_against_time(conjugate))),
        torch.view_as_complex(torch.zeros_like(initial)),
        chunk_size=chunk_size,
        reverse=True,
    )
    d_multipliers, d_inputs = torch.empty_like(states), torch.view_as_complex(adjoint)
    written, earlier = torch.view_as_complex(d_multipliers), as_complex(states)[:, :-1].conj()
    torch.mul(d_inputs[:, 1:], earlier, out=written[:, 1:])
    torch.mul(d_inputs[:, 0], as_complex(initial).conj(), out=written[:, 0])
    d_initial = torch.view_as_complex(conjugate)[:, 0] * d_inputs[:, 0]
    return adjoint, d_multipliers, torch.view_as_real(d_initial)


def _against_time(multipliers: Tensor) -> Tensor:
    return torch.cat([multipliers[:, 1:], torch.zeros_like(multipliers[:, :1])], dim=1)


@varying_diagonal_scan.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(inputs: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    from clew.layers import triton_scan

    return triton_scan.forward(inputs, multipliers, initial, None, chunk_size)


@varying_diagonal_scan_backward.register_kernel("cuda")  # type: ignore[untyped-decorator,unused-ignore]
def _(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    from clew.layers import triton_scan

    conjugate = conjugated(multipliers)
    adjoint, d_multipliers = triton_scan.backward(
        gradient, states, _against_time(conjugate), initial, None, chunk_size
    )
    first = torch.view_as_complex(conjugate)[:, 0] * torch.view_as_complex(adjoint)[:, 0]
    return adjoint, d_multipliers, torch.view_as_real(first)


@varying_diagonal_scan.register_fake
def _(inputs: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    return torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)


@varying_diagonal_scan_backward.register_fake
def _(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(states), torch.empty_like(states), torch.empty_like(initial)


def _keep_states(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, multipliers, initial, ctx.chunk_size = inputs
    ctx.save_for_backward(output, multipliers, initial)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    # If gradients are enabled (create_graph), the gradient itself will be differentiated.
    rule: Callable[..., tuple[Tensor, Tensor, Tensor]] = varying_diagonal_scan_backward
    if torch.is_grad_enabled():
        rule = _differentiable_backward
    return (*rule(gradient, *ctx.saved_tensors, ctx.chunk_size), None)


def _differentiable_backward(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    conjugate = conjugated(multipliers)
    against = _against_time(conjugate).flip(1)
    start = torch.zeros_like(initial)
    adjoint = varying_diagonal_scan(gradient.flip(1), against, start, chunk_size).flip(1)
    earlier = torch.cat([initial[:, None], states[:, :-1]], dim=1)
    return adjoint, times(adjoint, conjugated(earlier)), times(conjugate[:, 0], adjoint[:, 0])


varying_diagonal_scan.register_autograd(_backward, setup_context=_keep_states)
varying_diagonal_scan_backward.register_vmap(in_turn(varying_diagonal_scan_backward))
