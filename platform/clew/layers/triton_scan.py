"""The scans as Triton kernels for CUDA: end states of chunks, carries, scans from the carries.

The three passes are those of the chunked scan in `scan`. One kernel, compiled in two ways, makes
the first and the last pass. A program processes one chunk of one example for a block of eigenstates
and keeps the state in registers. Every input is read twice and every state is written once. The
multipliers are the same in every step, or, if `VARIES`, different in each step; the first pass then
also writes their product over each chunk. The last pass of the backward scan also computes the
gradient of the multipliers while adjoint and state are in registers: their sum over a chunk, or one
for each step. At steps with `keep` 0, the previous state (in the direction of the scan) is ignored.

Tested without a GPU in Triton's interpreter (TRITON_INTERPRET=1).
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

MAXIMUM_BLOCK = 128


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _multiply(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load(pointer, offsets, mask):
    real = tl.load(pointer + 2 * offsets, mask=mask, other=0.0)
    return real, tl.load(pointer + 2 * offsets + 1, mask=mask, other=0.0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _store(pointer, offsets, real, imaginary, mask):
    tl.store(pointer + 2 * offsets, real, mask=mask)
    tl.store(pointer + 2 * offsets + 1, imaginary, mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _kept(keep, place, mask, re, im, KEEPS: tl.constexpr):  # noqa: N803, PLR0917
    if KEEPS:
        factor = tl.load(keep + place, mask=mask, other=1.0)
        re, im = re * factor, im * factor
    return re, im


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _time(t, BLOCK: tl.constexpr):  # noqa: N803
    """Repeat a time for the block, because Triton's interpreter confuses masks of other shapes."""
    return tl.zeros((BLOCK,), dtype=tl.int32) + t


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scan_chunks(  # noqa: PLR0917 - Triton passes by position
    inputs,
    multipliers,
    carries,
    products,
    outputs,
    states,
    initial,
    gradients,
    keep,
    time,
    num_chunks,
    num_states,
    multiplier_stride,
    CHUNK: tl.constexpr,  # noqa: N803
    ENDS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
    KEEPS: tl.constexpr,  # noqa: N803
    VARIES: tl.constexpr,  # noqa: N803
):
    """Scan each chunk from its carry; in reverse, also compute d_t conj(c_{t-1}) or its sum.

    With `ENDS`, start from zero, and write only the last state to `carries`, and the product of
    multipliers.
    """
    row = tl.program_id(0)
    example, chunk = row // num_chunks, row % num_chunks
    state = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = state < num_states
    of_chunk = row.to(tl.int64) * num_states + state
    if not VARIES:
        l_re, l_im = _load(multipliers, example * multiplier_stride + state, inside)
    re = tl.zeros((BLOCK,), dtype=inputs.dtype.element_ty)
    im = tl.zeros((BLOCK,), dtype=inputs.dtype.element_ty)
    g_re, g_im, p_re, p_im = re, im, re + 1.0, im
    if not ENDS:
        re, im = _load(carries, of_chunk, inside)
    for i in range(CHUNK):
        t = _time(chunk * CHUNK + (CHUNK - 1 - i if REVERSE else i), BLOCK)
        valid = inside & (t < time)
        place = example.to(tl.int64) * time + t
        offsets = place * num_states + state
        x_re, x_im = _load(inputs, offsets, valid)
        if VARIES:
            l_re, l_im = _load(multipliers, offsets, valid)
            q_re, q_im = _multiply(l_re, l_im, p_re, p_im)
            p_re, p_im = tl.where(valid, q_re, p_re), tl.where(valid, q_im, p_im)
        n_re, n_im = _multiply(l_re, l_im, re, im)
        n_re, n_im = _kept(keep, place, valid, n_re, n_im, KEEPS)
        # Steps past the end, which come first in reverse, do not change the state.
        re = tl.where(valid, n_re + x_re, re)
        im = tl.where(valid, n_im + x_im, im)
        if not ENDS:
            _store(outputs, offsets, re, im, valid)
        if REVERSE and not ENDS:
            earlier = valid & (t > 0)
            c_re, c_im = _load(states, offsets - num_states, earlier)
            # The reverse `keep` of step t - 1 says whether c_{t-1} affects step t.
            c_re, c_im = _kept(keep, place - 1, earlier, c_re, c_im, KEEPS)
            i_re, i_im = _load(initial, example * num_states + state, inside & (t == 0))
            d_re, d_im = _multiply(re, im, c_re + i_re, -(c_im + i_im))
            if VARIES:
                _store(gradients, offsets, d_re, d_im, valid)
            else:
                g_re = tl.where(valid, g_re + d_re, g_re)
                g_im = tl.where(valid, g_im + d_im, g_im)
    if ENDS:
        _store(carries, of_chunk, re, im, inside)
        if VARIES:
            _store(products, of_chunk, p_re, p_im, inside)
    elif REVERSE and not VARIES:
        _store(gradients, of_chunk, g_re, g_im, inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _carries(  # noqa: PLR0917
    ends,
    powers,
    initial,
    keep,
    num_chunks,
    num_states,
    power_stride,
    BLOCK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
    KEEPS: tl.constexpr,  # noqa: N803
    VARIES: tl.constexpr,  # noqa: N803
):
    example = tl.program_id(0)
    state = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = state < num_states
    if not VARIES:
        p_re, p_im = _load(powers, example * power_stride + state, inside)
    re, im = _load(initial, example * num_states + state, inside)
    for i in range(num_chunks):
        chunk = num_chunks - 1 - i if REVERSE else i
        offsets = (example.to(tl.int64) * num_chunks + chunk) * num_states + state
        if VARIES:
            p_re, p_im = _load(powers, offsets, inside)
        e_re, e_im = _load(ends, offsets, inside)
        _store(ends, offsets, re, im, inside)
        n_re, n_im = _multiply(p_re, p_im, re, im)
        place = _time(example * num_chunks + chunk, BLOCK)
        n_re, n_im = _kept(keep, place, inside, n_re, n_im, KEEPS)
        re, im = n_re + e_re, n_im + e_im


def forward(  # noqa: PLR0917 - the operator's own order
    inputs: Tensor,
    multipliers: Tensor,
    initial: Tensor,
    powers: Tensor | None,
    chunk_size: int,
    keep: Tensor | None = None,
) -> Tensor:
    """Return all states, `(batch, time, state, 2)`.

    Args:
        inputs: Input of each eigenstate in each step.
        multipliers: Eigenvalues, or, without `powers`, one multiplier for each step.
        initial: State before the first step.
        powers: Eigenvalues ** chunk_size.
        chunk_size: Steps per chunk.
        keep: 0 at steps that ignore the previous state; only for eigenvalues.
    """
    return _scan(inputs, multipliers, initial, powers, chunk_size, keep, None)[0]


def backward(  # noqa: PLR0917
    gradient: Tensor,
    states: Tensor,
    multipliers: Tensor,
    initial: Tensor,
    powers: Tensor | None,
    chunk_size: int,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the adjoint, and the gradient of each example's eigenvalues or of each multiplier.

    `multipliers` and `powers` are the conjugates of those of the forward scan; if there is one for
    each step, that of the step after it. `initial` is zero if the first step ignores it. `keep` is
    that of the scan backwards in time.
    """
    saved = (states.contiguous(), initial.contiguous())
    return _scan(gradient, multipliers, torch.zeros_like(initial), powers, chunk_size, keep, saved)


def _scan(  # noqa: PLR0917
    inputs: Tensor,
    multipliers: Tensor,
    start: Tensor,
    powers: Tensor | None,
    chunk_size: int,
    keep: Tensor | None,
    saved: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    inputs, multipliers, start = inputs.contiguous(), multipliers.contiguous(), start.contiguous()
    batch, time, num_states, _ = inputs.shape
    num_chunks, reverse, varies = -(-time // chunk_size), saved is not None, powers is None
    outputs = torch.empty_like(inputs)
    carries = inputs.new_empty(batch, num_chunks, num_states, 2)
    powers = torch.empty_like(carries) if powers is None else powers.contiguous()
    gradients = torch.empty_like(inputs if varies else carries) if reverse else carries
    states, initial = saved if saved is not None else (inputs, start)
    steps_kept = chunks_kept = inputs  # not read
    if keep is not None:
        steps_kept = keep.contiguous()
        whole = torch.nn.functional.pad(keep, (0, num_chunks * chunk_size - time), value=1.0)
        chunks_kept = whole.view(batch, num_chunks, chunk_size).amin(2)
    block = min(MAXIMUM_BLOCK, int(triton.next_power_of_2(num_states)))
    columns = -(-num_states // block)
    chunks = (batch * num_chunks, columns)
    lengths = (num_chunks, num_states, num_states if len(multipliers) == batch else 0)
    kinds = {"BLOCK": block, "REVERSE": reverse, "KEEPS": keep is not None, "VARIES": varies}
    tensors = (inputs, multipliers, carries, powers, outputs, states, initial, gradients)
    arguments = (*tensors, steps_kept, time, *lengths)
    _scan_chunks[chunks](*arguments, CHUNK=chunk_size, ENDS=True, **kinds)
    _carries[(batch, columns)](carries, powers, start, chunks_kept, *lengths, **kinds)
    _scan_chunks[chunks](*arguments, CHUNK=chunk_size, ENDS=False, **kinds)
    return outputs, gradients if varies else gradients.sum(1)
