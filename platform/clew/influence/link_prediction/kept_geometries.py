"""A disk cache of geometries, so that only the first explanation of a model estimates them.

The moments of training rows do not depend on what is explained. The name of a file is a digest of
everything that they depend on, including the code. The file holds the digest of its own tensors. If
several processes need the same geometry, one estimates it and the others wait.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import described
from clew.files import replacing, waiting_lock
from clew.influence.link_prediction.geometry import Geometry, Metric
from clew.training.checkpoint_files import save_tensors
from clew.training.peers import code_digest
from clew.training.precision import device_name

logger = logging.getLogger(__name__)

LARGEST_FOLDER_BYTES = 2**30
"""Largest size of the folder; the least recently used files are removed first."""
SCALE, VECTORS, WEIGHTS = "scale", "vectors", "weights"
SHA256 = "sha256"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


def kept(
    folder: Path | None,
    depends_on: Mapping[str, Any],
    make: Callable[[], Geometry],
    device: torch.device,
) -> Geometry:
    """Return a geometry from the cache, or estimate it and store it in the cache.

    Args:
        folder: Folder of the cache; None: no cache.
        depends_on: JSON values that the geometry depends on, in addition to code, device and number
            of threads.
        make: Estimates the geometry.
        device: Device of the tensors.
    """

    def made() -> Geometry:
        """Return the geometry as if it were read from a file.

        The memory layout of an operand can change the last bit of a product.
        """
        return _geometry(_tensors(make()))

    if folder is None:
        return made()
    path = folder / f"{_digest_of(depends_on, device)}.safetensors"
    was_there = path.is_file()
    if was_there and (found := _found(path, device)):
        return found
    with _alone(path):
        if not was_there and path.is_file() and (found := _found(path, device)):
            return found  # another process has stored it in the meantime
        geometry = made()
        try:
            _write(path, geometry)
            _make_room(folder)
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s), so the next explanation estimates the moments again; "
                "set XDG_CACHE_HOME to a folder that you can write",
                path,
                described(error),
            )
    return geometry


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        with suppress(OSError, RuntimeError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(waiting_lock(path.with_suffix(".lock")))
            # Processes that wait for the lock find the geometry, and need no lock after that.
            stack.callback(path.with_suffix(".lock").unlink, missing_ok=True)
        yield


def _found(path: Path, device: torch.device) -> Geometry | None:
    """Return the geometry in a file; None, with a warning, if the file cannot be used."""
    try:
        found = _read(path, device)
        path.touch()
    except UNREADABLE as error:
        logger.warning("%s cannot be used (%s); it is estimated again", path, described(error))
        return None
    return found


def _digest_of(depends_on: Mapping[str, Any], device: torch.device) -> str:
    machine = (torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())
    whole = [dict(depends_on), code_digest(), device_name(device), *map(str, machine)]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:40]


def _read(path: Path, device: torch.device) -> Geometry:
    """Read a geometry.

    Raises:
        ValueError, KeyError, ...: The file is damaged.
    """
    tensors = load_file(path)
    if tensors.pop(SHA256).numpy().tobytes() != _digest(tensors):
        raise ValueError("the SHA-256 of its tensors is not the stored one")
    # Tensors are read into any place in memory, and products can depend on where operands begin.
    return _geometry({name: tensor.clone().to(device) for name, tensor in tensors.items()})


def _write(path: Path, geometry: Geometry) -> None:
    tensors = {name: tensor.cpu() for name, tensor in _tensors(geometry).items()}
    stated = torch.frombuffer(bytearray(_digest(tensors)), dtype=torch.uint8)
    with replacing(path) as temporary:
        save_tensors(tensors | {SHA256: stated}, temporary)


def _tensors(geometry: Geometry) -> dict[str, Tensor]:
    found = {}
    for field in fields(geometry):
        value = getattr(geometry, field.name)
        if isinstance(value, Metric):
            found[f"{field.name}/{SCALE}"] = torch.tensor(value.scale, dtype=torch.float64)
            found[f"{field.name}/{VECTORS}"] = value.vectors.contiguous()
            found[f"{field.name}/{WEIGHTS}"] = value.weights.contiguous()
        elif value is not None:
            found[field.name] = value.contiguous()
    return found


def _geometry(tensors: Mapping[str, Tensor]) -> Geometry:
    """Return the geometry that the tensors hold.

    Raises:
        KeyError, TypeError: The tensors do not hold a geometry.
    """
    parts: dict[str, Any] = {"features": None}
    for name, tensor in tensors.items():
        field, _, kind = name.partition("/")
        if kind == SCALE:
            others = (tensors[f"{field}/{other}"] for other in (VECTORS, WEIGHTS))
            parts[field] = Metric(float(tensor), *others)
        elif not kind:
            parts[field] = tensor
    return Geometry(**parts)


def _digest(tensors: Mapping[str, Tensor]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _make_room(folder: Path) -> None:
    states = [(path, path.stat()) for path in folder.glob("*.safetensors")]
    total = 0
    for path, state in sorted(states, key=lambda each: each[1].st_mtime_ns, reverse=True):
        total += state.st_size
        if total > LARGEST_FOLDER_BYTES:
            with suppress(OSError):  # another process can be faster
                path.unlink()
