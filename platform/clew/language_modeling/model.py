"""A language model of eigenstate layers: parallel over a window, recurrent in generation.

Design choices:

- There are no position embeddings, because the recurrence depends on the order of tokens.
- The head is the token embedding. The model returns hidden vectors, so that a loss can process
  tokens in chunks and never store all logits.
- A sequence can contain several documents, each followed by the end-of-text token. By default, the
  state continues from one document to the next. With `reset_at_documents`, each document is read
  independently; then only the first token of a document is predicted from the document before it.
- Training can also predict tokens further ahead, each from a linear map of the same hidden vector
  (after Gloeckle et al., 2024, arXiv 2404.19737, whose heads are whole layers).
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.errors import ConfigError, NonFiniteLossError
from clew.layers.eigenstate import EigenstateBlock, Hidden, LayerState, Positions, ShortConvolution
from clew.layers.training_mode import dropout, recomputed
from clew.subject import go_on

Tokens = Int[Tensor, "batch time"]
Logits = Float[Tensor, "batch time token"]


@dataclass(frozen=True)
class CarriedState:
    """The state of the model between parts of a sequence; its size does not grow with time."""

    layers: tuple[LayerState, ...]
    position: Int[Tensor, "batch"] | None = None
    """Position of the next token in its document; None without `reset_at_documents`."""


class EigenstateLM(nn.Module):
    """Token embedding, eigenstate blocks, normalisation; the embedding is also the head."""

    def __init__(
        self, vocabulary_size: int, config: EigenstateLMModel, *, end_of_text: int | None = None
    ) -> None:
        super().__init__()
        if config.reset_at_documents and end_of_text is None:
            raise ValueError("reset_at_documents is set, but no end_of_text token is given")
        self.config, self.end_of_text = config, end_of_text
        self.recomputes = False
        self.embedding = nn.Embedding(vocabulary_size, config.d_model)
        dim, count = config.d_model, config.further_tokens
        self.further = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(count))
        for weight in self.further.parameters():
            nn.init.eye_(weight)
        self.blocks = nn.ModuleList(EigenstateBlock(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tokens) -> Hidden:
        """Return the hidden vector after each token, `(batch, time, dim)`, from an empty state."""
        x, (positions, _) = self._embed(tokens), self._positions(tokens, None)
        recomputes = self.recomputes and self.training and torch.is_grad_enabled()
        for block in self.blocks:

            def run(x: Tensor, block: nn.Module = block) -> Tensor:
                return block(x, None, positions)[0]  # type: ignore[no-any-return]

            x = recomputed(run, x, within=block) if recomputes else run(x)
        return self.norm(x)  # type: ignore[no-any-return]

    def advance(self, tokens: Tokens, state: CarriedState | None) -> tuple[Hidden, CarriedState]:
        """Return the hidden vectors of the tokens that come after `state`, and the new state."""
        before = state.layers if state is not None else [None] * len(self.blocks)
        x, after = self._embed(tokens), []
        positions, position = self._positions(tokens, state)
        for block, layer in zip(self.blocks, before, strict=True):
            x, left = block(x, layer, positions)
            after.append(left)
        return self.norm(x), CarriedState(tuple(after), position)

    def logits(self, hidden: Hidden) -> Logits:
        """Return the logits of the token after each hidden vector."""
        return F.linear(hidden, self.embedding.weight)

    def enable_gradient_checkpointing(self) -> None:
        """Keep only the input of each block, and run each block again in the backward pass."""
        self.recomputes = True

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return the parameters that are not matrices, and the filters.

        These are rates and frequencies of eigenvalues, scales of normalisation, biases and filters.
        Decay towards zero would give a rate a time constant of one step, which is not simpler, and
        a filter would become zero.
        """
        filters = [m.kernel for m in self.modules() if isinstance(m, ShortConvolution)]
        vectors = [p for p in self.parameters() if p.dim() == 1]
        return vectors + [kernel for kernel in filters if kernel is not None]

    def _positions(
        self, tokens: Tokens, state: CarriedState | None
    ) -> tuple[Positions | None, Tensor | None]:
        if not self.config.reset_at_documents:
            return None, None
        assert self.end_of_text is not None
        first = None if state is None else state.position
        return positions_in_documents(tokens, self.end_of_text, first)

    def _embed(self, tokens: Tokens) -> Hidden:
        return dropout(self.embedding(tokens), self.config.dropout, self.training)


def positions_in_documents(
    tokens: Int[Tensor, "batch time"], end_of_text: int, first: Int[Tensor, "batch"] | None
) -> tuple[Positions, Int[Tensor, "batch"]]:
    """Return the position of each token in its document, and the position of the next token.

    Args:
        tokens: Documents, each of which has `end_of_text` as its last token.
        end_of_text: The token that ends a document.
        first: Position of the first token of each row; None: each row starts a document.
    """
    if first is None:
        first = tokens.new_zeros(tokens.shape[0])
    time = torch.arange(tokens.shape[1], device=tokens.device)
    before = -first.unsqueeze(1)
    ended = tokens == end_of_text
    # Start of the document of the next token; negative if it is before this part of the sequence.
    begins = torch.cat([before, torch.where(ended, time + 1, before)], dim=1).cummax(1).values
    return time - begins[:, :-1], tokens.shape[1] - begins[:, -1]


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
    """Return the state after reading one or more tokens that continue a text."""
    carried, done = state.carried if state else None, 0
    for part in torch.split(tokens, segment, dim=1):
        go_on()
        hidden, carried = model.advance(part, carried)
        done += part.shape[1]
        progress(done, tokens.shape[1])
    assert carried is not None
    return TextState(carried, hidden[:, -1:])


def write_text(
    model: EigenstateLM, state: TextState, sampling: Sampling, generator: torch.Generator | None
) -> Iterator[tuple[Int[Tensor, "batch 1"], TextState]]:
    """Yield the next tokens of a text without end, each with the state after it."""
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
    """Return `num_tokens` tokens that continue each prompt, `(batch, num_tokens)`."""
    written = write_text(model, read_text(model, prompt), sampling, generator)
    return torch.cat([token for token, _ in itertools.islice(written, num_tokens)], dim=1)
