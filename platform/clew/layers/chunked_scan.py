"""The chunked scan with vectorised torch operations on complex tensors.

Time is divided into chunks of C steps. Three passes give all states:

    e_n    = sum_j lambda^(C-1-j) b_n[j]         end state of each chunk that starts from zero
    S_n+1  = lambda^C S_n + e_n                  carries: the same recurrence, C times shorter
    c_n[j] = lambda c_n[j-1] + b_n[j]            states of each chunk, starting from its carry

The first and the last pass take C vectorised steps over all chunks at once, and the carries are
scanned by the same algorithm, so T steps take about 2 C log(T) / log(C) operations. Lambda is only
multiplied by itself: nothing overflows if |lambda| <= 1, and lambda = 0 needs no logarithm.

Lambda is either the same in every step (`Fixed`) or different in each step (`Varying`). In the
second case, the product of the lambdas of a chunk replaces lambda^C.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

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
