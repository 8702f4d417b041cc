"""Reads and writes the manifests of checkpoints, and lists the checkpoints in a folder.

`manifest.json` contains the SHA-256 of every other file and of itself. Each file is checked against
it when the file is read, so that damage is detected before anything is computed from the file.

The learning-rate weight of a checkpoint is the sum, over the optimizer steps since the previous
checkpoint, of (learning rate) / (count that the summed loss was divided by) / (1 - momentum). With
this weight, TracIn's sum over checkpoints approximates the sum over steps for gradients of the
summed loss (Pruthi et al., 2020, arXiv 2002.08484, section 3.2). Each manifest contains the step of
the previous checkpoint, so that a missing checkpoint is detected before the sum is computed.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clew.errors import CheckpointError, quoted, refusing
from clew.names import CHECKPOINT_MANIFEST
from clew.training.progress import Count, Weight

MAX_CHARACTERS = 200
MAX_PATH_CHARACTERS = 4096


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Line = Annotated[str, Field(max_length=MAX_CHARACTERS), AfterValidator(_printable)]
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
    """Write copies of tensors on the CPU to a file; the tensors stay on their device."""
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
    what, advice = f"{path}: not valid JSON", "; use another checkpoint"
    with refusing(what, ValueError, RecursionError, advice=advice, error=CheckpointError):
        return json.loads(path.read_bytes())


def write_json(path: Path, content: object) -> None:
    """Write JSON with sorted keys, so that equal content gives equal bytes."""
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 2**24
MODEL_FILE = "model.safetensors"
MANIFEST_FILE = CHECKPOINT_MANIFEST


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Manifest:
    """The content of `manifest.json`, which describes a checkpoint."""

    step: Count
    epoch: Count
    learning_rate_weight: Weight
    task: Line
    config: dict[str, Any]
    config_hash: Line
    data_fingerprint: Line
    metrics: dict[str, float] = field(default_factory=dict)
    optimizer: Line = ""
    device: Line = "cpu"
    clew_version: Line = ""
    commit: Line = ""
    run_id: Line = ""
    folder: FolderPath = ""
    """The folder where training was started; relative data paths are also looked up there."""
    previous_step: Count | None = None
    """The step that the learning-rate weight counts from: the step of the previous checkpoint, or 0
    for the start of training; None if an older version of Clew did not record it."""
    sha256: dict[FileName, Line] = field(default_factory=dict)
    """Digest of every other file by name."""
    schema_version: int = SCHEMA_VERSION


_MANIFESTS = TypeAdapter(Manifest)


@dataclass(frozen=True)
class CheckpointRecord:
    """The path of a checkpoint together with its step, epoch and learning-rate weight."""

    step: int
    epoch: int
    learning_rate_weight: float
    path: Path
    previous_step: int | None = None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of the files in `folder`, with their current digests."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != MANIFEST_FILE)
    # The files were just written, so they are in the page cache. hashlib releases the GIL, so
    # threads hash them in parallel.
    with ThreadPoolExecutor() as pool:
        digests = dict(zip((p.name for p in files), pool.map(sha256, files), strict=True))
    content = asdict(replace(manifest, sha256=digests))
    content["sha256"][MANIFEST_FILE] = sha256_of_content(content)
    write_json(folder / MANIFEST_FILE, content)


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: no {MANIFEST_FILE}; expected a checkpoint folder with {MODEL_FILE} and "
            f"{MANIFEST_FILE}"
        )
    content = read_json(path, MAX_MANIFEST_BYTES)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path}: schema_version is {quoted(version)}, this version of Clew reads "
            f"{SCHEMA_VERSION}"
        )
    digests = content.get("sha256")
    own = digests.pop(MANIFEST_FILE, None) if isinstance(digests, dict) else None
    if own is not None and own != sha256_of_content(content):
        raise _damaged(path)
    advice = "; use another checkpoint"
    with refusing(f"{path}: not a manifest", ValidationError, advice=advice, error=CheckpointError):
        manifest = _MANIFESTS.validate_python(content)
    if own is None:
        raise CheckpointError(
            f"{path}: no digest of itself in sha256; expected a manifest that Clew wrote; use "
            "another checkpoint"
        )
    return manifest


def read_record(folder: Path) -> CheckpointRecord:
    said = read_manifest(folder)
    return CheckpointRecord(
        said.step, said.epoch, said.learning_rate_weight, folder, said.previous_step
    )


def list_checkpoints(folder: Path) -> list[CheckpointRecord]:
    """Return the complete checkpoints directly under `folder`, in order of their steps."""
    if not folder.is_dir():
        return []
    found = [
        read_record(path)
        for path in folder.iterdir()
        if not path.name.startswith(".") and (path / MANIFEST_FILE).is_file()
    ]
    return sorted(found, key=lambda record: record.step)


def require_unchanged(path: Path, manifest: Manifest) -> None:
    """Raise CheckpointError if a file of a checkpoint is missing or its digest has changed."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; the checkpoint is incomplete")
    if manifest.sha256.get(path.name) != sha256(path):
        raise _damaged(path)


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: changed or damaged since it was written: its SHA-256 is not the one in "
        f"{MANIFEST_FILE}; use another checkpoint"
    )
