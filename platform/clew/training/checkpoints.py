"""Checkpoints on disk: a folder of safetensors and JSON files that is written atomically.

    model.safetensors       parameters and buffers, with the names of the eager model
    manifest.json           step, epoch, learning-rate weight, metrics, origin, and the SHA-256
                            of every file, which is checked each time the file is read
    optimizer.safetensors   optimizer state, `<parameter name>/<state name>`
    training.safetensors    states of the random generators
    average.safetensors     moving average of the parameters, if one is kept
    rows-0-of-4.safetensors rows of sharded tables, one file per process: `model/<parameter>`,
                            `optimizer/<parameter>/<state>`, `average/<parameter>`
    training.json           scaler, schedule, data cursor and everything else a resume needs

Any number of processes can read the rows of sharded tables: each reads only the rows that it needs,
from these files or from the file of a table that is not sharded.

The module `manifest` describes the manifest and how files are checked against it.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, cat, nn

from clew.errors import CheckpointError, OutOfMemoryError, PlaceError, described, quoted
from clew.files import replacing, sync
from clew.training.distributed import World
from clew.training.hardware import free_gib
from clew.training.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    Manifest,
    read_json,
    read_manifest,
    require_unchanged,
    save_tensors,
    sha256,
    write_json,
    write_manifest,
)
from clew.training.progress import TrainingValues
from clew.training.seeding import DrawingApart
from clew.training.sharding import RowShard, row_shards

M = TypeVar("M", bound=nn.Module)

SHOWN_NAMES = 5
SPARE_NUMBERS = 2**24
"""Numbers that building a model may need besides its weights."""
MAX_TRAINING_STATE_BYTES = 2**29  # the file contains the history of every metric
OPTIMIZER_FILE = "optimizer.safetensors"
TRAINING_TENSORS_FILE = "training.safetensors"
AVERAGE_FILE = "average.safetensors"
TRAINING_STATE_FILE = "training.json"
MODEL, OPTIMIZER, AVERAGE = "model", "optimizer", "average"
KINDS = {MODEL_FILE: MODEL, OPTIMIZER_FILE: OPTIMIZER, AVERAGE_FILE: AVERAGE}
"""The name that the row files use for the content of each of these files."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """What a resume needs besides the model: optimizer, generators, scaler, schedule, cursor."""

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
) -> None:
    """Write a checkpoint to `folder` atomically.

    The files are flushed to the disk before the folder gets its final name. `write_rows` is called
    with the temporary folder and makes all processes write their rows of sharded tables there.
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
                average, _ = split_rows(training.average, shards, AVERAGE)
                save_tensors(average, temporary / AVERAGE_FILE)
            write_json(temporary / TRAINING_STATE_FILE, training.values.model_dump())
        write_manifest(temporary, manifest)
        for path in temporary.iterdir():
            sync(path)
    sync(folder.parent)


def load_tensors(path: Path, own: Mapping[str, RowShard] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file of a checkpoint onto the CPU after checking its digest.

    If several processes wrote the rows of a table, these rows are gathered.
    """
    manifest = read_manifest(path.parent)
    files = [path.parent / name for name in rows_files(manifest.sha256)]
    for file in (path, *files):
        require_unchanged(file, manifest)
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: _rows_of(file, key, own or {}) for key in file.keys()}  # noqa: SIM118
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
    except (SafetensorError, ValueError, RuntimeError, LookupError) as error:
        what = f"{path}: not a readable safetensors file ({described(error)})"
        raise CheckpointError(f"{what}; use another checkpoint") from None


def copy_weights(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint's weights and manifest; the rows of sharded tables go into one file."""
    manifest = read_manifest(checkpoint)
    if rows_files(manifest.sha256):
        save_tensors(load_tensors(checkpoint / MODEL_FILE), folder / MODEL_FILE)
        write_manifest(folder, manifest)
        return
    for name in (MODEL_FILE, MANIFEST_FILE):
        shutil.copy2(checkpoint / name, folder / name)


def read_model(folder: Path, build: Callable[[], M]) -> M:
    """Return a model with the weights of a checkpoint; the state of torch's generator is kept.

    A model with more numbers than the files have bytes is refused before it takes memory.
    """
    path = folder / MODEL_FILE
    files = [path, *(folder / name for name in rows_files(read_manifest(folder).sha256))]
    if missing := [file for file in files if not file.is_file()]:
        raise CheckpointError(f"{missing[0]}: no such file; the checkpoint is incomplete")
    num_bytes = sum(file.stat().st_size for file in files)
    try:
        with DrawingApart(num_bytes + SPARE_NUMBERS):
            model = build()
    except MemoryError:
        raise CheckpointError(
            f"{path}: {num_bytes:,} bytes of weights, but {MANIFEST_FILE} describes a larger "
            "model; the checkpoint belongs to another model"
        ) from None
    load_model(folder, model)
    return model


def load_model(folder: Path, model: nn.Module) -> None:
    """Load all parameters and buffers from `folder` into `model`; change nothing on an error."""
    tensors = load_tensors(folder / MODEL_FILE, row_shards(model))
    own = model.state_dict()
    for problem in _misfits(tensors, own):
        raise CheckpointError(
            f"{folder / MODEL_FILE}: {problem}; the checkpoint belongs to another model"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _misfits(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield what keeps tensors of a file from being those of a model."""
    missing, surplus = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or surplus:
        yield f"missing {_first(missing)}, unexpected {_first(surplus)}"
    for name, tensor in tensors.items():
        shape, dtype = tuple(own[name].shape), own[name].dtype
        if tensor.shape != shape:
            yield f"{name} has shape {tuple(tensor.shape)}, but the model has {shape}"
        if tensor.dtype.is_complex or tensor.dtype.is_floating_point != dtype.is_floating_point:
            yield f"{name} has dtype {tensor.dtype}, but the model has {dtype}"


def _first(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(map(quoted, names[:SHOWN_NAMES])) + more or "nothing"


def weights_digest(folder: Path) -> str:
    """Return the first sixteen hexadecimal digits of a SHA-256 over a checkpoint's weights."""
    rows = rows_files(read_manifest(folder).sha256)
    if rows:
        digests = "".join(sha256(folder / name) for name in (MODEL_FILE, *rows))
        return hashlib.sha256(digests.encode()).hexdigest()[:16]
    return sha256(folder / MODEL_FILE)[:16]


def load_training_state(folder: Path, own: Mapping[str, RowShard] | None = None) -> TrainingState:
    """Read what a resume needs besides the model; `own` is that of `load_tensors`."""
    average = folder / AVERAGE_FILE
    return TrainingState(
        values=load_training_values(folder),
        optimizer=load_tensors(folder / OPTIMIZER_FILE, own),
        tensors=load_tensors(folder / TRAINING_TENSORS_FILE),
        average=load_tensors(average, own) if average.is_file() else {},
    )


def load_training_values(folder: Path) -> TrainingValues:
    """Read the values other than tensors that a resume needs."""
    path = folder / TRAINING_STATE_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder}: no {path.name}; this checkpoint cannot be resumed from")
    require_unchanged(path, read_manifest(folder))
    try:
        return TrainingValues.model_validate(read_json(path, MAX_TRAINING_STATE_BYTES))
    except ValidationError as error:
        raise CheckpointError(
            f"{path}: {described(error)}; the checkpoint cannot be used"
        ) from None


def require_whole(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint after checking that all its files are unchanged."""
    manifest = read_manifest(folder)
    for name in {MODEL_FILE: "", **manifest.sha256}:
        require_unchanged(folder / name, manifest)
    return manifest


def _require_room(path: Path, files: Sequence[Path]) -> None:
    needed = sum(file.stat().st_size for file in files) / 2**30
    free = free_gib(torch.device("cpu"))
    if needed > free:
        raise OutOfMemoryError(
            f"{path}: its {len(files)} shards need {needed:.2f} GiB together, but only "
            f"{free:.2f} GiB are free; gather them on a machine with more memory"
        )


_NAME = re.compile(r"rows-(\d+)-of-(\d+)\.safetensors")


def rows_file(rank: int, size: int) -> str:
    return f"rows-{rank}-of-{size}.safetensors"


def rows_files(names: Iterable[str]) -> list[str]:
    """Return the row files among the files of a checkpoint, in order of ranks."""
    found = {int(m[1]): m for name in names if (m := _NAME.fullmatch(name))}
    if not found:
        return []
    size = int(next(iter(found.values()))[2])
    for rank in range(size):
        if rank not in found:
            raise CheckpointError(
                f"{rows_file(rank, size)}: missing (rows of rank {rank}); use another checkpoint"
            )
    return [found[rank][0] for rank in range(size)]


def split_rows(
    tensors: Mapping[str, Tensor], shards: Mapping[str, RowShard], kind: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split tensors into those that are not sharded and, as `<kind>/<name>`, sharded rows."""
    same, rows = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        parameter = name if name in shards else name.rpartition("/")[0]
        if parameter in shards and tensor.dim() > 0:
            rows[f"{kind}/{name}"] = tensor
        else:
            same[name] = tensor
    return same, rows


def read_rows(
    paths: Iterable[Path], kind: str, wanted: Mapping[str, RowShard] | None
) -> dict[str, Tensor]:
    """Return the rows of one kind from the files of all processes, or only the wanted ones."""
    parts: dict[str, list[Tensor]] = {}
    seen, shards = dict[str, int](), dict[str, RowShard]()
    for path in paths:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 (no mapping)
                if not key.startswith(f"{kind}/"):
                    continue
                name, rows = key.removeprefix(f"{kind}/"), file.get_slice(key)
                first, count = seen.get(name, 0), rows.get_shape()[0]
                seen[name] = first + count
                low, high = first, first + count
                if wanted is not None:
                    shard = wanted.get(name) or wanted[name.rpartition("/")[0]]
                    low, high, shards[name] = max(low, shard.start), min(high, shard.stop), shard
                if low < high:
                    parts.setdefault(name, []).append(rows[low - first : high - first])
    for name, shard in shards.items():
        _require_rows(name, seen[name], shard)
    return {name: cat(found) for name, found in parts.items()}


def _rows_of(file: Any, key: str, wanted: Mapping[str, RowShard]) -> Tensor:
    """Return the wanted rows of a table in a file that one process wrote, or a whole tensor."""
    shard = wanted.get(key) or wanted.get(key.rpartition("/")[0])
    tensor: Any = file.get_slice(key)
    if shard is None or not tensor.get_shape():
        return file.get_tensor(key)  # type: ignore[no-any-return]
    _require_rows(key, tensor.get_shape()[0], shard)
    return tensor[shard.start : shard.stop]  # type: ignore[no-any-return]


def _require_rows(name: str, count: int, shard: RowShard) -> None:
    if count != shard.num_rows:
        raise CheckpointError(
            f"{name} has {count} rows, the model needs {shard.num_rows}; the checkpoint belongs "
            "to another model"
        )


def write_own_rows(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    shards: Mapping[str, RowShard],
    world: World,
) -> None:
    """Write this process's rows of sharded tables into the folder that all processes share."""
    device, rows, problem = torch.device("cpu"), dict[str, Tensor](), ""
    folder = Path(world.broadcast_text(str(folder), device))
    for kind, named in tensors.items():
        rows |= split_rows(named, shards, kind)[1]
    try:
        save_tensors(rows, folder / rows_file(world.rank, world.size))
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    for rank, said in enumerate(world.gather_texts(problem, device)):
        if said:
            raise PlaceError(
                f"rank {rank} could not write its rows of the checkpoint: {said}; no checkpoint "
                "was written. All processes need the same folder: set it with --checkpoint-dir"
            )
