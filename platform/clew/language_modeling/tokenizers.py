"""Tokenizers: bytes, and tokenizers of the package `tokenizers`.

Every tokenizer has an end-of-text token, which separates documents. No text encodes to this token.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import ConfigError, DataError, described, extra, quoted, refusing
from clew.files import expanded, write_whole

logger = logging.getLogger(__name__)

BYTES = "bytes"
BPE = "bpe"
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
MAX_FILE_BYTES = 2**27
MAX_GROWTH = 1000
_WITHIN_END_OF_TEXT = re.compile(r"(?<=<\|endof)(?=text\|>)", re.IGNORECASE)


class ByteTokenizer:
    """A tokenizer with one token per byte, and one for the end of a text."""

    vocabulary_size = 257
    end_of_text = 256
    fingerprint = BYTES

    def byte_lengths(self) -> np.ndarray:
        return np.append(np.ones(256, dtype=np.int64), 0)

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text; bytes that are not UTF-8 become the replacement character."""
        pieces = np.split(tokens, np.flatnonzero(tokens == self.end_of_text))
        texts = [piece[piece != self.end_of_text].astype(np.uint8).tobytes() for piece in pieces]
        return f"\n{END_OF_TEXT}\n".join(text.decode("utf-8", "replace") for text in texts)

    def first_unknown(self, text: str) -> None:
        """Return None, because every text can be encoded as bytes."""


class FileTokenizer:
    """A tokenizer of the package `tokenizers`, loaded from its JSON file.

    Truncation and padding in the file are ignored. Names of special tokens in a text are encoded as
    ordinary text. If the vocabulary has no end-of-text token, one is added at its end.
    """

    def __init__(self, path: Path) -> None:
        with extra("language"):
            import tokenizers
        with refusing(f"{path}: cannot be read as a tokenizer", OSError):
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DataError(f"{path}: larger than {MAX_FILE_BYTES:,} bytes; not a tokenizer")
            content = path.read_bytes()
        try:
            text = content.decode("utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            json.loads(text)  # the library accepts more than JSON
            # Read the settings from the library, because the file can have them in another form.
            settings = json.loads(self._tokenizer.to_str())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises plain Exception and Rust panics
            raise DataError(
                f"{path}: not a tokenizer that the package tokenizers can read ({described(error)})"
            ) from None
        if _growth({k: part for k, part in settings.items() if k != "model"}) > MAX_GROWTH:
            raise DataError(
                f"{path}: its replacements can make a text more than {MAX_GROWTH:,} times as long; "
                "use another tokenizer"
            )
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._path = path
        self._is_byte_level = _is_byte_level(settings)
        self._unknown = self._unknown_token(settings.get("model") or {})
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]
        known: int | None = self._tokenizer.token_to_id(END_OF_TEXT)
        size: int = 1 + max(self._tokenizer.get_vocab().values(), default=-1)  # ids can have gaps
        self.end_of_text = size if known is None else known
        self.vocabulary_size = size + (known is None)

    def byte_lengths(self) -> np.ndarray | None:
        """Return the number of text bytes of each token, `(token,)`; None if it varies.

        In byte-level tokens, each character represents one byte.
        """
        if not self._is_byte_level:
            return None
        names = (self._tokenizer.id_to_token(i) or "" for i in range(self.vocabulary_size))
        lengths = np.fromiter((len(name) for name in names), dtype=np.int64)
        for token, added in self._tokenizer.get_added_tokens_decoder().items():
            lengths[token] = len(added.content.encode())
        lengths[self.end_of_text] = 0
        return lengths

    def encode(self, text: bytes) -> np.ndarray:
        parts = [encoding.ids for _, encoding in self._encodings(text.decode("utf-8"))]
        return np.concatenate([np.asarray(ids, dtype=np.uint32) for ids in parts])

    def encode_with_bytes(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of UTF-8 text, and the number of bytes of each token.

        The bytes of a token are those between the end of the previous token and its own end. The
        last token also includes the bytes after it.
        """
        tokens, lengths = [], []
        for part, encoding in self._encodings(text.decode("utf-8")):
            tokens.append(np.asarray(encoding.ids, dtype=np.uint32))
            characters = np.frombuffer(part.encode("utf-32-le"), dtype="<u4")
            widths = 1 + sum(characters >= first for first in (0x80, 0x800, 0x10000))
            bytes_before = np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
            ends = bytes_before[np.array([end for _, end in encoding.offsets], dtype=np.int64)]
            ends[-1:] = bytes_before[-1]
            lengths.append(np.diff(np.maximum.accumulate(ends), prepend=0))
        return np.concatenate(tokens), np.concatenate(lengths)

    def _encodings(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield parts of the text with their encodings, which contain no end-of-text token."""
        encoding = self._encoding(text)
        if self.end_of_text not in encoding.ids:
            yield text, encoding
            return
        # The end-of-text token is an ordinary word of this vocabulary, and the text contains it.
        # If the word is split in half, its parts do not encode to the token.
        for part in _WITHIN_END_OF_TEXT.split(text):
            encoding = self._encoding(part)
            if self.end_of_text in encoding.ids:
                raise DataError(
                    f"{self._path}: this tokenizer encodes other text (perhaps unknown text) as "
                    f"{END_OF_TEXT}, which separates documents; use another tokenizer"
                )
            yield part, encoding

    def _encoding(self, text: str) -> Any:
        what = f"{self._path}: this tokenizer cannot encode {quoted(text)}"
        with refusing(what, Exception):  # the library raises only this type
            return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, tokens: np.ndarray) -> str:
        pieces = np.split(tokens, np.flatnonzero(tokens == self.end_of_text))
        texts = [self._tokenizer.decode(p[p != self.end_of_text].tolist()) for p in pieces]
        return f"\n{END_OF_TEXT}\n".join(texts)

    def first_unknown(self, text: str) -> str | None:
        """Return the first part of a text that has no token, or that becomes the unknown token.

        Spaces and characters that are not printable do not count, because tokenizers remove them.
        """
        for part, encoding in self._encodings(text):
            covered = np.zeros(len(part), dtype=bool)
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token == self._unknown:
                    return part[start:end]
                covered[start:end] = True
            left_out = (part[place] for place in np.flatnonzero(~covered))
            if found := next((c for c in left_out if c.isprintable() and c != " "), None):
                return found
        return None

    def _unknown_token(self, model: dict[str, Any]) -> int | None:
        if isinstance(model.get("unk_id"), int):
            return int(model["unk_id"])
        name = model.get("unk_token")
        found: int | None = self._tokenizer.token_to_id(name) if name else None
        return found


Tokenizer = ByteTokenizer | FileTokenizer


def _growth(settings: Any) -> int:
    """Return by how much all replacements in the settings of a tokenizer can lengthen a text."""
    parts = settings.values() if isinstance(settings, dict) else settings
    growth = math.prod(_growth(part) for part in parts if isinstance(part, dict | list))
    if isinstance(settings, dict) and settings.get("type") == "Replace":
        growth *= max(1, len(settings["content"]))
    return growth


def _is_byte_level(content: dict[str, Any]) -> bool:
    """Return whether tokens are the exact bytes of the text, with nothing changed or removed."""
    before = content.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", [before])
    return (
        (content.get("decoder") or {}).get("type") == "ByteLevel"
        and content.get("normalizer") is None
        and any(step.get("type") == "ByteLevel" for step in steps)
        and not any(step.get("add_prefix_space") for step in steps)
        and all(step.get("type") in {"ByteLevel", "Split", "Digits"} for step in steps)
        and not any(step.get("behavior") == "Removed" for step in steps)
    )


def train_bpe(texts: Iterator[str], vocabulary_size: int, path: Path) -> None:
    """Train a byte-level BPE vocabulary on texts and write its JSON file."""
    with extra("language"):
        import tokenizers
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
        logger.warning("the text gives a vocabulary of only %d, not %d", found, vocabulary_size)
    write_whole(path, tokenizer.to_str())


def load_tokenizer(name: str, folder: Path | None = None) -> Tokenizer:
    """Return the tokenizer for `bytes`, `bpe` or a JSON file; `bpe` is loaded from `folder`."""
    if name == BYTES:
        return ByteTokenizer()
    if name == BPE and folder is not None:
        return FileTokenizer(folder / TOKENIZER_FILE)
    return FileTokenizer(expanded(name))


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the tokens of a text that someone typed, `(token,)`."""
    try:
        text = prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text is not UTF-8: character {error.start + 1} is "
            f"{prompt[error.start]!r}; give it as UTF-8, for example with --prompt-file"
        ) from None
    unknown = tokenizer.first_unknown(prompt)
    if unknown is not None:
        raise DataError(
            f"the text contains {quoted(unknown)}, for which the model's tokenizer has no token; "
            "remove it, or train with a tokenizer that can encode it, such as bytes"
        )
    tokens = tokenizer.encode(text)
    if not len(tokens):
        raise ConfigError(f"the text {quoted(prompt)} has no token; expected longer text")
    return tokens
