"""The files of a checkpoint, one at a time: tensors, JSON, their digests, and the disk."""

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
"""A name or a number as text, which messages quote."""
FolderPath = Annotated[str, Field(max_length=MAX_PATH_CHARACTERS), AfterValidator(_printable)]
"""A folder, which messages name."""
FileName = Annotated[str, Field(pattern=r"^[\w.\-]{1,200}$")]
"""Of a file in the checkpoint's folder."""


def sha256(path: Path) -> str:
    """Return the digest of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_content(content: Mapping[str, Any]) -> str:
    """Return the digest of what would be written as JSON, whatever its order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by way of the CPU; those of the running model stay where they are.

    Raises:
        OSError: the file cannot be written.
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
    """Read JSON, after a look at its size."""
    if path.stat().st_size > largest:
        raise CheckpointError(
            f"{path}: larger than {largest:,} bytes, which it never is; take another checkpoint"
        )
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not valid JSON ({described(error)}); take another checkpoint"
        ) from None


def write_json(path: Path, content: object) -> None:
    """Write JSON with its keys in order, so that equal content is equal bytes."""
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Ask the system to put a file or folder on the disk before we rely on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
