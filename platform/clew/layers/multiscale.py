"""A scan over means of several tokens, without a look at the future.

At scale s the recurrence takes one step for a block of s tokens: its input is the block's mean.
Averaging and repeating would show the first token of a block the others of it; so a token sees
the state after the last block that was complete *before* its own block began:

    C_b = lambda C_{b-1} + mean of the inputs of block b,    c_t = C_{floor(t / s) - 1}

Blocks are counted from the start of the sequence, wherever it is split: the sum of a block that is
not complete yet is carried along.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
) -> tuple[RealSeries, ScanState]:
    """Return each token's state at this scale, and what to go on from.

    Args:
        inputs: Drive of each eigenstate at each token.
        eigenvalues: Multiplier of one step, that is of one block.
        before: Where the sequence so far has left off; None at its start.
        scale: Tokens in a block; 1 is the ordinary scan, without delay.
        chunk_size: Steps in a chunk of the scan.
    """
    if before is None:
        nothing = inputs.new_zeros(inputs.shape[0], *inputs.shape[2:])
        before = ScanState(nothing, nothing)
    if scale == 1:
        states = scan(inputs, eigenvalues, before.state, chunk_size=chunk_size)
        return states, ScanState(states[:, -1], before.pending_sum)
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
