"""Turns tab-separated files into integer codes of their distinct fields, fast and strictly.

A block of lines becomes one Arrow string array, without a Python string for each field: numpy finds
tabs and line ends, and a field is the text up to and including its separator. Arrow then replaces
equal fields by codes. A block is checked as a whole. Only if it is malformed, a plain loop over its
lines finds the first malformed line and the reason. Ten million triples take seconds.

The format has no quotes, escapes, comments, header lines or blank lines: everything between two
tabs is the value, including spaces.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, quoted
from clew.input_files import BLOCK_BYTES, line_blocks

TAB, NEWLINE = ord("\t"), ord("\n")
MERGED_BLOCKS = 16
"""Number of blocks that are compared with all known values at once, which is slow for many."""


@dataclass(frozen=True)
class Layout:
    """The names of a file's columns, and whether fields can be empty."""

    columns: tuple[str, ...]
    empty_fields: bool = False

    def __str__(self) -> str:
        return "<TAB>".join(self.columns)


def read_coded(
    paths: Sequence[Path], layout: Layout, *, block_bytes: int = BLOCK_BYTES
) -> tuple[list[np.ndarray], pa.StringArray]:
    """Read files with the same layout; return their fields as codes of one shared list of values.

    Returns:
        The codes of each file, int32 `(line, column)`, and the distinct values `(code,)`.
    """
    parts: list[list[np.ndarray]] = [[] for _ in paths]
    values = stream_coded(
        paths, layout, lambda file, codes: parts[file].append(codes), block_bytes=block_bytes
    )
    return [np.concatenate(codes) for codes in parts], values


def stream_coded(
    paths: Sequence[Path],
    layout: Layout,
    write: Callable[[int, np.ndarray], object],
    *,
    block_bytes: int = BLOCK_BYTES,
) -> pa.StringArray:
    """Pass the codes that `read_coded` returns to a function, some blocks of lines at a time.

    Only some blocks and the distinct values are in memory at a time, never all codes.

    Returns:
        The distinct values `(code,)`.
    """
    known = pa.array([], pa.string())
    for number, path in enumerate(paths):
        blocks = (f.dictionary_encode() for f in _field_blocks(path, layout, block_bytes))
        while some := list(islice(blocks, MERGED_BLOCKS)):
            # Known values come first, so that they keep their codes.
            earlier = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), known)
            merged = pa.chunked_array([earlier, *some]).unify_dictionaries()
            known = merged.chunk(0).dictionary
            for chunk in merged.chunks[1:]:
                write(number, chunk.indices.to_numpy().reshape(-1, len(layout.columns)))
    return pc.utf8_slice_codeunits(known, 0, -1)


def _field_blocks(path: Path, layout: Layout, block_bytes: int) -> Iterator[pa.StringArray]:
    first_line = 1
    for block in line_blocks(path, block_bytes):
        fields = _split(block, layout)
        if fields is None:
            raise _fault(path, block, first_line, layout)
        yield fields
        first_line += len(fields) // len(layout.columns)


def _split(block: bytes, layout: Layout) -> pa.StringArray | None:
    """Split a block into fields; return None if any line is malformed."""
    content = np.frombuffer(block, np.uint8)
    separators = np.flatnonzero((content == TAB) | (content == NEWLINE))
    width = len(layout.columns)
    if len(separators) % width or b"\r" in block:
        return None
    lines = content[separators].reshape(-1, width)
    if (lines[:, :-1] != TAB).any() or (lines[:, -1] != NEWLINE).any():
        return None
    offsets = np.zeros(len(separators) + 1, np.int32)
    np.add(separators, 1, out=offsets[1:], casting="unsafe")
    if not layout.empty_fields and np.diff(offsets).min() == 1:
        return None
    # One separator for all columns: equal names are then equal fields in every column.
    text = pa.py_buffer(block.replace(b"\n", b"\t"))
    fields = pa.StringArray.from_buffers(len(separators), pa.py_buffer(offsets), text)
    try:
        fields.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8
        return None
    return fields


def _fault(path: Path, block: bytes, first_line: int, layout: Layout) -> DataError:
    """Return the error of the first malformed line of a block."""
    for number, line in enumerate(block.split(b"\n")[:-1], first_line):
        complaint = _complaint(line, layout)
        if complaint:
            return DataError(f"{path}, line {number}: {complaint}")
    raise AssertionError(f"{path}: block at line {first_line} was refused, but every line is fine")


def _complaint(line: bytes, layout: Layout) -> str | None:
    """Return what is wrong with a line, or None; the reference for the checks on blocks."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = quoted(line.decode("utf-8", "backslashreplace"))
        return (
            f"byte 0x{line[error.start]:02x} at position {error.start + 1} of {shown} is not "
            "UTF-8; save the file as UTF-8"
        )
    if not text:
        return f"blank line; expected {layout}; remove the line"
    if "\r" in text:
        return f"carriage return inside {quoted(text)}; expected lines to end with LF or CRLF"
    fields = text.split("\t")
    if len(fields) != len(layout.columns):
        noun = "column" if len(fields) == 1 else "columns"
        expected = f"{len(layout.columns)} columns, {layout}"
        return f"{len(fields)} {noun} in {quoted(text)}; expected {expected}"
    if not layout.empty_fields and "" in fields:
        return f"empty {layout.columns[fields.index('')]} in {quoted(text)}; expected {layout}"
    return None
