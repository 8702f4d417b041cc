"""Reads a prompt and writes what follows, from the start or from where a text has come to.

Tokens come one by one; of their text, a character that is not complete yet waits.
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
"""Tokens of the prompt that the first piece is decoded with: some tokenizers' spaces need it."""


class TextWriter:
    """One text: what was read and written of it, and the draws of what follows.

    Args:
        text_model: The language model.
        start: Where the text has come to; None: it begins.
        seed: Of the draws; None: those of `start` go on, or `DEFAULT_SEED`.
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
        """Read a prompt, which follows what was read and written before.

        Raises:
            UsageError: it cannot be encoded; see `encode_prompt`.
        """
        tokens = encode_prompt(self._tokenizer, prompt)
        inputs = torch.from_numpy(tokens.astype(np.int64)).unsqueeze(0)
        device = self._model.embedding.weight.device
        self._state = read_text(self._model, inputs.to(device), self._state, progress=progress)
        self._pieces = TextPieces.after(self._tokenizer, tokens)

    def write(self, max_tokens: int, sampling: Sampling) -> Iterator[str]:
        """Yield the pieces of what follows, as far as their characters are complete."""
        assert self._state is not None
        written = write_text(self._model, self._state, sampling, self._generator)
        for token, state in itertools.islice(written, max_tokens):
            self._state = state
            yield self._pieces.add(int(token))

    def rest(self) -> str:
        """Return what is left of a character that did not become complete."""
        return self._pieces.rest()

    def paused(self) -> PausedText:
        """Return where the text has come to."""
        assert self._state is not None
        tokens = torch.tensor(self._pieces.tokens, dtype=torch.int64)
        return PausedText(self._state, self._generator.get_state(), tokens, self._pieces.num_shown)


class TextPieces:
    """Turns tokens into pieces of text; together they are the text of all tokens.

    Args:
        tokenizer: Gives tokens their text.
        tokens: What came before: tokens whose text was shown, then tokens whose text waits.
        num_shown: How many of them were shown.
    """

    def __init__(
        self, tokenizer: Tokenizer, tokens: Sequence[int] = (), num_shown: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self.tokens, self.num_shown = list(tokens), num_shown

    @classmethod
    def after(cls, tokenizer: Tokenizer, prompt: np.ndarray) -> "TextPieces":
        """Return the pieces that follow a prompt's tokens `(token,)`."""
        context = prompt[-CONTEXT_TOKENS:].tolist()
        return cls(tokenizer, context, len(context))

    def add(self, token: int) -> str:
        """Return what one more token adds; nothing while a character is not complete."""
        self.tokens.append(token)
        return "" if self._decode(self.tokens).endswith(REPLACEMENT) else self.rest()

    def rest(self) -> str:
        """Return the text that waits, as far as it is any."""
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
    """Return the text that follows a prompt.

    Raises:
        UsageError: the prompt cannot be encoded; see `encode_prompt`.
    """
    writer = TextWriter(text_model, seed=seed)
    writer.read(prompt)
    return "".join(writer.write(max_tokens, sampling or Sampling())) + writer.rest()


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the tokens of a prompt, `(token,)`.

    Raises:
        ConfigError: it is not UTF-8, as what a terminal passes on may be.
        DataError: it holds something that the tokenizer has no token for.
    """
    try:
        text = prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the prompt is no UTF-8 text: character {error.start + 1} is "
            f"{prompt[error.start]!r}; give it as UTF-8, in a file with --prompt-file if need be"
        ) from None
    unknown = tokenizer.first_unknown(prompt)
    if unknown is not None:
        raise DataError(
            f"the prompt holds {quoted(unknown)}, for which the model's tokenizer has no token; "
            "leave it out, or train with a tokenizer that knows it, such as bytes"
        )
    tokens = tokenizer.encode(text)
    if not len(tokens):
        raise ConfigError(f"the prompt {quoted(prompt)} has no token; expected text to continue")
    return tokens
