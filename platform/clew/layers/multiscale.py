"""A scan over means of several tokens, without a look at the future.

At scale s the recurrence takes one step for a block of s tokens: its input is the block's mean.
Averaging and repeating would show the first token of a block the others of it; so a token sees
the state after the last block that was complete *before* its own block began:

    C_b = lambda C_{b-1} + mean of the inputs of block b,    c_t = C_{floor(t / s) - 1}

Blocks are counted from the start of the sequence, wherever it is split: the sum of a block that is
not complete yet is carried along. In a model that reads each document by itself, they are counted
from the start of the document, and a document's first block begins with a state of zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clew.layers.positions import Positions
from clew.layers.scan import RealEigenvalues, RealSeries, RealState, scan


@dataclass(frozen=True)
class ScanState:
    """State after the last complete block, and what is known of the one that has begun."""

    state: RealState
    pending_sum: RealState
    pending_tokens: int = 0


def scan_at_scale(
    inputs: RealSeries,
    eigenvalues: RealEigenvalues,
    before: ScanState | None,
    *,
    scale: int,
    chunk_size: int,
    positions: Positions | None = None,
) -> tuple[RealSeries, ScanState]:
    """Return each token's state at this scale, and what to continue from.

    Args:
        inputs: Drive of each eigenstate at each token.
        eigenvalues: Multiplier of one step, that is of one block.
        before: Where the sequence so far has left off; None at its start.
        scale: Tokens in a block; 1 is the ordinary scan, without delay.
        chunk_size: Steps in a chunk of the scan.
        positions: Of each token in its document; None: the sequence is one document.
    """
    if before is None:
        nothing = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
        before = ScanState(nothing, nothing)
    if scale == 1:
        starts = None if positions is None else positions == 0
        states = scan(inputs, eigenvalues, before.state, chunk_size=chunk_size, starts=starts)
        return states, ScanState(states[:, -1], before.pending_sum)
    if positions is not None:
        return _scan_documents(
            inputs, eigenvalues, before, positions, scale=scale, chunk_size=chunk_size
        )
    sums, pending_sum, pending_tokens = _block_sums(inputs, before, scale)
    coarse = before.state.unsqueeze(1)
    if sums.shape[1]:
        blocks = scan(sums / scale, eigenvalues, before.state, chunk_size=chunk_size)
        coarse = torch.cat([coarse, blocks], dim=1)
    first, time = before.pending_tokens, inputs.shape[1]
    block_of_token = torch.arange(first, first + time, device=inputs.device) // scale
    return coarse[:, block_of_token], ScanState(coarse[:, -1], pending_sum, pending_tokens)


def _block_sums(inputs: RealSeries, before: ScanState, scale: int) -> tuple[Tensor, RealState, int]:
    """Return sums over complete blocks `(batch, block, state, 2)`, and the rest's sum and length.

    The sum carried along stands for the tokens of the first block that came before.
    """
    if before.pending_tokens:
        zeros = inputs.new_zeros(len(inputs), before.pending_tokens - 1, *inputs.shape[2:])
        inputs = torch.cat([before.pending_sum.unsqueeze(1), zeros, inputs], dim=1)
    num_blocks = inputs.shape[1] // scale
    whole, rest = inputs[:, : num_blocks * scale], inputs[:, num_blocks * scale :]
    blocks = whole.reshape(len(inputs), num_blocks, scale, *inputs.shape[2:])
    return blocks.sum(2), rest.sum(1), rest.shape[1]


def _scan_documents(
    inputs: RealSeries,
    eigenvalues: RealEigenvalues,
    before: ScanState,
    positions: Positions,
    *,
    scale: int,
    chunk_size: int,
) -> tuple[RealSeries, ScanState]:
    """Scan blocks that are counted from the start of each document: rows differ in where they lie.

    A document's last block may be short. It is scanned like the others, but no token sees it.
    """
    rows = torch.arange(len(inputs), device=inputs.device)
    opens = positions % scale == 0
    # The first token belongs to block 0, which may have begun before this part of the sequence.
    block = opens.cumsum(1) - opens[:, :1].long()
    shape = (len(inputs), int(block.max()) + 1)
    sums = inputs.new_zeros(*shape, *inputs.shape[2:])
    sums = sums.scatter_add(1, block[..., None, None].expand_as(inputs), inputs)
    begun_before = (~opens[:, 0]).to(inputs.dtype)[:, None, None] * before.pending_sum
    sums = torch.cat([sums[:, :1] + begun_before.unsqueeze(1), sums[:, 1:]], dim=1)
    in_first_block = positions < scale
    starts = block.new_zeros(shape).scatter(1, block, in_first_block.long()) == 1
    blocks = scan(sums / scale, eigenvalues, before.state, chunk_size=chunk_size, starts=starts)
    earlier = torch.cat([before.state.unsqueeze(1), blocks], dim=1)
    states = earlier[rows[:, None], block].masked_fill(in_first_block[..., None, None], 0.0)
    last, complete = block[:, -1], ((positions[:, -1] + 1) % scale == 0)[:, None, None]
    state = torch.where(complete, blocks[rows, last], states[:, -1])
    pending = sums[rows, last].masked_fill(complete, 0.0)
    return states, ScanState(state, pending)
