"""The on-disk checkpoint: safetensors and JSON in a folder, written whole or not at all.

    model.safetensors       parameters and buffers, under the eager model's names
    manifest.json           what it is: step, epoch, learning-rate weight, metrics, origin, and the
                            SHA-256 of every file, which is compared whenever one is read
    optimizer.safetensors   optimizer state, `<parameter name>/<state name>`
    training.safetensors    states of the random generators
    average.safetensors     moving average of the parameters, where one is kept
    rows-0-of-4.safetensors rows of sharded tables, a file for each process (`sharding.files`)
    training.json           scaler, schedule, data cursor and whatever else a resume needs

The learning-rate weight of a checkpoint is the sum, over the optimizer steps since the previous
checkpoint, of (learning rate) / (count that the summed loss was divided by) / (1 - momentum): with
it, TracIn's sum over checkpoints approximates the sum over steps for gradients of the summed loss
(Pruthi et al., 2020, arXiv 2002.08484, section 3.2). A checkpoint names the step of the previous
one, so that a missing one is noticed before the sum is taken.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from clew.errors import CheckpointError, OutOfMemoryError, described, quoted
from clew.files import replacing
from clew.training.checkpoint_files import (
    FileName,
    Line,
    read_json,
    save_tensors,
    sha256,
    sha256_of_content,
    sync,
    write_json,
)
from clew.training.devices import free_gib
from clew.training.progress import Count, TrainingValues, Weight
from clew.training.sharding.files import read_file, read_rows, rows_files, split_rows
from clew.training.sharding.rows import RowShard, row_shards

SCHEMA_VERSION = 1
SHOWN_NAMES = 5
MAX_MANIFEST_BYTES = 2**24
MAX_TRAINING_STATE_BYTES = 2**29  # the history of every metric is in there
MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
OPTIMIZER_FILE = "optimizer.safetensors"
TRAINING_TENSORS_FILE = "training.safetensors"
AVERAGE_FILE = "average.safetensors"
TRAINING_STATE_FILE = "training.json"
MODEL, OPTIMIZER, AVERAGE = "model", "optimizer", "average"
KINDS = {MODEL_FILE: MODEL, OPTIMIZER_FILE: OPTIMIZER, AVERAGE_FILE: AVERAGE}
"""What the rows of sharded tables are filed under, for each file with the rest."""

logger = logging.getLogger(__name__)


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Manifest:
    """What a checkpoint says of itself."""

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
    previous_step: Count | None = None
    """Step that the learning-rate weight counts from: the previous checkpoint's, 0 for the start of
    training; None where an older version of Clew did not write it down."""
    sha256: dict[FileName, Line] = field(default_factory=dict)
    """Digest of every other file by its name; empty where an older version of Clew wrote none."""
    schema_version: int = SCHEMA_VERSION


_MANIFESTS = TypeAdapter(Manifest)


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint with its place in training, so that rates cannot fall out of line with it."""

    step: int
    epoch: int
    learning_rate_weight: float
    path: Path
    previous_step: int | None = None

    @classmethod
    def of(cls, manifest: Manifest, path: Path) -> "CheckpointRecord":
        """Return the record of a checkpoint that says this of itself."""
        return cls(
            manifest.step,
            manifest.epoch,
            manifest.learning_rate_weight,
            path,
            manifest.previous_step,
        )


@dataclass(frozen=True)
class TrainingState:
    """What a resume needs beyond the model: optimizer, generators, scaler, schedule, cursor."""

    optimizer: dict[str, Tensor]
    tensors: dict[str, Tensor]
    values: TrainingValues
    average: dict[str, Tensor] = field(default_factory=dict)


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    manifest: Manifest,
    training: TrainingState | None = None,
    *,
    write_rows: Callable[[Path], None] = lambda folder: None,
) -> CheckpointRecord:
    """Write a checkpoint to `folder`, whole or not at all: synced before it gets its name.

    `write_rows` lets all processes write their rows of sharded tables into a folder.
    """
    shards = row_shards(model)
    with replacing(folder) as temporary:
        temporary.mkdir()
        write_rows(temporary)
        save_tensors(split_rows(model.state_dict(), shards, MODEL)[0], temporary / MODEL_FILE)
        if training is not None:
            optimizer, _ = split_rows(training.optimizer, shards, OPTIMIZER)
            save_tensors(optimizer, temporary / OPTIMIZER_FILE)
            save_tensors(training.tensors, temporary / TRAINING_TENSORS_FILE)
            if training.average:
                save_tensors(
                    split_rows(training.average, shards, AVERAGE)[0], temporary / AVERAGE_FILE
                )
            write_json(temporary / TRAINING_STATE_FILE, training.values.model_dump())
        write_manifest(temporary, manifest)
        for path in temporary.iterdir():
            sync(path)
    sync(folder.parent)
    return CheckpointRecord.of(manifest, folder)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of the files in `folder`, with the digests that they have now."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != MANIFEST_FILE)
    # Just written, they come from memory; hashing runs beside the interpreter, so at once.
    with ThreadPoolExecutor() as pool:
        digests = dict(zip((p.name for p in files), pool.map(sha256, files), strict=True))
    content = asdict(replace(manifest, sha256=digests))
    content["sha256"][MANIFEST_FILE] = sha256_of_content(content)
    write_json(folder / MANIFEST_FILE, content)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of the checkpoint in `folder`."""
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
    try:
        return _MANIFESTS.validate_python(content)
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: {described(error)}; the checkpoint cannot be used"
        ) from None


def read_record(folder: Path) -> CheckpointRecord:
    """Return the record of the checkpoint in `folder`."""
    return CheckpointRecord.of(read_manifest(folder), folder)


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


def load_tensors(path: Path, own: Mapping[str, RowShard] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file of a checkpoint onto the CPU, if it is as it was written.

    Where several processes wrote their rows of a table, they are gathered.

    Args:
        path: The file.
        own: Which rows to read of tables, by parameter; None: all.
    """
    manifest = read_manifest(path.parent)
    files = [path.parent / name for name in rows_files(manifest.sha256)]
    for file in (path, *files):
        _require_unchanged(file, manifest)
    try:
        tensors = read_file(path, own or {})
        if files and path.name in KINDS:
            _require_room(path, files if not own else [])
            rows = read_rows(files, KINDS[path.name], own or None)
            if not own:
                gib = sum(t.numel() * t.element_size() for t in rows.values()) / 2**30
                logger.info("%s: gathered from %d shards, %.2f GiB", path, len(files), gib)
            tensors |= rows
        return tensors
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (SafetensorError, ValueError, RuntimeError) as error:
        reason = described(error)
        raise CheckpointError(
            f"{path}: not a readable safetensors file ({reason}); take another checkpoint"
        ) from None


def copy_weights(checkpoint: Path, folder: Path) -> None:
    """Copy weights and manifest of a checkpoint; of sharded tables, all rows into the one file."""
    manifest = read_manifest(checkpoint)
    if rows_files(manifest.sha256):
        save_tensors(load_tensors(checkpoint / MODEL_FILE), folder / MODEL_FILE)
        write_manifest(folder, manifest)
        return
    for name in (MODEL_FILE, MANIFEST_FILE):
        shutil.copy2(checkpoint / name, folder / name)


def load_model(folder: Path, model: nn.Module) -> None:
    """Load parameters and buffers from `folder` into `model`, all of them or none."""
    tensors = load_tensors(folder / MODEL_FILE, row_shards(model))
    own = model.state_dict()
    missing = sorted(own.keys() - tensors.keys())
    surplus = sorted(tensors.keys() - own.keys())
    if missing or surplus:
        raise CheckpointError(
            f"{folder / MODEL_FILE}: missing {_first(missing)}, unexpected {_first(surplus)}; the "
            "checkpoint belongs to another model"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{folder / MODEL_FILE}: {name} has shape {tuple(tensor.shape)}, the model needs "
                f"{tuple(own[name].shape)}; the checkpoint belongs to another model"
            )
        if (
            tensor.dtype.is_complex
            or tensor.dtype.is_floating_point != own[name].is_floating_point()
        ):
            raise CheckpointError(
                f"{folder / MODEL_FILE}: {name} holds {tensor.dtype}, the model needs "
                f"{own[name].dtype}; the checkpoint belongs to another model"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _first(names: list[str]) -> str:
    """Return the first of some names, for a message."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(map(quoted, names[:SHOWN_NAMES])) + more or "nothing"


def weights_digest(folder: Path) -> str:
    """Return sixteen hex digits over a checkpoint's weights."""
    rows = rows_files(read_manifest(folder).sha256)
    if rows:
        digests = "".join(sha256(folder / name) for name in (MODEL_FILE, *rows))
        return hashlib.sha256(digests.encode()).hexdigest()[:16]
    return sha256(folder / MODEL_FILE)[:16]


def load_training_state(folder: Path, own: Mapping[str, RowShard] | None = None) -> TrainingState:
    """Read what a resume needs from `folder`; `own` as for `load_tensors`."""
    average = folder / AVERAGE_FILE
    return TrainingState(
        values=load_training_values(folder),
        optimizer=load_tensors(folder / OPTIMIZER_FILE, own),
        tensors=load_tensors(folder / TRAINING_TENSORS_FILE),
        average=load_tensors(average, own) if average.is_file() else {},
    )


def load_training_values(folder: Path) -> TrainingValues:
    """Read what a resume needs from `folder` beside tensors."""
    path = folder / TRAINING_STATE_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {path.name}; this checkpoint cannot be resumed from")
    _require_unchanged(path, read_manifest(folder))
    try:
        return TrainingValues.model_validate(read_json(path, MAX_TRAINING_STATE_BYTES))
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: {described(error)}; the checkpoint cannot be used"
        ) from None


def require_whole(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint all of whose files are as they were written.

    Of one that an older version wrote, without digests, every file that is there must be readable.

    Raises:
        CheckpointError: A file is missing, or was changed or damaged.
    """
    manifest = read_manifest(folder)
    for name in manifest.sha256 or (MODEL_FILE,):
        _require_unchanged(folder / name, manifest)
    if not manifest.sha256:
        for path in sorted(folder.glob("*.safetensors")):
            load_tensors(path)
    return manifest


def _require_unchanged(path: Path, manifest: Manifest) -> None:
    """Refuse a file of a checkpoint that is missing, or is not as it was written."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; the checkpoint is incomplete")
    if manifest.sha256 and manifest.sha256.get(path.name) != sha256(path):
        raise _damaged(path)


def _require_room(path: Path, files: Sequence[Path]) -> None:
    """Refuse to gather shards that together are larger than memory."""
    needed = sum(file.stat().st_size for file in files) / 2**30
    free = free_gib(torch.device("cpu"))
    if needed > free:
        raise OutOfMemoryError(
            f"{path}: its {len(files)} shards need {needed:.2f} GiB together and there are "
            f"{free:.2f} GiB; gather them on a machine with more memory"
        )


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: changed or damaged since it was written: its SHA-256 is not the one in "
        f"{MANIFEST_FILE}; take another checkpoint"
    )
