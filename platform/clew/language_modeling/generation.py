"""Continue a text token by token, carrying the state: a step costs the same however long it is."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.errors import ConfigError, NonFiniteLossError
from clew.language_modeling.model import CarriedState, EigenstateLM

LEAST_TEMPERATURE = 1e-6
"""Below it, only the likeliest token could be drawn, and logits would become infinite."""
PROMPT_SEGMENT = 4096
"""Tokens of a prompt that go through the model at once; changes memory, not results."""


@dataclass(frozen=True)
class TextState:
    """Where texts have come to: all that what follows depends on."""

    carried: CarriedState
    hidden: Float[Tensor, "batch 1 dim"]
    """After the last token; it gives the logits of the next one."""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from its logits."""

    temperature: float = 1.0
    """Divides the logits; 0, or nearly 0, takes the likeliest token."""
    top_p: float = 1.0
    """Draw only among the fewest of the most likely tokens that together have this probability
    (nucleus sampling; Holtzman et al., 2020, arXiv 1904.09751, section 3.1)."""

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise ConfigError(
                f"temperature is {self.temperature:g} and top_p {self.top_p:g}; expected a number "
                "from 0 on, and one above 0 up to 1"
            )

    def draw(
        self, logits: Float[Tensor, "batch token"], generator: torch.Generator | None
    ) -> Int[Tensor, "batch 1"]:
        """Draw one token for each row."""
        if self.temperature < LEAST_TEMPERATURE:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(dim=-1) - ordered
            # The likeliest token stays, also where float32 takes top_p for zero.
            ordered = ordered.masked_fill((before >= self.top_p) & (before > 0), 0.0)
            probabilities = torch.zeros_like(ordered).scatter(-1, tokens, ordered)
        if not torch.isfinite(probabilities).all():
            raise NonFiniteLossError(
                "the scores of the next token are not finite; the model or the state is damaged"
            )
        return torch.multinomial(probabilities, 1, generator=generator)


@torch.no_grad()
def read_text(
    model: EigenstateLM,
    tokens: Int[Tensor, "batch time"],
    state: TextState | None = None,
    *,
    segment: int = PROMPT_SEGMENT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TextState:
    """Return the state after one token or more that follow those behind `state`.

    Args:
        model: In evaluation mode.
        tokens: On the model's device.
        state: None at the start of a text.
        segment: Tokens that go through the model at once.
        progress: Called with the number of tokens read and in total.
    """
    carried, done = state.carried if state else None, 0
    for part in torch.split(tokens, segment, dim=1):
        hidden, carried = model.advance(part, carried)
        done += part.shape[1]
        progress(done, tokens.shape[1])
    assert carried is not None
    return TextState(carried, hidden[:, -1:])


def write_text(
    model: EigenstateLM, state: TextState, sampling: Sampling, generator: torch.Generator | None
) -> Iterator[tuple[Int[Tensor, "batch 1"], TextState]]:
    """Yield the tokens that follow, one after the other, each with the state after it.

    Args:
        model: In evaluation mode.
        state: What was read before.
        sampling: How tokens are drawn.
        generator: Source of randomness; logits are drawn from where it is.
    """
    while True:
        with torch.no_grad():
            logits = model.logits(state.hidden)[:, 0].float()
            place = logits.device if generator is None else generator.device
            token = sampling.draw(logits.to(place), generator).to(logits.device)
            state = read_text(model, token, state)
        yield token, state


def generate(
    model: EigenstateLM,
    prompt: Int[Tensor, "batch time"],
    num_tokens: int,
    sampling: Sampling,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch more"]:
    """Return `num_tokens` tokens that follow each prompt, `(batch, num_tokens)`.

    Args:
        model: In evaluation mode.
        prompt: One token or more for each text.
        num_tokens: How many to add.
        sampling: How tokens are drawn.
        generator: Source of randomness.
    """
    written = write_text(model, read_text(model, prompt), sampling, generator)
    return torch.cat([token for token, _ in itertools.islice(written, num_tokens)], dim=1)
