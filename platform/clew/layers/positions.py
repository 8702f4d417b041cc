"""Where documents begin in a sequence of tokens, for a model that reads each by itself."""

import torch
from jaxtyping import Int
from torch import Tensor

Positions = Int[Tensor, "batch time"]
"""Tokens of the same document before each token; a document begins where there are none."""


def positions_in_documents(
    tokens: Int[Tensor, "batch time"], end_of_text: int, first: Int[Tensor, "batch"] | None
) -> tuple[Positions, Int[Tensor, "batch"]]:
    """Return each token's position in its document, and that of the token that will follow.

    Args:
        tokens: Documents, each followed by `end_of_text`, which is its last token.
        end_of_text: The token that ends a document.
        first: Position of the first token of each row; None: a document begins there.
    """
    if first is None:
        first = tokens.new_zeros(tokens.shape[0])
    time = torch.arange(tokens.shape[1], device=tokens.device)
    before = -first.unsqueeze(1)
    ended = tokens == end_of_text
    # Where the document of the following token began; before this part of the sequence if below 0.
    begins = torch.cat([before, torch.where(ended, time + 1, before)], dim=1).cummax(1).values
    return time - begins[:, :-1], tokens.shape[1] - begins[:, -1]
