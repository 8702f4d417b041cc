"""Continue a text token by token, carrying the state: a step costs the same however long it is."""

import torch
from jaxtyping import Int
from torch import Tensor

from clew.language_modeling.model import EigenstateLM


@torch.no_grad()
def generate(
    model: EigenstateLM,
    prompt: Int[Tensor, "batch time"],
    num_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch more"]:
    """Return `num_tokens` tokens that follow each prompt, `(batch, num_tokens)`.

    Args:
        model: In evaluation mode.
        prompt: One token or more for each text.
        num_tokens: How many to add.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Draw only among this many of the most likely tokens.
        generator: Source of randomness.
    """
    hidden, state = model.advance(prompt, None)
    drawn: list[Tensor] = []
    for _ in range(num_tokens):
        logits = model.logits(hidden[:, -1:])[:, 0].float()
        token = _draw(logits, temperature, top_k, generator)
        drawn.append(token)
        hidden, state = model.advance(token, state)
    return torch.cat(drawn, dim=1)


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """Draw one token for each row of logits, `(batch, 1)`."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=generator)
