"""The rows of sharded tables in a checkpoint: one safetensors file per process.

    rows-0-of-4.safetensors    `model/<parameter>`, `optimizer/<parameter>/<state>`,
                               `average/<parameter>`: the rows of this process, in order

Everything that is not sharded is in the usual files, which the main process writes. The manifest
contains the digests of all files. Any number of processes can read the files: each process reads
only the rows that it needs, from these files or from the file of a table that is not sharded.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, cat

from clew.errors import CheckpointError, PlaceError
from clew.training.distributed import World
from clew.training.manifest import save_tensors
from clew.training.sharding.table import RowShard

_NAME = re.compile(r"rows-(\d+)-of-(\d+)\.safetensors")


def rows_file(rank: int, size: int) -> str:
    return f"rows-{rank}-of-{size}.safetensors"


def rows_files(names: Iterable[str]) -> list[str]:
    """Return the row files among the files of a checkpoint, in order of ranks.

    Raises:
        CheckpointError: The file of a process is missing.
    """
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
        is_sharded = parameter in shards and tensor.dim() > 0
        if is_sharded:
            rows[f"{kind}/{name}"] = tensor
        else:
            same[name] = tensor
    return same, rows


def read_rows(
    paths: Iterable[Path], kind: str, wanted: Mapping[str, RowShard] | None
) -> dict[str, Tensor]:
    """Return the rows of one kind from the files of all processes.

    Args:
        paths: The files, in order of ranks.
        kind: `model`, `optimizer` or `average`.
        wanted: The rows to read of each parameter; None: all rows.
    """
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


def read_file(path: Path, wanted: Mapping[str, RowShard]) -> dict[str, Tensor]:
    """Return the tensors of a file that one process wrote, with only the wanted rows of tables.

    Args:
        path: The file.
        wanted: The rows to read, by parameter; parameters that are not listed are read whole.
    """
    with safe_open(path, "pt") as file:
        return {key: _rows_of(file, key, wanted) for key in file.keys()}  # noqa: SIM118


def _rows_of(file: Any, key: str, wanted: Mapping[str, RowShard]) -> Tensor:
    shard = wanted.get(key) or wanted.get(key.rpartition("/")[0])
    shape = file.get_slice(key).get_shape()
    if shard is None or not shape:
        whole: Tensor = file.get_tensor(key)
        return whole
    _require_rows(key, shape[0], shard)
    own: Tensor = file.get_slice(key)[shard.start : shard.stop]
    return own


def _require_rows(name: str, count: int, shard: RowShard) -> None:
    """Check the number of rows of a table.

    Raises:
        CheckpointError: The table has more or fewer rows than the model's table.
    """
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
    """Write this process's rows of sharded tables into the folder that all processes share.

    Args:
        folder: The main process's folder.
        tensors: For each kind, the tensors of this process by name.
        shards: The rows that this process has of each sharded parameter.
        world: The processes.

    Raises:
        PlaceError: A process could not write its rows; the message names the process.
    """
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
