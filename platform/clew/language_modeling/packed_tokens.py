"""A packed corpus on disk: one memory map of tokens, and a manifest that describes them.

tokens.bin       all documents one after the other, each followed by the end-of-text token;
                 uint16 if the vocabulary fits, otherwise uint32, little-endian
bytes.bin        number of bytes of text per token, uint32, little-endian; only if these numbers
                 do not follow from the vocabulary
manifest.json    tokenizer, vocabulary, counts, fingerprint; written last
tokenizer.json   the tokenizer, unless tokens are bytes
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from clew.errors import DataError, quoted, refusing
from clew.language_modeling.tokenizers import Tokenizer

SCHEMA_VERSION = 2
MAX_MANIFEST_BYTES = 2**20
TOKENS_FILE = "tokens.bin"
LENGTHS_FILE = "bytes.bin"
LENGTH_TYPE = np.dtype("<u4")
MANIFEST_FILE = "manifest.json"
TOKENS_AT_ONCE = 2**22


Count = Annotated[int, Field(strict=True, ge=0)]


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PackManifest:
    """The content of `manifest.json`, which describes a packed corpus."""

    dataset: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocabulary_size: Annotated[int, Field(strict=True, ge=1, le=2**32)]
    end_of_text: Count
    dtype: Annotated[str, Field(pattern=r"\A(<u2|<u4|uint16|uint32)\z")]
    num_tokens: Count
    num_documents: Count
    num_bytes: Count
    """Number of bytes of the text before tokenization."""
    chunk_size: Count
    """Tokens per window as set for packing; windows of another size can be read, too."""
    fingerprint: str
    """Hash of tokens and tokenizer."""
    tokenizer_tokens: Count = 0
    """Number of tokens at the start whose text the tokenizer was trained on."""
    has_lengths: bool = False
    """Whether `bytes.bin` has the number of bytes of each token."""
    schema_version: int = SCHEMA_VERSION


_MANIFESTS = TypeAdapter(PackManifest)


def is_packed(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).is_file()


def read_manifest(folder: Path, name: str = MANIFEST_FILE) -> PackManifest:
    path = folder / name
    with refusing(f"{path}: not a manifest of packed tokens", OSError, ValidationError):
        if not path.exists():
            raise DataError(
                f"{folder}: no {name} in this folder; pack a corpus into it with clew pretokenize"
            )
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise DataError(f"{path}: larger than the limit of {MAX_MANIFEST_BYTES:,} bytes")
        manifest = _MANIFESTS.validate_json(path.read_bytes())
    if manifest.schema_version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version is {quoted(manifest.schema_version)}, this version of Clew "
            f"reads {SCHEMA_VERSION}; pack the corpus again"
        )
    return manifest


@dataclass(frozen=True)
class TokenBytes:
    """Counts the bytes of a range of tokens, and the tokens of a range of bytes."""

    tokens: np.ndarray
    """All tokens of the pack, `(token,)`."""
    by_vocabulary: np.ndarray | None
    """Bytes of each entry of the vocabulary; None if they depend on the text."""
    by_place: np.ndarray | None
    """Bytes of each token of the pack, `(token,)`; None if they follow from the vocabulary."""

    def total(self, start: int, end: int) -> int:
        return sum(
            int(self._each(at, min(at + TOKENS_AT_ONCE, end)).sum())
            for at in range(start, end, TOKENS_AT_ONCE)
        )

    def num_tokens(self, num_bytes: int) -> int:
        """Return the number of first tokens that cover `num_bytes`, or that of all tokens."""
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
        return np.asarray(self.by_vocabulary[self.tokens[start:end]])


@dataclass(frozen=True)
class PackedTokens:
    """A packed corpus, open for reading."""

    folder: Path
    manifest: PackManifest
    tokens: np.ndarray
    """Memory map `(token,)`."""
    lengths: np.ndarray | None = None
    """Bytes of text of each token, memory map `(token,)`; None if they follow from the
    vocabulary."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled memory map would contain all tokens; a worker opens the file instead.
        return open_packed, (self.folder,)


def open_packed(folder: Path, tokenizer: Tokenizer | None = None) -> PackedTokens:
    manifest = read_manifest(folder)
    if tokenizer is not None and tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise DataError(
            f"{folder}: packed with tokenizer {quoted(manifest.tokenizer)} of fingerprint "
            f"{quoted(manifest.tokenizer_fingerprint)}, but data.tokenizer gives "
            f"{tokenizer.fingerprint}; use the tokenizer it was packed with, or pack again into "
            "another folder"
        )
    return PackedTokens(
        folder,
        manifest,
        _memory_map(folder / TOKENS_FILE, np.dtype(manifest.dtype), manifest),
        _memory_map(folder / LENGTHS_FILE, LENGTH_TYPE, manifest) if manifest.has_lengths else None,
    )


def _memory_map(path: Path, dtype: np.dtype, manifest: PackManifest) -> np.ndarray:
    """Open a file with one entry per token."""
    size = path.stat().st_size if path.is_file() else 0
    expected = manifest.num_tokens * dtype.itemsize
    if size != expected:
        raise DataError(
            f"{path}: {size:,} bytes, but the manifest says {manifest.num_tokens:,} tokens of "
            f"{dtype.itemsize} bytes, {expected:,}; the file is damaged; pack again with force"
        )
    return np.memmap(path, dtype=dtype, mode="r") if expected else np.empty(0, dtype)


def token_type(vocabulary_size: int) -> np.dtype:
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")
