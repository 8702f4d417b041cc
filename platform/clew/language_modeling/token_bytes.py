"""How many bytes of text the tokens of a pack stand for: exactly, whatever the tokenizer."""

from dataclasses import dataclass

import numpy as np

TOKENS_AT_ONCE = 2**22


@dataclass(frozen=True)
class TokenBytes:
    """Counts bytes of a stretch of tokens, or tokens of a stretch of bytes."""

    tokens: np.ndarray
    """All tokens of the pack, `(token,)`."""
    by_vocabulary: np.ndarray | None
    """Bytes of each entry of the vocabulary; None where they depend on the text."""
    by_place: np.ndarray | None
    """Bytes of each token of the pack, `(token,)`, where the vocabulary does not say."""

    def total(self, start: int, end: int) -> int:
        """Return the bytes of the tokens from `start` to `end`."""
        return sum(
            int(self._each(at, min(at + TOKENS_AT_ONCE, end)).sum())
            for at in range(start, end, TOKENS_AT_ONCE)
        )

    def num_tokens(self, num_bytes: int) -> int:
        """Return how many tokens from the start it takes to cover so many bytes, at most all."""
        left = num_bytes
        for start in range(0, len(self.tokens), TOKENS_AT_ONCE):
            if left <= 0:
                return start
            covered = np.cumsum(self._each(start, start + TOKENS_AT_ONCE), dtype=np.int64)
            if covered[-1] >= left:
                return start + int(np.searchsorted(covered, left)) + 1
            left -= int(covered[-1])
        return len(self.tokens)

    def _each(self, start: int, end: int) -> np.ndarray:
        if self.by_place is not None:
            return self.by_place[start:end]
        assert self.by_vocabulary is not None
        lengths: np.ndarray = self.by_vocabulary[self.tokens[start:end]]
        return lengths
