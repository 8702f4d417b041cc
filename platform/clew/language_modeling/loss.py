"""Cross entropy of the next token: plain, and in chunks of tokens that never store all logits.

    loss = sum_t -log softmax(W h_t)[target_t]

For a chunk of tokens, P is the softmax of its logits, and Y are the one-hot targets. The gradients
are two more matrix products, which are computed immediately:

    S = H W^T,    G = P - Y,    dH = G W,    dW += G^T H

So the backward pass of each chunk runs inside the forward pass, and only dH and dW are kept. The
later backward pass only scales them. With 32,768 tokens and a vocabulary of 50,257, full float32
logits would take 6.1 GiB, and if only the forward pass were chunked, autograd would keep all
chunks.

Precision: under autocast, the products use half-precision operands. Softmax, loss and the sum of dW
over chunks are in float32. On a CPU, products use float32 instead of float16, which would be slow.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clew.language_modeling.model import EigenstateLM
from clew.layers.products import chunks, operand_type

Hidden = Float[Tensor, "batch time dim"]
Head = Float[Tensor, "token dim"]
Targets = Int[Tensor, "batch time"]
TokenLosses = Float[Tensor, "batch time"]

MINIMUM_CHUNK_TOKENS = 64


def token_losses(hidden: Hidden, head: Head, targets: Targets) -> TokenLosses:
    """Return -log p of each target from full logits, `(batch, time)` in float32."""
    logits = F.linear(hidden, head).flatten(0, 1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
    return losses.view_as(targets)


def summed_loss(
    hidden: Hidden, head: Head, targets: Targets, *, chunk_bytes: int
) -> Float[Tensor, ""]:
    """Return the loss summed over all tokens; its gradients are computed in the same pass.

    `chunk_bytes` is the budget for the float32 logits of a chunk and their gradient.
    """
    flat, wanted = hidden.flatten(0, 1), torch.is_grad_enabled()
    size = chunk_tokens(len(head), chunk_bytes)
    operand = operand_type(flat)
    needs = (wanted and hidden.requires_grad, wanted and head.requires_grad)
    with torch.autocast(flat.device.type, enabled=False):
        total: Tensor = _SummedLoss.apply(flat, head, targets.flatten(), size, operand, needs)  # type: ignore[no-untyped-call]
    return total


def chunk_tokens(vocabulary_size: int, chunk_bytes: int) -> int:
    """Return the tokens per chunk such that two float32 matrices `(token, vocabulary)` fit."""
    return max(MINIMUM_CHUNK_TOKENS, chunk_bytes // (2 * vocabulary_size * torch.float32.itemsize))


class _SummedLoss(torch.autograd.Function):
    """Computes loss and gradients in the forward pass; the backward pass scales the gradients."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        size: int,
        operand: torch.dtype,
        needs: tuple[bool, bool],
    ) -> Tensor:
        accumulator = torch.float64 if head.dtype == torch.float64 else torch.float32
        weight = head.to(operand)
        d_hidden = torch.empty_like(hidden, dtype=operand) if needs[0] else None
        d_head = torch.zeros_like(head, dtype=accumulator) if needs[1] else None
        total = torch.zeros((), dtype=accumulator, device=head.device)
        for part in chunks(len(hidden), size):
            rows = hidden[part].to(operand)
            scores = (rows @ weight.T).to(accumulator)
            total += _loss_and_gradient(scores, targets[part], with_gradient=any(needs))
            gradient = scores.to(operand)
            if d_hidden is not None:
                torch.mm(gradient, weight, out=d_hidden[part])
            if d_head is not None:
                d_head += gradient.T @ rows
        ctx.gradients = (d_hidden, d_head)
        ctx.types = (hidden.dtype, head.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the chunked loss was backpropagated a second time; it scales its gradients in "
                "place, so compute the loss again or use implementation='plain'"
            )
        scaled = [
            None if gradient is None else gradient.mul_(upstream).to(dtype)
            for gradient, dtype in zip(ctx.gradients, ctx.types, strict=True)
        ]
        ctx.gradients = None
        return *scaled, None, None, None, None


def _loss_and_gradient(scores: Tensor, targets: Tensor, *, with_gradient: bool) -> Tensor:
    normaliser = scores.logsumexp(dim=1, keepdim=True)
    picked = targets.unsqueeze(1)
    loss = normaliser.sum() - scores.gather(1, picked).sum()
    if with_gradient:
        scores.sub_(normaliser).exp_()
        scores.scatter_add_(1, picked, scores.new_full((1, 1), -1.0).expand_as(picked))
    return loss


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

    The state is carried from one segment to the next, so the result does not depend on the size of
    the segments.
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
    state, head = None, model.embedding.weight
    for start in range(0, len(text) - 1, segment_tokens):
        segment = text[start : start + segment_tokens + 1].astype(np.int64)
        tokens = torch.from_numpy(segment).to(device).unsqueeze(0)
        hidden, state = model.advance(tokens[:, :-1], state)
        targets = tokens[:, 1:].contiguous()
        yield float(summed_loss(hidden, head, targets, chunk_bytes=chunk_bytes))


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
    mean = sums / len(windows)
    edges = [0, *(2**i for i in range(math.ceil(math.log2(time)))), time] if time > 1 else [0, 1]
    return [
        PositionBucket(first, end - 1, float(mean[first:end].mean()))
        for first, end in itertools.pairwise(edges)
    ]
