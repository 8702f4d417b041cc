"""Diagonal complex linear recurrence as one operator with a forward and a backward pass.

    c_t = lambda c_{t-1} + b_t        elementwise over eigenstates, c_{-1} given

The backward pass is the same scan, backwards in time and with the conjugate eigenvalue. G is the
gradient of c:

    d_t = G_t + conj(lambda) d_{t+1},    db = d,    dc_{-1} = conj(lambda) d_0
    dlambda = sum_t d_t conj(c_{t-1})

If a sequence starts within the series, lambda is 0 in its first step. The CPU uses the chunked
scan below, and a GPU uses the kernels of `triton_scan`.

The chunked scan uses vectorised torch operations on complex tensors. Time is divided into chunks of
C steps. Three passes give all states:

    e_n    = sum_j lambda^(C-1-j) b_n[j]         end state of each chunk that starts from zero
    S_n+1  = lambda^C S_n + e_n                  carries: the same recurrence, C times shorter
    c_n[j] = lambda c_n[j-1] + b_n[j]            states of each chunk, starting from its carry

The first and the last pass take C vectorised steps over all chunks at once, and the carries are
scanned by the same algorithm, so T steps take about 2 C log(T) / log(C) operations. Lambda is only
multiplied by itself: nothing overflows if |lambda| <= 1, and lambda = 0 needs no logarithm.

Lambda is either the same in every step (`Fixed`) or different in each step (`Varying`). In the
second case, the product of the lambdas of a chunk replaces lambda^C.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

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


Series = Complex[Tensor, "batch time state"]
State = Complex[Tensor, "batch state"]
Keep = Float[Tensor, "batch time"]
"""0 at steps that ignore the previous state (in the direction of the scan), otherwise 1."""

_SLAB_ELEMENTS = 2**16


@dataclass(frozen=True)
class Fixed:
    """The same eigenvalues in every step; they are multiplied by `keep` if it is given.

    `keep` is 0 in a step that starts a new sequence, and for a chunk that contains such a step.
    """

    eigenvalues: Tensor
    keep: Tensor | None = None

    def at(self, step: int) -> Tensor:
        """Return the multiplier of the previous state (in the direction of the scan) at a step."""
        keep = self.keep
        return self.eigenvalues if keep is None else self.eigenvalues * keep[..., step, None]

    def part(self, time: slice) -> "Fixed":
        return Fixed(self.eigenvalues, None if self.keep is None else self.keep[:, time])

    def in_chunks(self, num_chunks: int) -> "Fixed":
        keep = self.keep
        keep = None if keep is None else keep.reshape(len(keep), num_chunks, -1)
        return Fixed(self.eigenvalues.unsqueeze(1), keep)

    def of_chunks(self, chunk_size: int) -> "Fixed":
        keep = None if self.keep is None else self.keep.amin(2)
        return Fixed(power(self.eigenvalues.squeeze(1), chunk_size), keep)


@dataclass(frozen=True)
class Varying:
    """A multiplier for each state in each step."""

    values: Tensor

    def at(self, step: int) -> Tensor:
        return self.values[..., step, :]

    def part(self, time: slice) -> "Varying":
        return Varying(self.values[:, time])

    def in_chunks(self, num_chunks: int) -> "Varying":
        batch, _, num_states = self.values.shape
        return Varying(self.values.view(batch, num_chunks, -1, num_states))

    def of_chunks(self, chunk_size: int) -> "Varying":
        return Varying(self.values.prod(2))


Multipliers = Fixed | Varying


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
    _scan_chunks(states[:, head].view(shape), chunks, each, starts, reverse=reverse)
    last = carries[:, 0] if reverse else carries[:, -1]
    _steps(states[:, tail], inputs[:, tail], multipliers.part(tail), last, reverse=reverse)


def _order(length: int, *, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _steps(
    states: Tensor, inputs: Tensor, multipliers: Multipliers, initial: Tensor, *, reverse: bool
) -> None:
    previous = initial
    for step in _order(inputs.shape[1], reverse=reverse):
        torch.addcmul(inputs[:, step], previous, multipliers.at(step), out=states[:, step])
        previous = states[:, step]


def _carries(chunks: Tensor, multipliers: Multipliers, initial: Tensor, *, reverse: bool) -> Tensor:
    """Return the states between chunks, with the initial state, `(batch, chunk + 1, state)`."""
    batch, num_chunks, chunk_size, num_states = chunks.shape
    carries = chunks.new_empty(batch, num_chunks + 1, num_states)
    carries[:, -1 if reverse else 0] = initial
    scan_into(
        carries[:, :-1] if reverse else carries[:, 1:],
        _end_states(chunks, multipliers, reverse=reverse),
        multipliers.of_chunks(chunk_size),
        initial,
        chunk_size=chunk_size,
        reverse=reverse,
    )
    return carries


def _end_states(chunks: Tensor, multipliers: Multipliers, *, reverse: bool) -> Tensor:
    """Return the last state of each chunk, starting from zero, `(batch, chunk, state)`."""
    first, *others = _order(chunks.shape[2], reverse=reverse)
    end = chunks[:, :, first].clone()
    for step in others:
        torch.addcmul(chunks[:, :, step], end, multipliers.at(step), out=end)
    return end


def _scan_chunks(
    states: Tensor, chunks: Tensor, multipliers: Multipliers, starts: Tensor, *, reverse: bool
) -> None:
    """Scan all chunks at once; each chunk starts from its state in `starts`."""
    previous = starts
    for step in _order(chunks.shape[2], reverse=reverse):
        torch.addcmul(chunks[:, :, step], previous, multipliers.at(step), out=states[:, :, step])
        previous = states[:, :, step]


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
    adjoint: Series, states: Series, initial: State, keep: Keep | None
) -> Complex[Tensor, "batch state"]:
    """Return the sum over time of `d_t conj(c_{t-1})`, without steps that ignore c_{t-1}.

    The products are computed in slabs, so that temporaries stay small.
    """
    batch, time, num_states = states.shape
    total = adjoint[:, 0] * Fixed(initial.conj(), keep).at(0)
    slab = max(1, _SLAB_ELEMENTS // (batch * num_states))
    for start in range(1, time, slab):
        end = min(start + slab, time)
        products = adjoint[:, start:end] * states[:, start - 1 : end - 1].conj()
        if keep is not None:
            products *= keep[:, start:end, None]
        total += products.sum(1)
    return total
