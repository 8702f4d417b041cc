"""The chunked scan by vectorised torch operations, on complex tensors.

Time is cut into chunks of C steps. Three passes give all states:

    e_n    = sum_j lambda^(C-1-j) b_n[j]         each chunk's end state from zero, reads only
    S_n+1  = lambda^C S_n + e_n                  carries: the same recurrence, C times shorter
    c_n[j] = lambda c_n[j-1] + b_n[j]            each chunk again, from its carry

A pass takes C vectorised steps over all chunks at once, and the carries are scanned by the same
algorithm, so that T steps cost about 2 C log(T) / log(C) operations. Only products of lambda with
itself occur: with |lambda| <= 1 nothing overflows, and lambda = 0 needs no logarithm.
"""

import torch
from jaxtyping import Complex
from torch import Tensor

Series = Complex[Tensor, "batch time state"]
State = Complex[Tensor, "batch state"]
Eigenvalues = Complex[Tensor, "#batch state"]

_SLAB_ELEMENTS = 2**16


def scan_into(
    states: Series,
    inputs: Series,
    eigenvalues: Eigenvalues,
    initial: State,
    *,
    chunk_size: int,
    reverse: bool = False,
) -> None:
    """Write the states for `inputs` into `states`, forwards or from the last time to the first."""
    time = inputs.shape[1]
    num_chunks = time // chunk_size if chunk_size > 1 else 0
    if num_chunks < 2:
        _steps(states, inputs, eigenvalues, initial, reverse=reverse)
        return
    # Whole chunks first in the direction of the scan; what is left over follows them.
    whole = num_chunks * chunk_size
    head = slice(time - whole, None) if reverse else slice(None, whole)
    tail = slice(None, time - whole) if reverse else slice(whole, None)
    shape = (-1, num_chunks, chunk_size, inputs.shape[2])
    chunks = inputs[:, head].view(shape)
    carries = _carries(chunks, eigenvalues, initial, reverse=reverse)
    starts = carries[:, 1:] if reverse else carries[:, :-1]
    _scan_chunks(states[:, head].view(shape), chunks, eigenvalues, starts, reverse=reverse)
    last = carries[:, 0] if reverse else carries[:, -1]
    _steps(states[:, tail], inputs[:, tail], eigenvalues, last, reverse=reverse)


def _order(length: int, *, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _steps(
    states: Tensor, inputs: Tensor, eigenvalues: Tensor, initial: Tensor, *, reverse: bool
) -> None:
    """Scan a short series step by step."""
    previous = initial
    for step in _order(inputs.shape[1], reverse=reverse):
        torch.addcmul(inputs[:, step], previous, eigenvalues, out=states[:, step])
        previous = states[:, step]


def _carries(chunks: Tensor, eigenvalues: Tensor, initial: Tensor, *, reverse: bool) -> Tensor:
    """Return the states between chunks, the initial one among them, `(batch, chunk + 1, state)`."""
    batch, num_chunks, chunk_size, num_states = chunks.shape
    carries = chunks.new_empty(batch, num_chunks + 1, num_states)
    carries[:, -1 if reverse else 0] = initial
    scan_into(
        carries[:, :-1] if reverse else carries[:, 1:],
        _end_states(chunks, eigenvalues, reverse=reverse),
        power(eigenvalues, chunk_size),
        initial,
        chunk_size=chunk_size,
        reverse=reverse,
    )
    return carries


def _end_states(chunks: Tensor, eigenvalues: Tensor, *, reverse: bool) -> Tensor:
    """Return each chunk's last state if it started from zero, `(batch, chunk, state)`."""
    first, *others = _order(chunks.shape[2], reverse=reverse)
    end, multiplier = chunks[:, :, first].clone(), eigenvalues.unsqueeze(1)
    for step in others:
        torch.addcmul(chunks[:, :, step], end, multiplier, out=end)
    return end


def _scan_chunks(
    states: Tensor, chunks: Tensor, eigenvalues: Tensor, starts: Tensor, *, reverse: bool
) -> None:
    """Scan all chunks at once; each starts from the state at the end of the one before it."""
    previous, multiplier = starts, eigenvalues.unsqueeze(1)
    for step in _order(chunks.shape[2], reverse=reverse):
        torch.addcmul(chunks[:, :, step], previous, multiplier, out=states[:, :, step])
        previous = states[:, :, step]


def power(base: Tensor, exponent: int) -> Tensor:
    """Return `base ** exponent` by repeated squaring, in double precision; zero stays zero."""
    factor, result = base.to(torch.complex128), torch.ones_like(base, dtype=torch.complex128)
    while exponent:
        if exponent & 1:
            result = result * factor
        factor = factor * factor
        exponent >>= 1
    return result.to(base.dtype)


def eigenvalue_gradient(adjoint: Tensor, states: Tensor, initial: Tensor) -> Tensor:
    """Return sum over time of `d_t conj(c_{t-1})`, `(batch, state)`; temporaries stay small."""
    batch, time, num_states = states.shape
    total = adjoint[:, 0] * initial.conj()
    slab = max(1, _SLAB_ELEMENTS // (batch * num_states))
    for start in range(1, time, slab):
        end = min(start + slab, time)
        total += (adjoint[:, start:end] * states[:, start - 1 : end - 1].conj()).sum(1)
    return total
