"""Reads text files in blocks of whole lines: plain, gzip or zstd, by the file's suffix."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from clew.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BLOCK_BYTES = 16 * 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PROGRESS_AFTER_SECONDS = 1.0


def line_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield a file's content in blocks that end with a line feed.

    CRLF becomes LF, a byte order mark at the start is left out, and a last line without an end
    gets one. A progress bar shows on a terminal when reading takes longer than a second.
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
                f"{path}, line {num_lines + 1}: no line end within {block_bytes:,} bytes; expected "
                "a text file"
            )
        num_lines += rest.count(b"\n")
        yield _with_line_feeds(rest[:end])
        rest = rest[end:] + following
    if rest:
        last = _with_line_feeds(rest)
        yield last if last.endswith(b"\n") else last + b"\n"


def _with_line_feeds(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n") if b"\r" in block else block


def _raw_blocks(path: Path, block_bytes: int) -> Iterator[bytes]:
    """Yield the file's decompressed content, naming the file in whatever goes wrong."""
    _check_is_file(path)
    bar = tqdm(
        total=path.stat().st_size,
        desc=path.name,
        unit="B",
        unit_scale=True,
        delay=PROGRESS_AFTER_SECONDS,
        disable=None,
        leave=False,
    )
    try:
        with bar, pa.OSFile(str(path)) as raw:
            stream = _decompressed(path, raw)
            while block := stream.read(block_bytes):
                bar.update(raw.tell() - bar.n)
                yield block
    except OSError as error:
        kind = COMPRESSIONS.get(path.suffix)
        expected = f"expected a whole {kind} file" if kind else "expected a readable file"
        raise DataError(f"{path}: cannot be read ({_one_line(error)}); {expected}") from None


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected a file")
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob(f"{glob.escape(path.stem)}*"))[:3]
        hint = f"; beside it: {', '.join(near)}" if near else ""
        raise DataError(f"{path}: no such file; check the path{hint}")


def _decompressed(path: Path, raw: Any) -> Any:
    kind = COMPRESSIONS.get(path.suffix)
    return pa.CompressedInputStream(raw, kind) if kind else raw


def _one_line(error: OSError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
