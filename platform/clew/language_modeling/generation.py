"""Generates text token by token; the cost of a step does not depend on the length of the text."""

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
"""Below this temperature, the likeliest token is taken, because logits could become infinite."""
PROMPT_SEGMENT = 4096
"""Tokens of a prompt that go through the model at once; this affects memory, but not results."""


@dataclass(frozen=True)
class TextState:
    """The state after some tokens, which is everything that the next tokens depend on."""

    carried: CarriedState
    hidden: Float[Tensor, "batch 1 dim"]
    """Hidden vector after the last token, which gives the logits of the next token."""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from its logits."""

    temperature: float = 1.0
    """Divisor of the logits; 0, or a number close to 0, takes the likeliest token."""
    top_p: float = 1.0
    """Draw only from the smallest set of most likely tokens whose total probability is at least
    `top_p` (nucleus sampling; Holtzman et al., 2020, arXiv 1904.09751, section 3.1)."""

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise ConfigError(
                f"temperature is {self.temperature:g} and top_p {self.top_p:g}; expected a "
                "temperature of at least 0, and a top_p above 0 and at most 1"
            )

    def draw(
        self, logits: Float[Tensor, "batch token"], generator: torch.Generator | None
    ) -> Int[Tensor, "batch 1"]:
        if self.temperature < LEAST_TEMPERATURE:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(dim=-1) - ordered
            # Keep the likeliest token, even if top_p is zero in float32.
            ordered = ordered.masked_fill((before >= self.top_p) & (before > 0), 0.0)
            probabilities = torch.zeros_like(ordered).scatter(-1, tokens, ordered)
        if not torch.isfinite(probabilities).all():
            raise NonFiniteLossError(
                "the logits of the next token are not finite; the model or the state is damaged"
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
    """Return the state after reading one or more tokens that continue a text.

    Args:
        model: Model in evaluation mode.
        tokens: Tokens on the model's device.
        state: State of the text before the tokens; None at the start of a text.
        segment: Tokens that go through the model at once.
        progress: Called with the number of tokens read so far and the total number of tokens.
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
    """Yield the next tokens of a text without end, each with the state after it.

    Args:
        model: Model in evaluation mode.
        state: State of the text so far.
        sampling: How tokens are drawn.
        generator: Random generator; tokens are drawn on its device.
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
    """Return `num_tokens` tokens that continue each prompt, `(batch, num_tokens)`.

    Args:
        model: Model in evaluation mode.
        prompt: One or more tokens for each text.
        num_tokens: Number of tokens to generate.
        sampling: How tokens are drawn.
        generator: Random generator.
    """
    written = write_text(model, read_text(model, prompt), sampling, generator)
    return torch.cat([token for token, _ in itertools.islice(written, num_tokens)], dim=1)
