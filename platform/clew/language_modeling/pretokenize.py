"""Packs a corpus once, to train on it many times.

The corpus is cut into units; each is tokenized into a separate file under `parts/`
(`clew.language_modeling.pack_parts`), so that a killed run continues where it stopped. At the end
the parts are joined in order and the manifest is written.

A BPE vocabulary is trained on the beginning of the text alone: its last share, which validation
and test will take, is held out from it.
"""

import fcntl
import functools
import logging
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from clew.errors import DataError
from clew.files import write_whole
from clew.folders import expanded
from clew.language_modeling.documents import Unit, plan_units, read_unit
from clew.language_modeling.pack_parts import PARTS_FOLDER, Part, join_parts, tokenize_unit
from clew.language_modeling.pack_settings import PackSettings, plan_text
from clew.language_modeling.packed_tokens import (
    LENGTHS_FILE,
    MANIFEST_FILE,
    TOKENS_FILE,
    PackManifest,
    is_packed,
    read_manifest,
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


def pretokenize(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> PackManifest:
    """Pack a corpus into a folder, or continue packing it; a finished pack is left as it is.

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
        for unit in units:
            if unit.kind == "text" and unit.start == unit.end:
                logger.warning("%s: empty file; it is packed as an empty document", unit.path)
        parts = _tokenize(settings, units, output, num_proc)
        manifest = join_parts(settings, tokenizer, parts, output, whole=len(parts) == len(units))
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
    for name in (MANIFEST_FILE, TOKENS_FILE, LENGTHS_FILE, PLAN_FILE, TOKENIZER_FILE):
        (output / name).unlink(missing_ok=True)


def _prepare(settings: PackSettings, units: list[Unit], output: Path) -> Tokenizer:
    """Write the plan, or check that it is the one begun before; return the tokenizer."""
    plan = plan_text(settings, units)
    path = output / PLAN_FILE
    if path.is_file() and path.read_bytes() != plan.encode():
        if is_packed(output) or any((output / PARTS_FOLDER).glob("*.json")):
            raise DataError(
                f"{output}: holds a pack of other data or settings; choose another folder, or "
                "give force to start again"
            )
        _clear(output)
    if settings.tokenizer == BPE and not (output / TOKENIZER_FILE).is_file():
        texts = _texts_for_tokenizer(settings, units)
        train_bpe(texts, settings.vocabulary_size, output / TOKENIZER_FILE)
    elif settings.tokenizer not in {BPE, BYTES}:
        load_tokenizer(settings.tokenizer)
        shutil.copyfile(expanded(settings.tokenizer), output / TOKENIZER_FILE)
    write_whole(path, plan)
    return load_tokenizer(settings.kept_tokenizer, output)


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


def _tokenize(
    settings: PackSettings, units: list[Unit], output: Path, num_proc: int
) -> list[tuple[Path, Part]]:
    """Tokenize the units that are not done yet; return all parts that are needed, in order."""
    (output / PARTS_FOLDER).mkdir(exist_ok=True)
    wanted = settings.most_tokens
    paths = [output / PARTS_FOLDER / f"{number:06d}.bin" for number in range(len(units))]
    work = functools.partial(tokenize_unit, settings=settings, output=output)
    parts: list[tuple[Path, Part]] = []
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
    work: "functools.partial[Part]", units: list[Unit], paths: list[Path], num_proc: int
) -> Iterator[Iterable[Part]]:
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
