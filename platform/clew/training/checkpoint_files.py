"""Writes and reads single files of a checkpoint: tensors, JSON, and their digests."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clew.errors import CheckpointError, described

MAX_CHARACTERS = 200
MAX_PATH_CHARACTERS = 4096


def _one_line(text: str) -> str:
    if len(text) > MAX_CHARACTERS or not text.isprintable():
        raise ValueError(f"expected one line of at most {MAX_CHARACTERS} characters")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""A name, or a number as text, that messages quote."""
FolderPath = Annotated[str, Field(max_length=MAX_PATH_CHARACTERS), AfterValidator(_printable)]
"""The path of a folder that messages name."""
FileName = Annotated[str, Field(pattern=r"^[\w.\-]{1,200}$")]
"""The name of a file in the checkpoint's folder."""


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_content(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a mapping as JSON; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write copies of tensors on the CPU to a file; the tensors stay on their device.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        save_file({name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)|code: (\d+)", str(error))
        if number is None:
            raise
        code = int(number[1] or number[2])
        raise OSError(code, os.strerror(code), str(path)) from None


def read_json(path: Path, largest: int) -> Any:
    """Read a JSON file of at most `largest` bytes."""
    if path.stat().st_size > largest:
        raise CheckpointError(
            f"{path}: larger than the limit of {largest:,} bytes; use another checkpoint"
        )
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not valid JSON ({described(error)}); use another checkpoint"
        ) from None


def write_json(path: Path, content: object) -> None:
    """Write JSON with sorted keys, so that equal content gives equal bytes."""
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
