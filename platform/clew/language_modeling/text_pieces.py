"""Text of tokens that come one by one: a character that is not complete yet waits."""

from collections.abc import Sequence

import numpy as np

from clew.language_modeling.tokenizers import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 4
"""Tokens of the prompt that the first piece is decoded with: some tokenizers' spaces need it."""


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
