"""Packs a corpus once, so that many runs can use it.

The corpus is divided into units. Each unit is tokenized into a separate file under `parts/`, so
that an interrupted run can continue. At the end, the parts are joined in order and the manifest is
written.

A BPE vocabulary is trained only on the first part of the text. The last part is held out for
validation and test.
"""

import fcntl
import functools
import hashlib
import json
import logging
import math
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from clew.config.data import PackSettings
from clew.errors import DataError, described
from clew.files import expanded, replacing, write_json, write_whole
from clew.language_modeling.documents import Unit, plan_units, read_unit
from clew.language_modeling.packed_tokens import (
    LENGTH_TYPE,
    LENGTHS_FILE,
    MANIFEST_FILE,
    TOKENS_FILE,
    PackManifest,
    TokenBytes,
    is_packed,
    read_manifest,
    token_type,
)
from clew.language_modeling.tokenizers import (
    BPE,
    BYTES,
    TOKENIZER_FILE,
    FileTokenizer,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)

logger = logging.getLogger(__name__)

PLAN_FILE, PARTS_FOLDER, LENGTHS_SUFFIX = "plan.json", "parts", ".lengths"
COPY_BYTES = 16 * 2**20
PLAN_VERSION = 2
"""Increased when the same settings lead to other tokens or other files."""


def tokenizer_bytes(settings: PackSettings, num_bytes: int) -> int:
    """Return the number of bytes at the start of a text that train a BPE vocabulary.

    If the number of tokens is limited, one byte per token is assumed, because the real number of
    bytes is not known before tokenization.
    """
    packed = min(num_bytes, settings.most_tokens or num_bytes)
    return int(packed * (1 - settings.held_out_fraction))


def plan_text(settings: PackSettings, units: list[Unit]) -> str:
    """Return everything that determines a pack as JSON, with the window only for `max_chunks`."""
    chosen = {name: getattr(settings, name) for name in PackSettings.model_fields}
    if settings.max_chunks is None:
        del chosen["chunk_size"]
    if settings.tokenizer != BPE:
        del chosen["held_out_fraction"]
    if settings.tokenizer != BYTES:
        chosen["version"] = PLAN_VERSION
    if settings.tokenizer not in {BPE, BYTES}:
        chosen["tokenizer"] = load_tokenizer(settings.tokenizer).fingerprint
    # Size and modification time of every file show whether it has changed.
    stats = {unit.path: Path(unit.path).stat() for unit in units if unit.kind != "huggingface"}
    files = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    return json.dumps({"settings": chosen, "files": files, "num_units": len(units)}, indent=1)


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
    tokenizer = _kept_tokenizer(settings, output)
    dtype = token_type(tokenizer.vocabulary_size)
    end = np.array([tokenizer.end_of_text], dtype=dtype)
    keeps_lengths = tokenizer.byte_lengths() is None
    num_bytes = num_documents = num_tokens = without_token = 0
    lengths = path.with_suffix(LENGTHS_SUFFIX)
    with replacing(path) as temporary, temporary.open("wb") as file, lengths.open("wb") as beside:
        for piece in read_unit(unit, settings.text_column):
            if keeps_lengths and isinstance(tokenizer, FileTokenizer):
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

    `whole` says whether these are all parts of the text.
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
            tokenizer_bytes(settings, num_bytes if whole else max(num_bytes, num_tokens))
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
    write_json(output / MANIFEST_FILE, asdict(manifest))
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


def pretokenize(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> PackManifest:
    """Pack a corpus into a folder, or continue an unfinished pack; a finished pack is not changed.

    With `force`, an existing pack in the folder is deleted first, but for its tokenizer if that is
    the one to use.
    """
    units = plan_units(settings.dataset)
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if force:
            _clear(settings, output)
        tokenizer = _prepare(settings, units, output)
        if is_packed(output):
            return read_manifest(output)
        for unit in units:
            if unit.kind == "text" and unit.start == unit.end:
                logger.warning("%s: empty file; it is packed as an empty document", unit.path)
        parts = _tokenize(settings, units, output, num_proc)
        manifest = join_parts(settings, tokenizer, parts, output, whole=len(parts) == len(units))
    counts = manifest.num_tokens, manifest.num_documents
    logger.info("packed %d tokens of %d documents into %s", *counts, output)
    return manifest


def _clear(settings: PackSettings, output: Path) -> None:
    """Remove only the files that this module writes, and not the tokenizer that was asked for."""
    shutil.rmtree(output / PARTS_FOLDER, ignore_errors=True)
    asked = expanded(settings.tokenizer).resolve()
    for name in (MANIFEST_FILE, TOKENS_FILE, LENGTHS_FILE, PLAN_FILE, TOKENIZER_FILE):
        if (output / name).resolve() != asked:
            (output / name).unlink(missing_ok=True)


def _prepare(settings: PackSettings, units: list[Unit], output: Path) -> Tokenizer:
    plan, path, kept = plan_text(settings, units), output / PLAN_FILE, output / TOKENIZER_FILE
    continues = path.is_file() and path.read_bytes() == plan.encode()
    if path.is_file() and not continues:
        if is_packed(output) or any((output / PARTS_FOLDER).glob("*.json")):
            raise DataError(
                f"{output}: contains a pack of other data or settings; choose another folder, or "
                "use force to start again"
            )
        _clear(settings, output)
    write_whole(path, plan)
    if settings.tokenizer == BPE and not (continues and kept.is_file()):
        train_bpe(_texts_for_tokenizer(settings, units), settings.vocabulary_size, kept)
    elif settings.tokenizer != BYTES and not (continues and kept.is_file()):
        with replacing(kept) as temporary:
            shutil.copyfile(expanded(settings.tokenizer), temporary)
    return _kept_tokenizer(settings, output)


def _kept_tokenizer(settings: PackSettings, output: Path) -> Tokenizer:
    return load_tokenizer(BYTES if settings.tokenizer == BYTES else BPE, output)


def _texts_for_tokenizer(settings: PackSettings, units: list[Unit]) -> Iterator[str]:
    """Yield the first part of the text, which a BPE vocabulary is trained on."""

    def pieces() -> Iterator[bytes]:
        return (piece.text for unit in units for piece in read_unit(unit, settings.text_column))

    left = tokenizer_bytes(settings, sum(map(len, pieces())))
    for text in pieces():
        if left <= 0:
            return
        # The limit can be inside a multibyte character, which is then left out.
        yield text[:left].decode("utf-8", "ignore")
        left -= len(text)


def _tokenize(
    settings: PackSettings, units: list[Unit], output: Path, num_proc: int
) -> list[tuple[Path, Part]]:
    """Tokenize the units that are not done yet, and return all needed parts in order."""
    (output / PARTS_FOLDER).mkdir(exist_ok=True)
    wanted, num_tokens = settings.most_tokens or math.inf, 0
    paths = [output / PARTS_FOLDER / f"{number:06d}.bin" for number in range(len(units))]
    work = functools.partial(tokenize_unit, settings=settings, output=output)
    parts: list[tuple[Path, Part]] = []
    with ExitStack() as stack:
        results: Iterator[Part] = map(work, units, paths)
        if num_proc > 1 and len(units) > 1:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(min(num_proc, len(units)), mp_context=context)
            stack.callback(pool.shutdown, cancel_futures=True)
            results = pool.map(work, units, paths)
        bar = tqdm(results, total=len(units), desc="pretokenize", unit="unit", disable=None)
        for path, part in zip(paths, bar, strict=False):
            parts.append((path, part))
            num_tokens += part.num_tokens
            if num_tokens >= wanted:
                break
    return parts
