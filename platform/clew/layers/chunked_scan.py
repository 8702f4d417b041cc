"""The chunked scan by vectorised torch operations, on complex tensors.

Time is cut into chunks of C steps. Three passes give all states:

    e_n    = sum_j lambda^(C-1-j) b_n[j]         each chunk's end state from zero, reads only
    S_n+1  = lambda^C S_n + e_n                  carries: the same recurrence, C times shorter
    c_n[j] = lambda c_n[j-1] + b_n[j]            each chunk again, from its carry

A pass takes C vectorised steps over all chunks at once, and the carries are scanned by the same
algorithm, so that T steps cost about 2 C log(T) / log(C) operations. Only products of lambda with
itself occur: with |lambda| <= 1 nothing overflows, and lambda = 0 needs no logarithm.

Where a new sequence begins, lambda is multiplied by 0; a chunk in which one does hands nothing on.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor

Series = Complex[Tensor, "batch time state"]
State = Complex[Tensor, "batch state"]
Eigenvalues = Complex[Tensor, "#batch state"]
Keep = Float[Tensor, "batch time"]
"""0 at steps that the state before them (in the direction of the scan) does not reach, else 1."""

_SLAB_ELEMENTS = 2**16


def scan_into(
    states: Series,
    inputs: Series,
    eigenvalues: Eigenvalues,
    initial: State,
    *,
    chunk_size: int,
    keep: Keep | None = None,
    reverse: bool = False,
) -> None:
    """Write the states for `inputs` into `states`, forwards or from the last time to the first."""
    time = inputs.shape[1]
    num_chunks = time // chunk_size if chunk_size > 1 else 0
    if num_chunks < 2:
        _steps(states, inputs, eigenvalues, initial, keep=keep, reverse=reverse)
        return
    # Whole chunks first in the direction of the scan; what is left over follows them.
    whole = num_chunks * chunk_size
    head = slice(time - whole, None) if reverse else slice(None, whole)
    tail = slice(None, time - whole) if reverse else slice(whole, None)
    shape = (-1, num_chunks, chunk_size, inputs.shape[2])
    chunks, kept = inputs[:, head].view(shape), None
    if keep is not None:
        kept, keep = keep[:, head].reshape(shape[:3]), keep[:, tail]
    carries = _carries(chunks, eigenvalues, initial, keep=kept, reverse=reverse)
    starts = carries[:, 1:] if reverse else carries[:, :-1]
    _scan_chunks(
        states[:, head].view(shape), chunks, eigenvalues, starts, keep=kept, reverse=reverse
    )
    last = carries[:, 0] if reverse else carries[:, -1]
    _steps(states[:, tail], inputs[:, tail], eigenvalues, last, keep=keep, reverse=reverse)


def _order(length: int, *, reverse: bool) -> range:
    return range(length - 1, -1, -1) if reverse else range(length)


def _multiplier(eigenvalues: Tensor, keep: Tensor | None, step: int) -> Tensor:
    """Return what the state before a step is multiplied by."""
    return eigenvalues if keep is None else eigenvalues * keep[..., step, None]


def _steps(
    states: Tensor,
    inputs: Tensor,
    eigenvalues: Tensor,
    initial: Tensor,
    *,
    keep: Tensor | None,
    reverse: bool,
) -> None:
    """Scan a short series step by step."""
    previous = initial
    for step in _order(inputs.shape[1], reverse=reverse):
        multiplier = _multiplier(eigenvalues, keep, step)
        torch.addcmul(inputs[:, step], previous, multiplier, out=states[:, step])
        previous = states[:, step]


def _carries(
    chunks: Tensor, eigenvalues: Tensor, initial: Tensor, *, keep: Tensor | None, reverse: bool
) -> Tensor:
    """Return the states between chunks, the initial one among them, `(batch, chunk + 1, state)`."""
    batch, num_chunks, chunk_size, num_states = chunks.shape
    carries = chunks.new_empty(batch, num_chunks + 1, num_states)
    carries[:, -1 if reverse else 0] = initial
    scan_into(
        carries[:, :-1] if reverse else carries[:, 1:],
        _end_states(chunks, eigenvalues, keep=keep, reverse=reverse),
        power(eigenvalues, chunk_size),
        initial,
        chunk_size=chunk_size,
        keep=None if keep is None else keep.amin(2),
        reverse=reverse,
    )
    return carries


def _end_states(
    chunks: Tensor, eigenvalues: Tensor, *, keep: Tensor | None, reverse: bool
) -> Tensor:
    """Return each chunk's last state if it started from zero, `(batch, chunk, state)`."""
    first, *others = _order(chunks.shape[2], reverse=reverse)
    end, values = chunks[:, :, first].clone(), eigenvalues.unsqueeze(1)
    for step in others:
        torch.addcmul(chunks[:, :, step], end, _multiplier(values, keep, step), out=end)
    return end


def _scan_chunks(
    states: Tensor,
    chunks: Tensor,
    eigenvalues: Tensor,
    starts: Tensor,
    *,
    keep: Tensor | None,
    reverse: bool,
) -> None:
    """Scan all chunks at once; each starts from the state at the end of the one before it."""
    previous, values = starts, eigenvalues.unsqueeze(1)
    for step in _order(chunks.shape[2], reverse=reverse):
        multiplier = _multiplier(values, keep, step)
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


def eigenvalue_gradient(
    adjoint: Series, states: Series, initial: State, keep: Keep | None
) -> Complex[Tensor, "batch state"]:
    """Return sum over time of `d_t conj(c_{t-1})`, without steps that c_{t-1} does not reach.

    Temporaries stay small.
    """
    batch, time, num_states = states.shape
    total = adjoint[:, 0] * _multiplier(initial.conj(), keep, 0)
    slab = max(1, _SLAB_ELEMENTS // (batch * num_states))
    for start in range(1, time, slab):
        end = min(start + slab, time)
        products = adjoint[:, start:end] * states[:, start - 1 : end - 1].conj()
        if keep is not None:
            products *= keep[:, start:end, None]
        total += products.sum(1)
    return total
