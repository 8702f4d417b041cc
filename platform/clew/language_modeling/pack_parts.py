"""Tokenizes each unit of a corpus into a part file, and joins the parts into one file."""

import hashlib
import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from clew.errors import DataError, described
from clew.files import replacing, write_whole
from clew.language_modeling.documents import Unit, read_unit
from clew.language_modeling.pack_settings import PackSettings
from clew.language_modeling.packed_tokens import (
    LENGTH_TYPE,
    LENGTHS_FILE,
    TOKENS_FILE,
    PackManifest,
    TokenBytes,
    token_type,
)
from clew.language_modeling.tokenizers import BPE, Tokenizer, load_tokenizer

PARTS_FOLDER, LENGTHS_SUFFIX = "parts", ".lengths"
COPY_BYTES = 16 * 2**20


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """The counts of a tokenized unit."""

    num_tokens: int
    num_documents: int
    num_bytes: int


_PARTS = TypeAdapter(Part)


def tokenize_unit(unit: Unit, path: Path, *, settings: PackSettings, output: Path) -> Part:
    """Write the tokens of a unit unless an earlier run has; the counts are written last."""
    counts = path.with_suffix(".json")
    if counts.is_file() and path.is_file():
        try:
            return _PARTS.validate_json(counts.read_bytes())
        except ValidationError as error:
            logger.warning("%s: %s; this part is tokenized again", counts, described(error))
    tokenizer = load_tokenizer(settings.kept_tokenizer, output)
    dtype = token_type(tokenizer.vocabulary_size)
    end = np.array([tokenizer.end_of_text], dtype=dtype)
    keeps_lengths = tokenizer.byte_lengths() is None
    num_bytes = num_documents = num_tokens = without_token = 0
    lengths = path.with_suffix(LENGTHS_SUFFIX)
    with (
        replacing(path) as temporary,
        temporary.open("wb") as file,
        lengths.open("wb") as beside,
    ):
        for piece in read_unit(unit, settings.text_column):
            if keeps_lengths:
                tokens, num_each = tokenizer.encode_with_bytes(piece.text)
            else:
                tokens, num_each = tokenizer.encode(piece.text), None
            if piece.ends_document:
                tokens = np.append(tokens, end)
                num_documents += 1
            if num_each is not None:
                # The bytes of a piece without tokens (a blank piece) are added to the next token.
                without_token += len(piece.text) - int(num_each.sum())
                num_each = np.append(num_each, [0] * (len(tokens) - len(num_each)))
                if len(num_each):
                    num_each[0] += without_token
                    without_token = 0
                beside.write(num_each.astype(LENGTH_TYPE).tobytes())
            file.write(tokens.astype(dtype).tobytes())
            num_tokens += len(tokens)
            num_bytes += len(piece.text)
    part = Part(num_tokens, num_documents, num_bytes)
    write_whole(counts, json.dumps(asdict(part)))
    return part


def join_parts(
    settings: PackSettings,
    tokenizer: Tokenizer,
    parts: list[tuple[Path, Part]],
    output: Path,
    *,
    whole: bool,
) -> PackManifest:
    """Join the parts into one file, write the manifest and delete the parts.

    Args:
        settings: Settings of the pack.
        tokenizer: Tokenizer of all parts.
        parts: Files and counts, in order.
        output: Folder of the pack.
        whole: Whether these are all parts of the text.

    Raises:
        DataError: The corpus has no text.
    """
    dtype = token_type(tokenizer.vocabulary_size)
    num_bytes = sum(part.num_bytes for _, part in parts)
    num_documents = sum(part.num_documents for _, part in parts)
    if num_bytes == 0:
        raise DataError(f"{settings.dataset}: an empty corpus; expected text")
    num_tokens = sum(part.num_tokens for _, part in parts)
    kept = min(num_tokens, settings.most_tokens or num_tokens)
    paths, by_vocabulary = [path for path, _ in parts], tokenizer.byte_lengths()
    digest = _concatenate(paths, output / TOKENS_FILE, kept * dtype.itemsize)
    fingerprint = hashlib.sha256(f"{digest}/{tokenizer.fingerprint}".encode()).hexdigest()[:16]
    tokens, lengths = np.memmap(output / TOKENS_FILE, dtype=dtype, mode="r"), None
    if by_vocabulary is None:
        beside = [path.with_suffix(LENGTHS_SUFFIX) for path in paths]
        _concatenate(beside, output / LENGTHS_FILE, kept * LENGTH_TYPE.itemsize)
        lengths = np.memmap(output / LENGTHS_FILE, dtype=LENGTH_TYPE, mode="r")
    counted, seen = TokenBytes(tokens, by_vocabulary, lengths), 0
    if settings.tokenizer == BPE:
        # If tokenizing stopped early, the text is longer than its parts.
        seen = counted.num_tokens(
            settings.tokenizer_bytes(num_bytes if whole else max(num_bytes, num_tokens))
        )
    if kept < num_tokens:
        num_bytes = counted.total(0, kept)
        num_documents = int(np.count_nonzero(tokens == tokenizer.end_of_text))
    manifest = PackManifest(
        dataset=settings.dataset,
        tokenizer=settings.tokenizer,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=tokenizer.vocabulary_size,
        end_of_text=tokenizer.end_of_text,
        dtype=dtype.str,
        num_tokens=kept,
        num_documents=num_documents,
        num_bytes=num_bytes,
        chunk_size=settings.chunk_size,
        fingerprint=fingerprint,
        tokenizer_tokens=seen,
        has_lengths=lengths is not None,
    )
    manifest.write(output)
    shutil.rmtree(output / PARTS_FOLDER)
    return manifest


def _concatenate(paths: list[Path], target: Path, num_bytes: int) -> str:
    """Write the first `num_bytes` of the parts into a file, and return their SHA-256."""
    digest, left = hashlib.sha256(), num_bytes
    with replacing(target) as temporary, temporary.open("wb") as joined:
        for path in paths:
            with path.open("rb") as file:
                while left and (block := file.read(min(COPY_BYTES, left))):
                    joined.write(block)
                    digest.update(block)
                    left -= len(block)
    return digest.hexdigest()
