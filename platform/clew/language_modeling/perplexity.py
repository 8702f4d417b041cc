"""Quality of a language model: perplexity and bits per byte over a whole text, loss by position.

Perplexity is taken over a text as one sequence: the state is carried from one segment to the next,
so every token but the first is predicted from all that precedes it, and the result does not depend
on how the text is cut. Loss by position answers another question, whether a longer context helps:
it starts again at each window.
"""

import itertools
import math
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
    """Summed loss over a text."""

    total_nats: float
    num_tokens: int
    """Predicted tokens: all but the first."""
    num_bytes: int
    """Bytes of text that the predicted tokens stand for."""

    @property
    def loss(self) -> float:
        """Mean loss of a token, in nats."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Bits needed for a byte of text, which does not depend on the tokenizer."""
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
    """Predict every token of a text `(token,)` but the first from all before it.

    Args:
        model: In evaluation mode.
        text: Two tokens or more.
        num_bytes: Bytes that all tokens but the first stand for.
        device: Where the model is.
        chunk_bytes: Budget for the logits of a chunk.
        segment_tokens: Tokens that go through the model at once; changes memory, not results.
    """
    total, state = 0.0, None
    for start in range(0, len(text) - 1, segment_tokens):
        segment = text[start : start + segment_tokens + 1].astype(np.int64)
        tokens = torch.from_numpy(segment).to(device).unsqueeze(0)
        hidden, state = model.advance(tokens[:, :-1], state)
        loss = summed_loss(
            hidden, model.embedding.weight, tokens[:, 1:].contiguous(), chunk_bytes=chunk_bytes
        )
        total += float(loss)
    return Perplexity(total, len(text) - 1, num_bytes)


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
    """Return the mean loss at positions 0, 1, 2 to 3, 4 to 7 and so on, each window from a start.

    Args:
        model: In evaluation mode.
        windows: Tokens `(window, time + 1)`.
        chunk_bytes: Budget for the logits that are held at once.
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
