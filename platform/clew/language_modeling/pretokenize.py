"""Packs a corpus once, so that many trainings can use it.

The corpus is divided into units. Each unit is tokenized into a separate file under `parts/`
(`clew.language_modeling.pack_parts`), so that an interrupted run can continue. At the end, the
parts are joined in order and the manifest is written.

A BPE vocabulary is trained only on the first part of the text. The last part is held out for
validation and test.
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
    """Pack a corpus into a folder, or continue an unfinished pack; a finished pack is not changed.

    Args:
        settings: Settings of the pack.
        output: Folder of the pack.
        num_proc: Number of processes that tokenize.
        force: Whether to delete an existing pack in the folder and start again.

    Raises:
        DataError: The corpus is empty or malformed, or the folder contains another pack.
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
    with (output / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clear(output: Path) -> None:
    """Remove only the files that this module writes."""
    shutil.rmtree(output / PARTS_FOLDER, ignore_errors=True)
    for name in (MANIFEST_FILE, TOKENS_FILE, LENGTHS_FILE, PLAN_FILE, TOKENIZER_FILE):
        (output / name).unlink(missing_ok=True)


def _prepare(settings: PackSettings, units: list[Unit], output: Path) -> Tokenizer:
    plan = plan_text(settings, units)
    path = output / PLAN_FILE
    if path.is_file() and path.read_bytes() != plan.encode():
        if is_packed(output) or any((output / PARTS_FOLDER).glob("*.json")):
            raise DataError(
                f"{output}: contains a pack of other data or settings; choose another folder, or "
                "use force to start again"
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
    """Yield the first part of the text, which a BPE vocabulary is trained on."""

    def pieces() -> Iterator[bytes]:
        return (piece.text for unit in units for piece in read_unit(unit, settings.text_column))

    left = settings.tokenizer_bytes(sum(map(len, pieces())))
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
    """Apply the work to every unit in order, in several processes if `num_proc` is above 1."""
    if num_proc == 1 or len(units) == 1:
        yield map(work, units, paths)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(num_proc, len(units)), mp_context=context) as pool:
        try:
            yield pool.map(work, units, paths)
        finally:
            pool.shutdown(cancel_futures=True)
