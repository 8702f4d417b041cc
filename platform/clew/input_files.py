"""Reads text in blocks of lines (plain or compressed), and columns of Parquet with their types."""

import glob
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from clew.errors import DataError, printable, refusing

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
ARCHIVE = re.compile(r"(?i)\.(tar|tar\.[a-z0-9]+|tgz|tbz2?|txz|7z|rar)$")
"""Names of archives that are not read."""
BLOCK_BYTES = 16 * 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PROGRESS_AFTER_SECONDS = 1.0
UNPACKING = OSError, EOFError, lzma.LZMAError, zlib.error
FREE_BYTES, MAX_RATIO = 2**25, 200
"""A compressed file may unpack to `FREE_BYTES`, or to `MAX_RATIO` times its size."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a small file; a line feed at the end does not add an empty line.

    Raises:
        DataError: If the file cannot be read or is not UTF-8.
    """
    check_is_file(path)
    with refusing(f"{path}: cannot be read as UTF-8 text", OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8-sig")
    return text.removesuffix("\n").split("\n")  # `splitlines` also splits at other characters


def line_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a file's content in blocks that end with a line feed.

    CRLF becomes LF, a byte order mark at the start is removed, and a last line without a line
    feed gets one. The file's suffix determines the decompression. On a terminal, a progress bar
    appears if reading takes longer than a second.

    Raises:
        DataError: If the file is missing, is empty, cannot be read, or has a line without an end
            within `block_bytes` bytes.
    """
    blocks = _raw_blocks(path, block_bytes)
    rest = next(blocks, b"").removeprefix(BYTE_ORDER_MARK)
    if not rest:
        raise DataError(f"{path}: empty file; expected lines of text")
    num_lines = 0
    for following in blocks:
        end = rest.rfind(b"\n") + 1
        if end == 0:
            raise DataError(
                f"{path}, line {num_lines + 1}: no line end in {block_bytes:,} bytes; expected text"
            )
        num_lines += rest.count(b"\n")
        yield _with_line_feeds(rest[:end])
        rest = rest[end:] + following
    if rest:
        last = _with_line_feeds(rest)
        yield last if last.endswith(b"\n") else last + b"\n"


def read_bytes(path: Path, most_bytes: int, expected: str) -> bytes:
    """Return the content of a file, unpacked; `expected` is what a larger one should be."""
    content = b""
    for block in _raw_blocks(path, BLOCK_BYTES):
        content += block
        if len(content) > most_bytes:
            raise DataError(f"{path}: more than {most_bytes / 2**20:,.0f} MiB; expected {expected}")
    return content.removeprefix(BYTE_ORDER_MARK)


def _with_line_feeds(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n") if b"\r" in block else block


class BlockStream(io.RawIOBase):
    """Blocks of bytes as a file for libraries that read from one."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._left = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer)
        self._left = self._left or memoryview(next(self._blocks, b""))
        number = min(len(into), len(self._left))
        into[:number], self._left = self._left[:number], self._left[number:]
        return number


def unpacked_name(path: Path) -> str:
    """Return a file's name without the suffix of its compression."""
    return path.stem if path.suffix.lower() in COMPRESSIONS else path.name


def unpacked(stream: IO[bytes], path: Path) -> IO[bytes]:
    """Return what a stream unpacks; the file's suffix determines how."""
    kind = COMPRESSIONS.get(path.suffix.lower())
    if kind == "xz":
        return lzma.LZMAFile(stream)
    unzipped: IO[bytes] = pa.CompressedInputStream(stream, kind) if kind else stream
    return unzipped


def archive_of(path: Path) -> Path | None:
    """Return the zip file that a path `archive.zip/member` leads into, or None."""
    return next((p for p in path.parents if p.suffix.lower() == ".zip" and p.is_file()), None)


def checked_blocks(path: Path, packed: int, stream: IO[bytes], block_bytes: int) -> Iterator[bytes]:
    """Yield what a stream unpacks; `packed` is the number of bytes that it is made from."""
    unpacked = 0
    while block := stream.read(block_bytes):
        unpacked += len(block)
        check_ratio(path, packed, unpacked)
        yield block


def _raw_blocks(path: Path, block_bytes: int) -> Iterator[bytes]:
    if ARCHIVE.search(path.name):
        raise DataError(f"{path}: an archive; unpack it first")
    archive, kind = archive_of(path), COMPRESSIONS.get(path.suffix.lower(), "")
    if archive is None:
        check_is_file(path)
    expected = f"; expected a complete {kind} file" if kind else "; expected a readable file"
    kinds = *UNPACKING, KeyError, RuntimeError, ValueError, zipfile.BadZipFile
    with refusing(f"{path}: cannot be read", *kinds, advice=expected), ExitStack() as opened:
        if archive is None:
            raw, size = opened.enter_context(pa.OSFile(str(path))), path.stat().st_size
        else:
            members = opened.enter_context(zipfile.ZipFile(archive))
            member = members.getinfo(path.relative_to(archive).as_posix())
            check_ratio(path, member.compress_size, member.file_size)
            raw, size = pa.PythonFile(members.open(member), "r"), member.compress_size
        bar = tqdm(
            total=size if archive is None else member.file_size,
            desc=printable(path.name),
            unit="B",
            unit_scale=True,
            delay=PROGRESS_AFTER_SECONDS,
            disable=None,
            leave=False,
        )
        opened.enter_context(bar)
        for block in checked_blocks(path, size, unpacked(raw, path), block_bytes):
            bar.update(raw.tell() - bar.n)
            yield block


def check_ratio(path: Path, packed: int, unpacked: int) -> None:
    """Refuse a small file that unpacks to a huge one; text and tables shrink to a tenth or so."""
    if unpacked > max(FREE_BYTES, MAX_RATIO * packed):
        raise DataError(
            f"{path}: unpacks to more than {MAX_RATIO} times its size; if right, unpack it first"
        )


def check_is_file(path: Path) -> None:
    """Check that a path is a file.

    Raises:
        DataError: If the path is a folder or does not exist; the message lists files with similar
            names.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected a file")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: a pipe or device; expected a file")
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a link to itself or to no file; expected a file")
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"{glob.escape(path.stem)}*"))[:3]
        hint = f"; similar files: {', '.join(near)}" if near else ""
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"{path}: no such file{where}; check the path{hint}")


def columns_of(path: Path, expected: str) -> list[str]:
    """Return the names of a file's columns; `expected` is what it should be, for the message.

    Raises:
        DataError: If the file cannot be read.
    """
    with refusing(f"{path}: not {expected}", OSError, UnicodeDecodeError, pa.ArrowException):
        names: list[str] = pq.read_schema(path).names
    return names


def read_columns(
    path: Path,
    types: Mapping[str, pa.DataType],
    expected: str,
    *,
    where: tuple[str, int] | None = None,
) -> pa.Table:
    """Read some columns of a file and convert them to the given types, if no value changes.

    With `where`, a column and a number, only the rows with this number in the column are read;
    `expected` is what the file should be, for the message.

    Raises:
        DataError: If the file cannot be read, a column is missing, or a value does not fit its
            type.
    """
    with refusing(f"{path}: not {expected}", OSError, KeyError, pa.ArrowException):
        chosen = None if where is None else [(where[0], "=", where[1])]
        table = pq.read_table(path, columns=list(types), filters=chosen)
        schema = pa.schema(list(types.items()), metadata=table.schema.metadata)
        table = table.select(list(types)).cast(schema)
        table.validate(full=True)  # text is UTF-8
    return table
