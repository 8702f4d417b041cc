"""Tokenizers: bytes, and those of the package `tokenizers`.

Every tokenizer has an end-of-text token that no text encodes to; it separates documents.
"""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers

from clew.errors import DataError

logger = logging.getLogger(__name__)

BYTES = "bytes"
BPE = "bpe"
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"


class Tokenizer(Protocol):
    """Turns text into numbers and back."""

    vocabulary_size: int
    end_of_text: int
    fingerprint: str

    def byte_lengths(self) -> np.ndarray | None:
        """Return how many bytes of text each token stands for, `(token,)`; None if that varies."""
        ...

    def encode(self, text: bytes) -> np.ndarray:
        """Return the tokens of UTF-8 text, `(token,)`."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of tokens `(token,)`; the end of a text becomes a line of its own."""
        ...


class ByteTokenizer:
    """A token for each byte, and one for the end of a text."""

    vocabulary_size = 257
    end_of_text = 256
    fingerprint = BYTES

    def byte_lengths(self) -> np.ndarray:
        """Return one for each byte, zero for the end of a text."""
        return np.append(np.ones(256, dtype=np.int64), 0)

    def encode(self, text: bytes) -> np.ndarray:
        """Return the bytes."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text; bytes that are not UTF-8 become the replacement character."""
        pieces = np.split(tokens, np.flatnonzero(tokens == self.end_of_text))
        texts = [piece[piece != self.end_of_text].astype(np.uint8).tobytes() for piece in pieces]
        return f"\n{END_OF_TEXT}\n".join(text.decode("utf-8", "replace") for text in texts)


class FileTokenizer:
    """A tokenizer of the package `tokenizers`, from its JSON file.

    If its vocabulary has no end-of-text token, one is added after it.
    """

    def __init__(self, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: no tokenizer can be read there ({error.strerror})") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            reason = " ".join(str(error).split())
            raise DataError(
                f"{path}: not a tokenizer that the package tokenizers reads ({reason})"
            ) from None
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
        known: int | None = self._tokenizer.token_to_id(END_OF_TEXT)
        size: int = self._tokenizer.get_vocab_size()
        self.end_of_text = size if known is None else known
        self.vocabulary_size = size + (known is None)

    def byte_lengths(self) -> np.ndarray | None:
        """Return the lengths of byte-level tokens, whose every character stands for a byte."""
        if type(self._tokenizer.decoder).__name__ != "ByteLevel":
            return None
        names = (self._tokenizer.id_to_token(i) or "" for i in range(self.vocabulary_size))
        lengths = np.fromiter((len(name) for name in names), dtype=np.int64)
        lengths[self.end_of_text] = 0
        return lengths

    def encode(self, text: bytes) -> np.ndarray:
        """Return the tokens of UTF-8 text."""
        encoding = self._tokenizer.encode(text.decode("utf-8"), add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.uint32)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text of tokens."""
        pieces = np.split(tokens, np.flatnonzero(tokens == self.end_of_text))
        texts = [self._tokenizer.decode(p[p != self.end_of_text].tolist()) for p in pieces]
        return f"\n{END_OF_TEXT}\n".join(texts)


def train_bpe(texts: Iterator[str], vocabulary_size: int, path: Path) -> None:
    """Train a byte-level BPE vocabulary on texts and write its JSON file."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found: int = tokenizer.get_vocab_size()
    if found < vocabulary_size:
        logger.warning("the text yields a vocabulary of %d, not %d", found, vocabulary_size)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(tokenizer.to_str(), encoding="utf-8")
    temporary.rename(path)


def load_tokenizer(name: str, folder: Path | None = None) -> Tokenizer:
    """Return `bytes`, or the tokenizer of a JSON file; `bpe` is the one trained into `folder`."""
    if name == BYTES:
        return ByteTokenizer()
    if name == BPE and folder is not None:
        return FileTokenizer(folder / TOKENIZER_FILE)
    return FileTokenizer(Path(name).expanduser())
