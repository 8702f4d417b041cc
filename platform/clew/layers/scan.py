"""Diagonal complex linear recurrence as one operator with a forward and a backward pass.

    c_t = lambda_t c_{t-1} + b_t        elementwise over eigenstates, c_{-1} given

Lambda is either the same in every step or different in each step. The backward pass is the same
scan, backwards in time and with the conjugate multiplier. G is the gradient of c:

    d_t = G_t + conj(lambda_{t+1}) d_{t+1},    db = d,    dc_{-1} = conj(lambda_0) d_0
    dlambda_t = d_t conj(c_{t-1}),    summed over t if lambda is the same in every step

If a sequence starts within the series, lambda is 0 in its first step. The CPU uses the chunked
scan below, and a GPU uses the kernels of `triton_scan`.

The chunked scan uses vectorised torch operations on complex tensors. Time is divided into chunks of
C steps. Three passes give all states:

    e_n    = sum_j lambda^(C-1-j) b_n[j]         end state of each chunk that starts from zero
    S_n+1  = lambda^C S_n + e_n                  carries: the same recurrence, C times shorter
    c_n[j] = lambda c_n[j-1] + b_n[j]            states of each chunk, starting from its carry

The first and the last pass take C vectorised steps over all chunks at once, and the carries are
scanned by the same algorithm, so T steps take about 2 C log(T) / log(C) operations. Lambda is only
multiplied by itself: nothing overflows if |lambda| <= 1, and lambda = 0 needs no logarithm. If
lambda differs in each step, the product of the lambdas of a chunk replaces lambda^C.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor
from torch.nn import functional as F

RealSeries = Float[Tensor, "batch time state 2"]
RealState = Float[Tensor, "batch state 2"]
RealEigenvalues = Float[Tensor, "#batch state 2"]
RealMultipliers = Float[Tensor, "#batch *steps state 2"]
"""One multiplier for all steps, without the axis of steps, or one for each step."""
Starts = Bool[Tensor, "batch time"]

DEFAULT_CHUNK_SIZE = 32


def scan(
    inputs: RealSeries,
    multipliers: RealMultipliers,
    initial: RealState | None = None,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    starts: Starts | None = None,
) -> RealSeries:
    """Return all states of `c_t = multiplier c_{t-1} + input_t`, `(batch, time, state, 2)`.

    Complex numbers are pairs of real and imaginary part in float32 (float64 in tests). The result
    depends on `chunk_size` only by rounding. To continue a series, pass the state after its last
    step, `states[:, -1]`, as `initial`.

    Args:
        inputs: Input of each eigenstate.
        multipliers: Multipliers in the closed unit disc: eigenvalues for all steps, shared by all
            examples or one per example, or a multiplier for each step.
        initial: State before the first step; zero if not given.
        chunk_size: Steps per chunk, 1 or more.
        starts: Steps that start a new sequence, so that the previous state is ignored.
    """
    if initial is None:
        initial = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
    keep = None if starts is None else (~starts).to(inputs.dtype)
    if _varies(multipliers):
        multipliers = multipliers.expand_as(inputs)  # the kernels read one for each example
        if keep is not None:
            multipliers, keep = multipliers * keep[:, :, None, None], None
    states: Tensor = diagonal_scan(inputs, multipliers, initial, chunk_size, keep)
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


def _varies(multipliers: Tensor) -> bool:
    """Return whether there is a multiplier for each step."""
    return multipliers.dim() == 4


# Custom operators are opaque for autograd, torch.compile and vmap. Autocast has no effect inside
# them. `keep` is 0 at steps that ignore the previous state; only for multipliers of all steps.


@torch.library.custom_op("clew::diagonal_scan", mutates_args=())
def diagonal_scan(
    inputs: Tensor,
    multipliers: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> Tensor:
    """Return the states of the scan forwards in time."""
    if inputs.is_cuda:
        from clew.layers import triton_scan

        powers = _chunk_powers(multipliers, chunk_size)
        return triton_scan.forward(inputs, multipliers, initial, powers, chunk_size, keep)
    states = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    written, each = torch.view_as_complex(states), Multipliers.of(multipliers, keep)
    scan_into(written, as_complex(inputs), each, as_complex(initial), chunk_size=chunk_size)
    return states


@torch.library.custom_op("clew::diagonal_scan_backward", mutates_args=())
def diagonal_scan_backward(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    multipliers: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    conjugate = conjugated(multipliers)
    after, keep_after = against_time(conjugate, keep)
    if gradient.is_cuda:
        from clew.layers import triton_scan

        powers = _chunk_powers(conjugate, chunk_size)
        reached = initial if keep is None else initial * keep[:, :1, None]
        adjoint, d_multipliers = triton_scan.backward(
            gradient, states, after, reached, powers, chunk_size, keep_after
        )
    else:
        adjoint, start = torch.empty_like(states), as_complex(initial)
        d_inputs = torch.view_as_complex(adjoint)
        each, zero = Multipliers.of(after, keep_after), torch.zeros_like(start)
        scan_into(d_inputs, as_complex(gradient), each, zero, chunk_size=chunk_size, reverse=True)
        if _varies(multipliers):
            products, earlier = torch.empty_like(d_inputs), as_complex(states)[:, :-1].conj()
            torch.mul(d_inputs[:, 1:], earlier, out=products[:, 1:])
            torch.mul(d_inputs[:, 0], start.conj(), out=products[:, 0])
        else:
            products = eigenvalue_gradient(d_inputs, as_complex(states), start, keep)
        d_multipliers = torch.view_as_real(products)
    d_multipliers = d_multipliers.sum_to_size(multipliers.shape)
    return adjoint, d_multipliers, _initial_gradient(conjugate, adjoint, keep)


def against_time(multipliers: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return both for the scan backwards in time: each step gets the value of the step after."""
    if _varies(multipliers):
        after = torch.cat([multipliers[:, 1:], torch.zeros_like(multipliers[:, :1])], dim=1)
        return after, None
    return multipliers, None if keep is None else F.pad(keep[:, 1:], (0, 1), value=1.0)


def _initial_gradient(conjugate: Tensor, adjoint: Tensor, keep: Tensor | None) -> Tensor:
    first = conjugate[:, 0] if _varies(conjugate) else conjugate
    d_initial = times(first, adjoint[:, 0])
    return d_initial if keep is None else d_initial * keep[:, :1, None]


def as_complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


def conjugated(pairs: Tensor) -> Tensor:
    return pairs * pairs.new_tensor([1.0, -1.0])


def times(a: Tensor, b: Tensor) -> Tensor:
    return torch.view_as_real(as_complex(a) * as_complex(b))


def _chunk_powers(multipliers: Tensor, chunk_size: int) -> Tensor | None:
    """Return eigenvalues ** chunk_size; None for a multiplier for each step."""
    if _varies(multipliers):
        return None
    return torch.view_as_real(power(as_complex(multipliers), chunk_size))


@diagonal_scan.register_fake
def _(inputs: Tensor, *_others: object) -> Tensor:
    return torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)


@diagonal_scan_backward.register_fake
def _(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, *_others: object
) -> tuple[Tensor, Tensor, Tensor]:
    like = (multipliers.new_empty(multipliers.shape), initial.new_empty(initial.shape))
    return torch.empty_like(states), *like


def _keep_states(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save only the states, which the next layer saves anyway, and small tensors."""
    _, multipliers, initial, ctx.chunk_size, keep = inputs
    ctx.save_for_backward(output, multipliers, initial, keep)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    *tensors, keep = ctx.saved_tensors
    # If gradients are enabled (create_graph), the gradient itself will be differentiated.
    rule: Callable[..., tuple[Tensor, Tensor, Tensor]] = diagonal_scan_backward
    if torch.is_grad_enabled():
        rule = _differentiable_backward
    return (*rule(gradient, *tensors, ctx.chunk_size, keep), None, None)


def _differentiable_backward(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    multipliers: Tensor,
    initial: Tensor,
    chunk_size: int,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    conjugate, start = conjugated(multipliers), torch.zeros_like(initial)
    after, reached = against_time(conjugate, keep)
    after = after.flip(1) if _varies(after) else after
    flipped = None if reached is None else reached.flip(1)
    adjoint = diagonal_scan(gradient.flip(1), after, start, chunk_size, flipped).flip(1)
    earlier = torch.cat([initial[:, None], states[:, :-1]], dim=1)
    if keep is not None:
        earlier = earlier * keep[:, :, None, None]
    products = times(adjoint, conjugated(earlier))
    d_multipliers = products if _varies(multipliers) else products.sum(1)
    d_multipliers = d_multipliers.sum_to_size(multipliers.shape)
    return adjoint, d_multipliers, _initial_gradient(conjugate, adjoint, keep)


diagonal_scan.register_autograd(_backward, setup_context=_keep_states)


def _in_turn(
    info: Any, in_dims: tuple[int | None, ...], *tensors: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Call the backward operator once per batch element of vmap.

    The gradients of several sums of one forward pass are computed with vmap and need this rule.
    """
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


diagonal_scan_backward.register_vmap(_in_turn)


Series = Complex[Tensor, "batch time state"]
State = Complex[Tensor, "batch state"]

_SLAB_ELEMENTS = 2**16


@dataclass(frozen=True)
class Multipliers:
    """The same eigenvalues in every step, or a multiplier for each state in each step.

    Eigenvalues are multiplied by `keep` if it is given. It is 0 in a step that starts a new
    sequence, and for a chunk that contains such a step.
    """

    values: Tensor
    varies: bool
    keep: Tensor | None = None

    @classmethod
    def of(cls, pairs: Tensor, keep: Tensor | None) -> "Multipliers":
        return cls(as_complex(pairs), _varies(pairs), keep)

    def at(self, step: int) -> Tensor:
        """Return the multiplier of the previous state (in the direction of the scan) at a step."""
        values, keep = self.values[..., step, :] if self.varies else self.values, self.keep
        return values if keep is None else values * keep[..., step, None]

    def part(self, time: slice) -> "Multipliers":
        values = self.values[:, time] if self.varies else self.values
        keep = None if self.keep is None else self.keep[:, time]
        return Multipliers(values, self.varies, keep)

    def in_chunks(self, num_chunks: int) -> "Multipliers":
        values, shape = self.values, (num_chunks, -1)
        values = torch.unflatten(values, 1, shape) if self.varies else values.unsqueeze(1)
        keep = None if self.keep is None else torch.unflatten(self.keep, 1, shape)
        return Multipliers(values, self.varies, keep)

    def of_chunks(self, chunk_size: int) -> "Multipliers":
        whole = self.values.prod(2) if self.varies else power(self.values.squeeze(1), chunk_size)
        return Multipliers(whole, self.varies, None if self.keep is None else self.keep.amin(2))


def scan_into(
    states: Series,
    inputs: Series,
    multipliers: Multipliers,
    initial: State,
    *,
    chunk_size: int,
    reverse: bool = False,
) -> None:
    """Write the states for `inputs` into `states`, scanning forwards or backwards in time."""
    time = inputs.shape[1]
    num_chunks = time // chunk_size if chunk_size > 1 else 0
    if num_chunks < 2:
        _steps(states, inputs, multipliers, initial, reverse=reverse)
        return
    # Whole chunks come first in the direction of the scan, and the remaining steps follow.
    whole = num_chunks * chunk_size
    head = slice(time - whole, None) if reverse else slice(None, whole)
    tail = slice(None, time - whole) if reverse else slice(whole, None)
    shape = (-1, num_chunks, chunk_size, inputs.shape[2])
    chunks, each = inputs[:, head].view(shape), multipliers.part(head).in_chunks(num_chunks)
    carries = _carries(chunks, each, initial, reverse=reverse)
    starts = carries[:, 1:] if reverse else carries[:, :-1]
    _steps(states[:, head].view(shape), chunks, each, starts, reverse=reverse)
    last = carries[:, 0] if reverse else carries[:, -1]
    _steps(states[:, tail], inputs[:, tail], multipliers.part(tail), last, reverse=reverse)


def _order(length: int, *, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _steps(
    states: Tensor, inputs: Tensor, multipliers: Multipliers, initial: Tensor, *, reverse: bool
) -> None:
    """Scan a series, or all chunks at once, `(..., time, state)`, each from its initial state."""
    previous = initial
    for step in _order(inputs.shape[-2], reverse=reverse):
        state = states[..., step, :]
        torch.addcmul(inputs[..., step, :], previous, multipliers.at(step), out=state)
        previous = state


def _carries(chunks: Tensor, multipliers: Multipliers, initial: Tensor, *, reverse: bool) -> Tensor:
    """Return the states between chunks, with the initial state, `(batch, chunk + 1, state)`."""
    batch, num_chunks, chunk_size, num_states = chunks.shape
    carries = chunks.new_empty(batch, num_chunks + 1, num_states)
    carries[:, -1 if reverse else 0] = initial
    later = carries[:, :-1] if reverse else carries[:, 1:]
    ends, each = _end_states(chunks, multipliers, reverse), multipliers.of_chunks(chunk_size)
    scan_into(later, ends, each, initial, chunk_size=chunk_size, reverse=reverse)
    return carries


def _end_states(chunks: Tensor, multipliers: Multipliers, reverse: bool) -> Tensor:
    """Return the last state of each chunk, starting from zero, `(batch, chunk, state)`."""
    first, *others = _order(chunks.shape[2], reverse=reverse)
    end = chunks[:, :, first].clone()
    for step in others:
        torch.addcmul(chunks[:, :, step], end, multipliers.at(step), out=end)
    return end


def power(base: Tensor, exponent: int) -> Tensor:
    """Return `base ** exponent`, computed by repeated squaring in double precision."""
    factor, result = base.to(torch.complex128), torch.ones_like(base, dtype=torch.complex128)
    while exponent:
        if exponent & 1:
            result = result * factor
        factor = factor * factor
        exponent >>= 1
    return result.to(base.dtype)


def eigenvalue_gradient(
    adjoint: Series, states: Series, initial: State, keep: Float[Tensor, "batch time"] | None
) -> Complex[Tensor, "batch state"]:
    """Return the sum over time of `d_t conj(c_{t-1})`, without steps that ignore c_{t-1}.

    The products are computed in slabs, so that temporaries stay small.
    """
    batch, time, num_states = states.shape
    total = adjoint[:, 0] * Multipliers(initial.conj(), False, keep).at(0)
    slab = max(1, _SLAB_ELEMENTS // (batch * num_states))
    for start in range(1, time, slab):
        end = min(start + slab, time)
        products = adjoint[:, start:end] * states[:, start - 1 : end - 1].conj()
        if keep is not None:
            products *= keep[:, start:end, None]
        total += products.sum(1)
    return total
