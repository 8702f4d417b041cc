"""Packs a corpus once, to train on it many times.

The corpus is cut into units; each is tokenized into a file of its own under `parts/`, written
under a temporary name and renamed, so that a killed run goes on where it was. At the end the parts
are joined in order, hashed on the way, and the manifest is written.
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
from clew.language_modeling.documents import Unit, plan_units, read_unit
from clew.language_modeling.packed_tokens import (
    MANIFEST_FILE,
    TOKENS_FILE,
    PackManifest,
    is_packed,
    pack_fingerprint,
    read_manifest,
    token_type,
)
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
PARTS_FOLDER = "parts"
COPY_BYTES = 16 * 2**20


@dataclass(frozen=True)
class PackSettings:
    """What to pack, and how."""

    dataset: str
    """A text file, a folder, a JSON Lines or Parquet file, or a Hugging Face data set's name."""
    chunk_size: int
    """Tokens in a window."""
    tokenizer: str = BYTES
    """`bytes`, `bpe` or the path of a tokenizers JSON file."""
    vocabulary_size: int = 32768
    """Entries of a locally trained BPE vocabulary."""
    text_column: str = "text"
    """Key or column with the text."""
    max_chunks: int | None = None
    """Stop after so many windows."""


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
        force: Begin anew, whatever the folder holds.

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
        parts = _tokenize(settings, units, output, num_proc)
        manifest = _join(settings, tokenizer, parts, output)
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


def _clear(output: Path) -> None:
    """Remove what this module writes, and nothing else."""
    shutil.rmtree(output / PARTS_FOLDER, ignore_errors=True)
    for name in (MANIFEST_FILE, TOKENS_FILE, PLAN_FILE, TOKENIZER_FILE):
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
        texts = (piece.text.decode() for u in units for piece in read_unit(u, settings.text_column))
        train_bpe(texts, settings.vocabulary_size, output / TOKENIZER_FILE)
    elif settings.tokenizer not in {BPE, BYTES}:
        load_tokenizer(settings.tokenizer)
        shutil.copyfile(Path(settings.tokenizer).expanduser(), output / TOKENIZER_FILE)
    _write_whole(path, plan)
    return _tokenizer_of(settings, output)


def plan_text(settings: PackSettings, units: list[Unit]) -> str:
    """Return all that determines a pack, as JSON; without a limit, the window does not."""
    chosen = asdict(settings)
    if settings.max_chunks is None:
        del chosen["chunk_size"]
    files = _file_stamps(units)
    return json.dumps({"settings": chosen, "files": files, "num_units": len(units)}, indent=1)


def _file_stamps(units: list[Unit]) -> dict[str, list[int]]:
    """Return size and time of change of every file, to notice when one changes."""
    files = {unit.path: Path(unit.path) for unit in units if unit.kind != "huggingface"}
    stats = {name: path.stat() for name, path in files.items()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _tokenizer_of(settings: PackSettings, output: Path) -> Tokenizer:
    is_file = settings.tokenizer != BYTES
    return load_tokenizer(str(output / TOKENIZER_FILE) if is_file else BYTES)


def _tokenize(
    settings: PackSettings, units: list[Unit], output: Path, num_proc: int
) -> list[tuple[Path, _Part]]:
    """Tokenize the units that are not done yet; return all parts that are needed, in order."""
    (output / PARTS_FOLDER).mkdir(exist_ok=True)
    wanted = None if settings.max_chunks is None else settings.max_chunks * settings.chunk_size + 1
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
    end = np.array([tokenizer.end_of_text], dtype=dtype).tobytes()
    num_bytes = num_documents = 0
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        for piece in read_unit(unit, settings.text_column):
            file.write(tokenizer.encode(piece.text).astype(dtype).tobytes())
            num_bytes += len(piece.text)
            if piece.ends_document:
                file.write(end)
                num_documents += 1
        num_tokens = file.tell() // dtype.itemsize
    part = _Part(num_tokens, num_documents, num_bytes)
    temporary.rename(path)
    _write_whole(counts, json.dumps(asdict(part)))
    return part


def _write_whole(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


def _join(
    settings: PackSettings, tokenizer: Tokenizer, parts: list[tuple[Path, _Part]], output: Path
) -> PackManifest:
    """Join the parts into one file and write the manifest; then the parts may go."""
    dtype = token_type(tokenizer.vocabulary_size)
    num_bytes = sum(part.num_bytes for _, part in parts)
    if num_bytes == 0:
        raise DataError(f"{settings.dataset}: an empty corpus; expected text")
    num_tokens = sum(part.num_tokens for _, part in parts)
    kept = num_tokens
    if settings.max_chunks is not None:
        kept = min(num_tokens, settings.max_chunks * settings.chunk_size + 1)
    digest = _concatenate([path for path, _ in parts], output, kept * dtype.itemsize)
    manifest = PackManifest(
        dataset=settings.dataset,
        tokenizer=settings.tokenizer,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=tokenizer.vocabulary_size,
        end_of_text=tokenizer.end_of_text,
        dtype=dtype.str,
        num_tokens=kept,
        num_documents=sum(part.num_documents for _, part in parts),
        num_bytes=num_bytes if kept == num_tokens else round(num_bytes * kept / num_tokens),
        chunk_size=settings.chunk_size,
        fingerprint=pack_fingerprint(digest, tokenizer.fingerprint),
    )
    manifest.write(output)
    shutil.rmtree(output / PARTS_FOLDER)
    return manifest


def _concatenate(paths: list[Path], output: Path, num_bytes: int) -> str:
    """Write the first `num_bytes` of the parts into the token file; return their hash."""
    digest, left = hashlib.sha256(), num_bytes
    temporary = output / f".{TOKENS_FILE}.tmp"
    with temporary.open("wb") as target:
        for path in paths:
            with path.open("rb") as file:
                while left and (block := file.read(min(COPY_BYTES, left))):
                    target.write(block)
                    digest.update(block)
                    left -= len(block)
    temporary.rename(output / TOKENS_FILE)
    return digest.hexdigest()
