"""A packed corpus on disk: one memory map of tokens, and a manifest of what they are.

    tokens.bin       all documents one after the other, each followed by the end-of-text token,
                     uint16 where the vocabulary allows, else uint32, little-endian
    bytes.bin        how many bytes of text each token stands for, uint32, little-endian; only where
                     the tokenizer's vocabulary does not say that
    manifest.json    tokenizer, vocabulary, counts, fingerprint; written last
    tokenizer.json   the tokenizer, unless it is bytes

Windows are read where they lie, through the system's page cache: nothing is copied or cached.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from clew.errors import DataError, described, quoted
from clew.files import write_whole
from clew.language_modeling.tokenizers import BYTES, Tokenizer

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
    """What a packed corpus says of itself."""

    dataset: str
    tokenizer: str
    tokenizer_fingerprint: str
    vocabulary_size: Annotated[int, Field(strict=True, ge=1, le=2**32)]
    end_of_text: Count
    dtype: Annotated[str, Field(pattern=r"\A(uint|<u)(2|4|16|32)\z")]
    num_tokens: Count
    num_documents: Count
    num_bytes: Count
    """Bytes of text, before tokenization."""
    chunk_size: Count
    """Tokens in a window, as asked for when packing; reading may choose another."""
    fingerprint: str
    """Hash of tokens and tokenizer."""
    tokenizer_tokens: Count = 0
    """Tokens at the start whose text the tokenizer was trained on."""
    has_lengths: bool = False
    """Whether the bytes of each token are kept beside it."""
    schema_version: int = SCHEMA_VERSION

    def write(self, folder: Path) -> None:
        """Write the manifest whole or not at all."""
        write_whole(folder / MANIFEST_FILE, json.dumps(asdict(self), indent=1) + "\n")


_MANIFESTS = TypeAdapter(PackManifest)


def is_packed(folder: Path) -> bool:
    """Whether the folder holds a finished pack."""
    return (folder / MANIFEST_FILE).is_file()


def read_manifest(folder: Path, name: str = MANIFEST_FILE) -> PackManifest:
    """Read and check a manifest.

    Raises:
        DataError: there is none, or it is not one that this version reads.
    """
    path = folder / name
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise DataError(f"{path}: larger than {MAX_MANIFEST_BYTES:,} bytes, which it never is")
        manifest = _MANIFESTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {name} there; pack a corpus into it with clew pretokenize"
        ) from None
    except (OSError, ValidationError) as error:
        raise DataError(f"{path}: not a manifest of packed tokens ({described(error)})") from None
    # Version 1 differs in what packs of other tokenizers hold.
    if manifest.schema_version != SCHEMA_VERSION and (
        manifest.schema_version != 1 or manifest.tokenizer != BYTES
    ):
        raise DataError(
            f"{path}: schema_version is {quoted(manifest.schema_version)}, this version of Clew "
            f"reads {SCHEMA_VERSION}; pack the corpus again"
        )
    return manifest


@dataclass(frozen=True)
class TokenBytes:
    """Counts bytes of a range of tokens, or tokens of a range of bytes, whatever the tokenizer."""

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
        """Return how many tokens from the start cover this many bytes; at most all."""
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


@dataclass(frozen=True)
class PackedTokens:
    """A packed corpus, open for reading."""

    folder: Path
    manifest: PackManifest
    tokens: np.ndarray
    """Memory map `(token,)`."""
    lengths: np.ndarray | None = None
    """Bytes of text that each token stands for, memory map `(token,)`; None: as the vocabulary
    says."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled memory map would carry its content along; a worker opens the file instead.
        return open_packed, (self.folder,)


def open_packed(folder: Path, tokenizer: Tokenizer | None = None) -> PackedTokens:
    """Open a packed corpus.

    Raises:
        DataError: the file's size is not what the manifest says, or another tokenizer packed it.
    """
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
    """Open a file with an entry for each token."""
    size = path.stat().st_size if path.is_file() else 0
    expected = manifest.num_tokens * dtype.itemsize
    if size != expected:
        raise DataError(
            f"{path}: {size:,} bytes, but the manifest promises {manifest.num_tokens:,} tokens of "
            f"{dtype.itemsize} bytes, {expected:,}; the file is damaged: pack again with force"
        )
    return np.memmap(path, dtype=dtype, mode="r") if expected else np.empty(0, dtype)


def token_type(vocabulary_size: int) -> np.dtype:
    """Return the smallest type that holds every token."""
    return np.dtype("<u2" if vocabulary_size <= 2**16 else "<u4")
