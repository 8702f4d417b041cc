"""Reads text documents from files piece by piece, so that a corpus need not fit in memory.

A corpus is divided into *units* that can be read independently. So several processes can tokenize a
corpus, and an interrupted run can continue. A unit is a range of whole lines of a text or JSON
Lines file, a row group of a Parquet file, a whole compressed file, or a Hugging Face data set.
"""

import codecs
import importlib.util
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import DataError, quoted, refusing
from clew.files import expanded
from clew.input_files import (
    ARCHIVE,
    BYTE_ORDER_MARK,
    COMPRESSIONS,
    UNPACKING,
    checked_blocks,
    unpacked,
    unpacked_name,
)

UnitKind = Literal["text", "json_lines", "parquet", "huggingface"]
SUFFIXES: dict[str, UnitKind] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
    ".parquet": "parquet",
}
SHORT_NAMES = {"finewebedu": ("HuggingFaceFW/fineweb-edu", "sample-10BT")}
"""Hugging Face data set and configuration name, by short name."""
TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
SHOWN_NAMES = 10
UNIT_BYTES = 8 * 2**20
PIECE_BYTES = 2**20
LONGEST_LINE_BYTES = 8 * PIECE_BYTES
PARQUET_ROWS = 64
"""Rows that are unpacked at once: a dictionary can hold one long text for a million of them."""


@dataclass(frozen=True)
class Unit:
    """A part of a corpus that can be read independently."""

    kind: UnitKind
    path: str
    """Path of a file, or name of a Hugging Face data set."""
    start: int = 0
    """First byte, or index of the row group."""
    end: int = -1
    """Byte after the last byte; -1: the whole file."""
    ends_document: bool = True
    """Whether the document ends at the end of the unit (text files only)."""


@dataclass(frozen=True)
class Piece:
    """A piece of UTF-8 text, and whether its document ends after it."""

    text: bytes
    ends_document: bool


def plan_units(dataset: str, *, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Divide a text file, a folder of files or a Hugging Face data set into units."""
    path = expanded(dataset)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and _kind_of(p) is not None)
        files = [p for p in files if not unpacked_name(p).lower().endswith(".json")] or files
        if not files:
            expected = ", ".join(SUFFIXES)
            raise DataError(f"{path}: no text file in this folder; expected {expected}")
        return [unit for file in files for unit in _units_of_file(file, unit_bytes)]
    if path.is_file():
        return _units_of_file(path, unit_bytes)
    if path.suffix or path.is_absolute() or importlib.util.find_spec("datasets") is None:
        raise DataError(
            f"{dataset}: no such file or folder here or under $CLEW_DATA; to use a Hugging Face "
            "data set of this name, pip install 'clew[language]'"
        )
    return [Unit("huggingface", dataset)]


def _kind_of(path: Path) -> UnitKind | None:
    name = path.name.lower()
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return SUFFIXES.get(Path(name).suffix)


def _units_of_file(path: Path, unit_bytes: int) -> list[Unit]:
    if ARCHIVE.search(path.name) or path.suffix.lower() == ".zip":
        raise DataError(f"{path}: an archive; unpack it first")
    kind = _kind_of(path) or "text"
    if kind == "parquet":
        with _parquet(path) as file:
            return [Unit(kind, str(path), group) for group in range(file.metadata.num_row_groups)]
    if path.suffix.lower() in COMPRESSIONS:
        return [Unit(kind, str(path))]
    cuts = _line_cuts(path, unit_bytes)
    return [
        Unit(kind, str(path), start, end, ends_document=end == cuts[-1])
        for start, end in itertools.pairwise(cuts)
    ]


def _line_cuts(path: Path, unit_bytes: int) -> list[int]:
    """Return byte offsets between lines, from 0 to the size of the file."""
    size, cuts = path.stat().st_size, [0]
    with path.open("rb") as file:
        while cuts[-1] + unit_bytes < size:
            file.seek(cuts[-1] + unit_bytes)
            while (piece := file.read(PIECE_BYTES)) and b"\n" not in piece:
                pass
            cuts.append(file.tell() - len(piece) + piece.find(b"\n") + 1 if piece else size)
    return cuts if cuts[-1] == size > 0 else [*cuts, size]


def read_unit(unit: Unit, text_column: str) -> Iterator[Piece]:
    """Yield the text of a unit in order."""
    match unit.kind:
        case "text":
            yield from _read_text(unit)
        case "json_lines":
            yield from _read_json_lines(unit, text_column)
        case "parquet":
            yield from _read_parquet(unit, text_column)
        case "huggingface":
            yield from _read_huggingface(unit.path, text_column)


def _blocks(unit: Unit) -> Iterator[bytes]:
    path, left = Path(unit.path), unit.end - unit.start if unit.end >= 0 else sys.maxsize
    refused = refusing(f"{path}: cannot be read", *UNPACKING, advice="; expected a complete file")
    with refused, pa.OSFile(unit.path) as raw:
        raw.seek(unit.start)
        size = path.stat().st_size
        for block in checked_blocks(path, size, unpacked(raw, path), PIECE_BYTES):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return


def _read_text(unit: Unit) -> Iterator[Piece]:
    """Yield pieces of whole lines, so that a tokenizer does not get parts of words."""
    check, position, rest = codecs.getincrementaldecoder("utf-8")(), unit.start, b""
    for block in _blocks(unit):
        _check_utf8(check, block, unit.path, position, final=False)
        if not position and block.count(b"\0") > len(block) // 4:
            raise DataError(
                f"{unit.path}: a quarter of its bytes are zero, as in UTF-16; convert it to UTF-8"
            )
        rest += block if position else block.removeprefix(BYTE_ORDER_MARK)
        position += len(block)
        if cut := _cut(rest):
            yield Piece(rest[:cut], ends_document=False)
            rest = rest[cut:]
    _check_utf8(check, b"", unit.path, position, final=True)
    if rest or unit.ends_document:
        yield Piece(rest, unit.ends_document)


def _cut(text: bytes) -> int:
    """Return where to cut text: after a line or, in a very long line, after a word or character."""
    cut = text.rfind(b"\n") + 1
    if cut or len(text) < LONGEST_LINE_BYTES:
        return cut
    last = len(text) - 1
    while last > 0 and text[last] & 0xC0 == 0x80:  # inside a multibyte character
        last -= 1
    return text.rfind(b" ") + 1 or last


def _check_utf8(
    check: codecs.IncrementalDecoder, block: bytes, path: str, position: int, *, final: bool
) -> None:
    try:
        check.decode(block, final)
    except UnicodeDecodeError as error:
        bad = error.object[error.start : error.start + 8]
        raise DataError(
            f"{path}, near byte {position + error.start}: {bad!r} is not UTF-8 text; convert the "
            "file to UTF-8"
        ) from None


def _read_json_lines(unit: Unit, text_column: str) -> Iterator[Piece]:
    number, rest = 0, b""
    for block in _blocks(unit):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            yield from _json_document(line, unit, number, text_column)
    yield from _json_document(rest, unit, number + 1, text_column)


def _json_document(line: bytes, unit: Unit, number: int, text_column: str) -> Iterator[Piece]:
    """Yield the document in a line; an empty line contains none."""
    if not line.strip():
        return
    place = f"{unit.path}, line {number}" + (f" after byte {unit.start}" if unit.start else "")
    with refusing(f"{place}: {line[:60]!r} is not JSON", ValueError, RecursionError):
        content = json.loads(line)
    if not isinstance(content, dict) or text_column not in content:
        keys = _listed(content) if isinstance(content, dict) else type(content).__name__
        raise DataError(
            f"{place}: no text under {quoted(text_column)}; found {keys}; set data.text_column"
        )
    yield _document(content[text_column], place)


def _document(text: object, place: str) -> Piece:
    if not isinstance(text, str):
        raise DataError(f"{place}: {quoted(text)} is not text; expected one document of text")
    return Piece(text.encode("utf-8", "replace"), ends_document=True)


def _parquet(path: Path) -> Any:
    what = f"{path}: not a readable Parquet file"
    with refusing(what, OSError, UnicodeDecodeError, pa.ArrowException):
        return pq.ParquetFile(path)


def _read_parquet(unit: Unit, text_column: str) -> Iterator[Piece]:
    with _parquet(Path(unit.path)) as file:
        schema = file.schema_arrow
        if schema.names.count(text_column) != 1:
            raise DataError(
                f"{unit.path}: no column {quoted(text_column)}; found {_listed(schema.names)}; "
                "set data.text_column"
            )
        kind = schema.field(text_column).type
        if kind not in TEXT_TYPES:
            raise DataError(
                f"{unit.path}: column {quoted(text_column)} has type {str(kind)[:60]}; expected "
                "text; set data.text_column"
            )
        with refusing(f"{unit.path}: cannot be read", OSError, pa.ArrowException):
            for batch in file.iter_batches(PARQUET_ROWS, [unit.start], [text_column]):
                column = batch.column(0).cast(pa.large_string())
                column.validate(full=True)  # checks for UTF-8
                for value in column.drop_null():
                    yield Piece(value.as_py().encode(), ends_document=True)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(quoted(name)[1:-1] for name in itertools.islice(names, SHOWN_NAMES))


def _read_huggingface(name: str, text_column: str) -> Iterator[Piece]:
    import datasets

    data_set = SHORT_NAMES.get(name, (name,))
    what = f"{name}: the Hugging Face data set {data_set[0]} cannot be read"
    advice = "; give another data set, or a text file or a folder of text files"
    with refusing(what, OSError, ValueError, datasets.exceptions.DatasetsError, advice=advice):
        rows = datasets.load_dataset(*data_set, split="train", streaming=True)
    for row in rows:
        if text_column not in row:
            raise DataError(f"{name}: no column {text_column!r}; found {_listed(row)}")
        if row[text_column] is not None:  # as in Parquet, a row without text is none
            yield _document(row[text_column], name)
