"""The scan with a multiplier for each step as Triton kernels for CUDA.

The three passes are those of `triton_scan`. The first computes the end state of each chunk from
zero and the product of its multipliers, the second computes the carries, and the third scans each
chunk from its carry. In reverse, the third pass also writes the gradient of each multiplier while
adjoint and state are in registers.

Tested without a GPU in Triton's interpreter (TRITON_INTERPRET=1).
"""

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from clew.layers.triton_scan import MAXIMUM_BLOCK, _load, _multiply, _store, _time


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _summaries(  # noqa: PLR0917 - Triton passes by position
    inputs,
    multipliers,
    ends,
    products,
    time,
    num_chunks,
    num_states,
    CHUNK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
):
    """Write the last state of each chunk, starting from zero, and the product of multipliers."""
    row = tl.program_id(0)
    example, chunk = row // num_chunks, row % num_chunks
    state = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = state < num_states
    re = tl.zeros((BLOCK,), dtype=inputs.dtype.element_ty)
    im = tl.zeros((BLOCK,), dtype=inputs.dtype.element_ty)
    p_re, p_im = re + 1.0, im
    for i in range(CHUNK):
        t = _time(chunk * CHUNK + (CHUNK - 1 - i if REVERSE else i), BLOCK)
        valid = inside & (t < time)
        offsets = (example.to(tl.int64) * time + t) * num_states + state
        x_re, x_im = _load(inputs, offsets, valid)
        m_re, m_im = _load(multipliers, offsets, valid)
        n_re, n_im = _multiply(m_re, m_im, re, im)
        q_re, q_im = _multiply(m_re, m_im, p_re, p_im)
        # Steps past the end, which come first in reverse, change nothing.
        re, im = tl.where(valid, n_re + x_re, re), tl.where(valid, n_im + x_im, im)
        p_re, p_im = tl.where(valid, q_re, p_re), tl.where(valid, q_im, p_im)
    place = row.to(tl.int64) * num_states + state
    _store(ends, place, re, im, inside)
    _store(products, place, p_re, p_im, inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _carries(  # noqa: PLR0917
    ends,
    products,
    initial,
    num_chunks,
    num_states,
    BLOCK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
):
    example = tl.program_id(0)
    state = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = state < num_states
    re, im = _load(initial, example * num_states + state, inside)
    for i in range(num_chunks):
        chunk = num_chunks - 1 - i if REVERSE else i
        offsets = (example.to(tl.int64) * num_chunks + chunk) * num_states + state
        e_re, e_im = _load(ends, offsets, inside)
        p_re, p_im = _load(products, offsets, inside)
        _store(ends, offsets, re, im, inside)
        n_re, n_im = _multiply(p_re, p_im, re, im)
        re, im = n_re + e_re, n_im + e_im


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _local_scans(  # noqa: PLR0917
    inputs,
    multipliers,
    carries,
    outputs,
    states,
    initial,
    gradients,
    time,
    num_chunks,
    num_states,
    CHUNK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    REVERSE: tl.constexpr,  # noqa: N803
):
    """Scan each chunk from its carry; in reverse, also write d_t conj(c_{t-1})."""
    row = tl.program_id(0)
    example, chunk = row // num_chunks, row % num_chunks
    state = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = state < num_states
    re, im = _load(carries, row.to(tl.int64) * num_states + state, inside)
    for i in range(CHUNK):
        t = _time(chunk * CHUNK + (CHUNK - 1 - i if REVERSE else i), BLOCK)
        valid = inside & (t < time)
        offsets = (example.to(tl.int64) * time + t) * num_states + state
        x_re, x_im = _load(inputs, offsets, valid)
        m_re, m_im = _load(multipliers, offsets, valid)
        n_re, n_im = _multiply(m_re, m_im, re, im)
        re, im = tl.where(valid, n_re + x_re, re), tl.where(valid, n_im + x_im, im)
        _store(outputs, offsets, re, im, valid)
        if REVERSE:
            c_re, c_im = _load(states, offsets - num_states, valid & (t > 0))
            i_re, i_im = _load(initial, example * num_states + state, inside & (t == 0))
            d_re, d_im = _multiply(re, im, c_re + i_re, -(c_im + i_im))
            _store(gradients, offsets, d_re, d_im, valid)


def forward(inputs: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
    """Return all states, `(batch, time, state, 2)`."""
    return _scan(inputs, multipliers, initial, chunk_size, None)[0]


def backward(
    gradient: Tensor, states: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Return the adjoint and the gradient of each multiplier.

    `multipliers` has, for each step, the conjugate multiplier of the step after it.
    """
    saved = (states.contiguous(), initial.contiguous())
    return _scan(gradient, multipliers, torch.zeros_like(initial), chunk_size, saved)


def _scan(
    inputs: Tensor,
    multipliers: Tensor,
    start: Tensor,
    chunk_size: int,
    saved: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    inputs, multipliers, start = inputs.contiguous(), multipliers.contiguous(), start.contiguous()
    batch, time, num_states, _ = inputs.shape
    num_chunks, reverse = -(-time // chunk_size), saved is not None
    outputs = torch.empty_like(inputs)
    gradients = torch.empty_like(inputs) if reverse else outputs
    carries = inputs.new_empty(batch, num_chunks, num_states, 2)
    products = torch.empty_like(carries)
    states, initial = saved if saved is not None else (inputs, start)
    block = min(MAXIMUM_BLOCK, int(triton.next_power_of_2(num_states)))
    columns = -(-num_states // block)
    chunks, sizes = (batch * num_chunks, columns), {"BLOCK": block, "REVERSE": reverse}
    lengths = (time, num_chunks, num_states)
    _summaries[chunks](inputs, multipliers, carries, products, *lengths, CHUNK=chunk_size, **sizes)
    _carries[(batch, columns)](carries, products, start, num_chunks, num_states, **sizes)
    _local_scans[chunks](
        inputs,
        multipliers,
        carries,
        outputs,
        states,
        initial,
        gradients,
        *lengths,
        CHUNK=chunk_size,
        **sizes,
    )
    return outputs, gradients
