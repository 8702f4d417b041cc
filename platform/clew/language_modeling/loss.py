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

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

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

    Args:
        hidden: Output of the model for each token.
        head: Token embedding W.
        targets: The next token after each token.
        chunk_bytes: Memory budget for the float32 logits of a chunk and their gradient.
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
