"""Reads a prompt and generates its continuation, from the start or from a paused text.

Tokens are generated one by one. The text of an incomplete character is held back until the
character is complete.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from clew.errors import ConfigError, DataError, quoted
from clew.language_modeling.generation import Sampling, TextState, read_text, write_text
from clew.language_modeling.model_folder import TextModel
from clew.language_modeling.state_file import PausedText
from clew.language_modeling.tokenizers import Tokenizer

DEFAULT_SEED = 0
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 4
"""Tokens of the prompt for decoding the first piece, because some tokenizers' spaces need them."""


class TextWriter:
    """Reads and continues one text, with its state and its random generator.

    Args:
        text_model: The language model.
        start: A paused text to continue; None: a new text.
        seed: Seed for drawing tokens; None: the generator of `start` continues, or `DEFAULT_SEED`
            for a new text.
    """

    def __init__(
        self, text_model: TextModel, start: PausedText | None = None, *, seed: int | None = None
    ) -> None:
        self._model, self._tokenizer = text_model.model, text_model.tokenizer
        self._generator = torch.Generator().manual_seed(DEFAULT_SEED if seed is None else seed)
        self._state: TextState | None = None
        self._pieces = TextPieces(self._tokenizer)
        if start is not None:
            self._state = start.state
            self._pieces = TextPieces(self._tokenizer, start.tokens.tolist(), start.num_shown)
            if seed is None:
                self._generator.set_state(start.draws)

    def read(
        self, prompt: str, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Read a prompt, which is appended to the text so far.

        Raises:
            UsageError: The prompt cannot be encoded; see `encode_prompt`.
        """
        tokens = encode_prompt(self._tokenizer, prompt)
        inputs = torch.from_numpy(tokens.astype(np.int64)).unsqueeze(0)
        device = self._model.embedding.weight.device
        self._state = read_text(self._model, inputs.to(device), self._state, progress=progress)
        self._pieces = TextPieces.after(self._tokenizer, tokens)

    def write(self, max_tokens: int, sampling: Sampling) -> Iterator[str]:
        """Yield one piece of text per token; incomplete characters are held back."""
        assert self._state is not None
        written = write_text(self._model, self._state, sampling, self._generator)
        for token, state in itertools.islice(written, max_tokens):
            self._state = state
            yield self._pieces.add(int(token))

    def rest(self) -> str:
        """Return the text of a character that was held back and did not become complete."""
        return self._pieces.rest()

    def paused(self) -> PausedText:
        assert self._state is not None
        tokens = torch.tensor(self._pieces.tokens, dtype=torch.int64)
        return PausedText(self._state, self._generator.get_state(), tokens, self._pieces.num_shown)


class TextPieces:
    """Converts tokens to pieces of text, whose concatenation is the text of all tokens.

    Args:
        tokenizer: Tokenizer that decodes the tokens.
        tokens: Earlier tokens: those whose text was shown, then those whose text was held back.
        num_shown: Number of `tokens` whose text was shown.
    """

    def __init__(
        self, tokenizer: Tokenizer, tokens: Sequence[int] = (), num_shown: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self.tokens, self.num_shown = list(tokens), num_shown

    @classmethod
    def after(cls, tokenizer: Tokenizer, prompt: np.ndarray) -> "TextPieces":
        """Return an instance for the tokens after a prompt `(token,)`."""
        context = prompt[-CONTEXT_TOKENS:].tolist()
        return cls(tokenizer, context, len(context))

    def add(self, token: int) -> str:
        """Return the text that one more token adds; empty while a character is incomplete."""
        self.tokens.append(token)
        return "" if self._decode(self.tokens).endswith(REPLACEMENT) else self.rest()

    def rest(self) -> str:
        """Return the text that was held back, which can be empty."""
        text = self._decode(self.tokens)[len(self._decode(self.tokens[: self.num_shown])) :]
        self.tokens = self.tokens[self.num_shown :] or self.tokens
        self.num_shown = len(self.tokens)
        return text

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(np.array(tokens, dtype=np.int64))


def continuation(
    text_model: TextModel,
    prompt: str,
    *,
    max_tokens: int = 200,
    sampling: Sampling | None = None,
    seed: int = DEFAULT_SEED,
) -> str:
    """Return generated text that continues a prompt.

    Raises:
        UsageError: The prompt cannot be encoded; see `encode_prompt`.
    """
    writer = TextWriter(text_model, seed=seed)
    writer.read(prompt)
    return "".join(writer.write(max_tokens, sampling or Sampling())) + writer.rest()


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the tokens of a prompt, `(token,)`.

    Raises:
        ConfigError: The prompt has no token or is not UTF-8, which can happen in a terminal.
        DataError: The prompt contains text that the tokenizer has no token for.
    """
    try:
        text = prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the prompt is not UTF-8 text: character {error.start + 1} is "
            f"{prompt[error.start]!r}; give the prompt as UTF-8, for example with --prompt-file"
        ) from None
    unknown = tokenizer.first_unknown(prompt)
    if unknown is not None:
        raise DataError(
            f"the prompt contains {quoted(unknown)}, for which the model's tokenizer has no token; "
            "remove it, or train with a tokenizer that can encode it, such as bytes"
        )
    tokens = tokenizer.encode(text)
    if not len(tokens):
        raise ConfigError(f"the prompt {quoted(prompt)} has no token; expected text to continue")
    return tokens
