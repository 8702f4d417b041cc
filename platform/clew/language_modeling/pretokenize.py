"""Packs a corpus once, to train on it many times.

The corpus is cut into units; each is tokenized into a separate file under `parts/`, written
under a temporary name and renamed, so that a killed run goes on where it was. At the end the parts
are joined in order, hashed on the way, and the manifest is written.

A BPE vocabulary is trained on the beginning of the text alone: its last share, which validation
and test will take, is held out from it.
"""

import fcntl
import functools
import hashlib
import json
import logging
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from clew.errors import DataError
from clew.files import replacing, write_whole
from clew.language_modeling.documents import Unit, plan_units, read_unit
from clew.language_modeling.pack_settings import PackSettings, plan_text
from clew.language_modeling.packed_tokens import (
    LENGTH_TYPE,
    LENGTHS_FILE,
    MANIFEST_FILE,
    TOKENS_FILE,
    PackManifest,
    is_packed,
    pack_fingerprint,
    read_manifest,
    token_type,
)
from clew.language_modeling.token_bytes import TokenBytes
from clew.language_modeling.tokenizers import (
    BPE,
    BYTES,
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)

logger = logging.getLogger(__name__)

PLAN_FILE = "plan.json"
PARTS_FOLDER, LENGTHS_SUFFIX = "parts", ".lengths"
COPY_BYTES = 16 * 2**20


@dataclass(frozen=True)
class _Part:
    """What a tokenized unit holds."""

    num_tokens: int
    num_documents: int
    num_bytes: int


def pretokenize(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> PackManifest:
    """Pack a corpus into a folder, or go on packing it; a finished pack is left as it is.

    Args:
        settings: What to pack.
        output: Folder to write.
        num_proc: Processes that tokenize.
        force: Start again, whatever the folder contains.

    Raises:
        DataError: the corpus is empty or malformed, or the folder holds another pack.
    """
    units = plan_units(settings.dataset)
    output.mkdir(parents=True, exist_ok=True)
    with _only_writer(output):
        if force:
            _clear(output)
        tokenizer = _prepare(settings, units, output)
        if is_packed(output):
            return read_manifest(output)
        _warn_of_empty_files(units)
        parts = _tokenize(settings, units, output, num_proc)
        manifest = _join(settings, tokenizer, parts, output, whole=len(parts) == len(units))
    logger.info(
        "packed %d tokens of %d documents into %s",
        manifest.num_tokens,
        manifest.num_documents,
        output,
    )
    return manifest


@contextmanager
def _only_writer(output: Path) -> Iterator[None]:
    """Let one process at a time write to the folder; the others wait and find it done."""
    with (output / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warn_of_empty_files(units: list[Unit]) -> None:
    for unit in units:
        if unit.kind == "text" and unit.start == unit.end:
            logger.warning("%s: empty file; it is packed as an empty document", unit.path)


def _clear(output: Path) -> None:
    """Remove what this module writes, and nothing else."""
    shutil.rmtree(output / PARTS_FOLDER, ignore_errors=True)
    for name in (MANIFEST_FILE, TOKENS_FILE, LENGTHS_FILE, PLAN_FILE, TOKENIZER_FILE):
        (output / name).unlink(missing_ok=True)


def _prepare(settings: PackSettings, units: list[Unit], output: Path) -> Tokenizer:
    """Write down the plan, or check that it is the one begun before; bring the tokenizer along."""
    plan = plan_text(settings, units)
    path = output / PLAN_FILE
    if path.is_file() and path.read_text(encoding="utf-8") != plan:
        if is_packed(output) or any((output / PARTS_FOLDER).glob("*.json")):
            raise DataError(
                f"{output}: holds a pack of other data or settings; choose another folder, or "
                "give force to begin anew"
            )
        _clear(output)
    if settings.tokenizer == BPE and not (output / TOKENIZER_FILE).is_file():
        texts = _texts_for_tokenizer(settings, units)
        train_bpe(texts, settings.vocabulary_size, output / TOKENIZER_FILE)
    elif settings.tokenizer not in {BPE, BYTES}:
        load_tokenizer(settings.tokenizer)
        shutil.copyfile(Path(settings.tokenizer).expanduser(), output / TOKENIZER_FILE)
    write_whole(path, plan)
    return _tokenizer_of(settings, output)


def _texts_for_tokenizer(settings: PackSettings, units: list[Unit]) -> Iterator[str]:
    """Yield the text from the start that a BPE vocabulary is trained on."""

    def pieces() -> Iterator[bytes]:
        return (piece.text for unit in units for piece in read_unit(unit, settings.text_column))

    left = settings.tokenizer_bytes(sum(map(len, pieces())))
    for text in pieces():
        if left <= 0:
            return
        # The limit may fall within a character, of which the first bytes are left out.
        yield text[:left].decode("utf-8", "ignore")
        left -= len(text)


def _tokenizer_of(settings: PackSettings, output: Path) -> Tokenizer:
    is_file = settings.tokenizer != BYTES
    return load_tokenizer(str(output / TOKENIZER_FILE) if is_file else BYTES)


def _tokenize(
    settings: PackSettings, units: list[Unit], output: Path, num_proc: int
) -> list[tuple[Path, _Part]]:
    """Tokenize the units that are not done yet; return all parts that are needed, in order."""
    (output / PARTS_FOLDER).mkdir(exist_ok=True)
    wanted = settings.most_tokens
    paths = [output / PARTS_FOLDER / f"{number:06d}.bin" for number in range(len(units))]
    work = functools.partial(_tokenize_unit, settings=settings, output=output)
    parts: list[tuple[Path, _Part]] = []
    num_tokens = 0
    with _mapped(work, units, paths, num_proc) as results:
        bar = tqdm(results, total=len(units), desc="pretokenize", unit="unit", disable=None)
        for path, part in zip(paths, bar, strict=False):
            parts.append((path, part))
            num_tokens += part.num_tokens
            if wanted is not None and num_tokens >= wanted:
                break
    return parts


@contextmanager
def _mapped(
    work: "functools.partial[_Part]", units: list[Unit], paths: list[Path], num_proc: int
) -> Iterator[Iterable[_Part]]:
    """Apply the work to every unit in order, in processes if more than one is asked for."""
    if num_proc == 1 or len(units) == 1:
        yield map(work, units, paths)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(num_proc, len(units)), mp_context=context) as pool:
        try:
            yield pool.map(work, units, paths)
        finally:
            pool.shutdown(cancel_futures=True)


def _tokenize_unit(unit: Unit, path: Path, *, settings: PackSettings, output: Path) -> _Part:
    """Write a unit's tokens, unless an earlier run has; the counts are written last."""
    counts = path.with_suffix(".json")
    if counts.is_file() and path.is_file():
        return _Part(**json.loads(counts.read_text(encoding="utf-8")))
    tokenizer = _tokenizer_of(settings, output)
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
                # The bytes of a piece without tokens, a blank one, go with the token after it.
                without_token += len(piece.text) - int(num_each.sum())
                num_each = np.append(num_each, [0] * (len(tokens) - len(num_each)))
                if len(num_each):
                    num_each[0] += without_token
                    without_token = 0
                beside.write(num_each.astype(LENGTH_TYPE).tobytes())
            file.write(tokens.astype(dtype).tobytes())
            num_tokens += len(tokens)
            num_bytes += len(piece.text)
    part = _Part(num_tokens, num_documents, num_bytes)
    write_whole(counts, json.dumps(asdict(part)))
    return part


def _join(
    settings: PackSettings,
    tokenizer: Tokenizer,
    parts: list[tuple[Path, _Part]],
    output: Path,
    *,
    whole: bool,
) -> PackManifest:
    """Join the parts into one file and write the manifest; then the parts may go.

    Args:
        settings: What was packed.
        tokenizer: Of all parts.
        parts: Files and counts, in order.
        output: Folder to write.
        whole: Whether these are all parts of the text.
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
    tokens, lengths = np.memmap(output / TOKENS_FILE, dtype=dtype, mode="r"), None
    if by_vocabulary is None:
        beside = [path.with_suffix(LENGTHS_SUFFIX) for path in paths]
        _concatenate(beside, output / LENGTHS_FILE, kept * LENGTH_TYPE.itemsize)
        lengths = np.memmap(output / LENGTHS_FILE, dtype=LENGTH_TYPE, mode="r")
    counted, seen = TokenBytes(tokens, by_vocabulary, lengths), 0
    if settings.tokenizer == BPE:
        # Where tokenizing stopped early, the text is longer than its parts.
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
        fingerprint=pack_fingerprint(digest, tokenizer.fingerprint),
        tokenizer_tokens=seen,
        has_lengths=lengths is not None,
    )
    manifest.write(output)
    shutil.rmtree(output / PARTS_FOLDER)
    return manifest


def _concatenate(paths: list[Path], target: Path, num_bytes: int) -> str:
    """Write the first `num_bytes` of the parts into a file; return their hash."""
    digest, left = hashlib.sha256(), num_bytes
    with replacing(target) as temporary, temporary.open("wb") as joined:
        for path in paths:
            with path.open("rb") as file:
                while left and (block := file.read(min(COPY_BYTES, left))):
                    joined.write(block)
                    digest.update(block)
                    left -= len(block)
    return digest.hexdigest()
