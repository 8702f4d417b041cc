"""The on-disk checkpoint: safetensors and JSON in a folder, written whole or not at all.

    model.safetensors       parameters and buffers, under the eager model's names
    manifest.json           what it is: step, epoch, learning-rate weight, metrics, origin
    optimizer.safetensors   optimizer state, `<parameter name>/<state name>`
    training.safetensors    states of the random generators
    average.safetensors     moving average of the parameters, where one is kept
    training.json           scaler, schedule, data cursor and whatever else a resume needs

The learning-rate weight of a checkpoint is the sum, over the optimizer steps since the previous
checkpoint, of (learning rate) / (count that the summed loss was divided by) / (1 - momentum): with
it, TracIn's sum over checkpoints approximates the sum over steps for gradients of the summed loss
(Pruthi et al., 2020, arXiv 2002.08484, section 3.2). A checkpoint names the step of the previous
one, so that a missing one is noticed before the sum is taken.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clew.errors import CheckpointError
from clew.files import replacing

SCHEMA_VERSION = 1
MODEL_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
OPTIMIZER_FILE = "optimizer.safetensors"
TRAINING_TENSORS_FILE = "training.safetensors"
AVERAGE_FILE = "average.safetensors"
TRAINING_STATE_FILE = "training.json"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    epoch: int
    learning_rate_weight: float
    task: str
    config: dict[str, Any]
    config_hash: str
    data_fingerprint: str
    metrics: dict[str, float] = field(default_factory=dict)
    optimizer: str = ""
    device: str = "cpu"
    clew_version: str = ""
    commit: str = ""
    run_id: str = ""
    previous_step: int | None = None
    """Step that the learning-rate weight counts from: the previous checkpoint's, 0 for the start of
    training; None where an older version of Clew did not write it down."""
    schema_version: int = SCHEMA_VERSION


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
    values: dict[str, Any]
    average: dict[str, Tensor] = field(default_factory=dict)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy to the CPU; the tensors of the running model stay where they are."""
    return {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    manifest: Manifest,
    training: TrainingState | None = None,
) -> CheckpointRecord:
    """Write a checkpoint to `folder`, whole or not at all: synced before it gets its name."""
    with replacing(folder) as temporary:
        temporary.mkdir()
        save_file(_contiguous(model.state_dict()), temporary / MODEL_FILE)
        if training is not None:
            save_file(_contiguous(training.optimizer), temporary / OPTIMIZER_FILE)
            save_file(_contiguous(training.tensors), temporary / TRAINING_TENSORS_FILE)
            if training.average:
                save_file(_contiguous(training.average), temporary / AVERAGE_FILE)
            _write_json(temporary / TRAINING_STATE_FILE, training.values)
        _write_json(temporary / MANIFEST_FILE, asdict(manifest))
        for path in temporary.iterdir():
            _sync(path)
    _sync(folder.parent)
    return CheckpointRecord.of(manifest, folder)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of the checkpoint in `folder`."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: no {MANIFEST_FILE}; expected a checkpoint folder with {MODEL_FILE} and "
            f"{MANIFEST_FILE}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{path}: not valid JSON ({error}); take another checkpoint"
        ) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path}: schema_version is {version!r}, this version of Clew reads {SCHEMA_VERSION}"
        )
    try:
        return Manifest(**content)
    except TypeError as error:
        missing = [n for n in ("step", "epoch", "learning_rate_weight") if n not in content]
        detail = f"{missing[0]} is missing" if missing else str(error)
        raise CheckpointError(f"{path}: {detail}; the checkpoint cannot be used") from None


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


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; the checkpoint is incomplete")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file ({error}); take another checkpoint"
        ) from None


def load_model(folder: Path, model: nn.Module) -> None:
    """Load parameters and buffers from `folder` into `model`, all of them or none."""
    tensors = load_tensors(folder / MODEL_FILE)
    own = model.state_dict()
    missing = sorted(own.keys() - tensors.keys())
    surplus = sorted(tensors.keys() - own.keys())
    if missing or surplus:
        raise CheckpointError(
            f"{folder / MODEL_FILE}: missing {missing or 'nothing'}, unexpected "
            f"{surplus or 'nothing'}; the checkpoint belongs to another model"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{folder / MODEL_FILE}: {name} has shape {tuple(tensor.shape)}, the model needs "
                f"{tuple(own[name].shape)}; the checkpoint belongs to another model"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def weights_digest(folder: Path) -> str:
    """Return sixteen hex digits over a checkpoint's weights."""
    with (folder / MODEL_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load_training_state(folder: Path) -> TrainingState:
    """Read what a resume needs from `folder`."""
    path, average = folder / TRAINING_STATE_FILE, folder / AVERAGE_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {path.name}; this checkpoint cannot be resumed from")
    return TrainingState(
        optimizer=load_tensors(folder / OPTIMIZER_FILE),
        tensors=load_tensors(folder / TRAINING_TENSORS_FILE),
        values=json.loads(path.read_text(encoding="utf-8")),
        average=load_tensors(average) if average.is_file() else {},
    )


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    """Ask the system to put a file or folder on the disk before we rely on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
