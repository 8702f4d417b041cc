"""Quality of a language model: perplexity and bits per byte of a text, and loss by position.

Perplexity treats a text as one sequence. The state is carried from one segment to the next, so that
every token except the first is predicted from all tokens before it, and the result does not depend
on the segments. The loss by position shows whether a longer context helps. For this purpose, the
state is reset at each window.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clew.language_modeling.loss import chunk_tokens, summed_loss, token_losses
from clew.language_modeling.model import EigenstateLM

SEGMENT_TOKENS = 16384
"""Tokens that go through the model at once."""


@dataclass(frozen=True)
class Perplexity:
    """Summed loss of a text, and the numbers of tokens and bytes."""

    total_nats: float
    num_tokens: int
    """Number of predicted tokens: all except the first."""
    num_bytes: int
    """Number of bytes of text of the predicted tokens."""

    @property
    def loss(self) -> float:
        """Mean loss per token, in nats."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss, which is limited to 700 to avoid overflow."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, which can be compared between tokenizers."""
        return self.total_nats / math.log(2) / self.num_bytes


@torch.no_grad()
def measure_perplexity(
    model: EigenstateLM,
    text: np.ndarray,
    *,
    num_bytes: int,
    device: torch.device,
    chunk_bytes: int,
    segment_tokens: int = SEGMENT_TOKENS,
) -> Perplexity:
    """Return the loss of a text, predicting every token except the first from all before it.

    Args:
        model: Model in evaluation mode.
        text: Two or more tokens, `(token,)`.
        num_bytes: Number of bytes of all tokens except the first.
        device: Device of the model.
        chunk_bytes: Memory budget for the logits of a chunk.
        segment_tokens: Tokens that go through the model at once; this affects memory, but not
            results.
    """
    losses = segment_losses(
        model, text, device=device, chunk_bytes=chunk_bytes, segment_tokens=segment_tokens
    )
    return Perplexity(sum(losses, start=0.0), len(text) - 1, num_bytes)


def segment_losses(
    model: EigenstateLM,
    text: np.ndarray,
    *,
    device: torch.device,
    chunk_bytes: int,
    segment_tokens: int,
) -> Iterator[float]:
    """Yield the summed loss of each segment of a text; the arguments are `measure_perplexity`'s."""
    state = None
    for start in range(0, len(text) - 1, segment_tokens):
        segment = text[start : start + segment_tokens + 1].astype(np.int64)
        tokens = torch.from_numpy(segment).to(device).unsqueeze(0)
        hidden, state = model.advance(tokens[:, :-1], state)
        loss = summed_loss(
            hidden, model.embedding.weight, tokens[:, 1:].contiguous(), chunk_bytes=chunk_bytes
        )
        yield float(loss)


@dataclass(frozen=True)
class PositionBucket:
    """Mean loss over a range of positions in a window, in nats."""

    first: int
    last: int
    loss: float


@torch.no_grad()
def loss_by_position(
    model: EigenstateLM, windows: Tensor, *, chunk_bytes: int
) -> list[PositionBucket]:
    """Return the mean loss at positions 0, 1, 2 to 3, 4 to 7 and so on of windows.

    The state is reset at each window.

    Args:
        model: Model in evaluation mode.
        windows: Tokens `(window, time + 1)`.
        chunk_bytes: Memory budget for the logits of a chunk.
    """
    time = windows.shape[1] - 1
    sums = torch.zeros(time, dtype=torch.float64)
    step = chunk_tokens(len(model.embedding.weight), chunk_bytes)
    for window in windows:
        inputs, targets = window[None, :-1], window[None, 1:]
        hidden = model(inputs)
        for start in range(0, time, step):
            part = slice(start, start + step)
            losses = token_losses(
                hidden[:, part], model.embedding.weight, targets[:, part].contiguous()
            )
            sums[part] += losses[0].double().cpu()
    mean, buckets = sums / len(windows), []
    edges = [0, *(2**i for i in range(math.ceil(math.log2(time)))), time] if time > 1 else [0, 1]
    for first, end in itertools.pairwise(edges):
        buckets.append(PositionBucket(first, end - 1, float(mean[first:end].mean())))
    return buckets
