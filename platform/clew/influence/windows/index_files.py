"""The index of a checkpoint on disk: projections of every training window's gradient.

    projections/index.json              identity, error, and the digests of the other files
    projections/windows.npy             float16 `(window, number)`, one parameter after the other
    projections/directions.safetensors  the random directions, scales, and squared norms

The folder is inside the checkpoint's folder and is written atomically. The identity of an index is
the digest of the weights, the fingerprint of the data, and the settings of the projections. An
index with another identity is stale, and is built again.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import CheckpointError, described
from clew.influence.windows.projections import Projection, TwoSided, Whole
from clew.training.checkpoint_files import sha256
from clew.training.manifest import MODEL_FILE, read_manifest

logger = logging.getLogger(__name__)

FOLDER = "projections"
INDEX_FILE, WINDOWS_FILE, DIRECTIONS_FILE = "index.json", "windows.npy", "directions.safetensors"
SCALES, SQUARED_NORMS = "scales", "squared_norms"
ROWS, COLUMNS = "rows", "columns"


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IndexOf:
    """Identity of an index: indices with the same values are interchangeable."""

    weights: str
    """SHA-256 of the checkpoint's weights."""
    data_fingerprint: str
    config_hash: str
    """Hash of the configuration that divides the data into windows."""
    num_windows: int
    rank: int
    seed: int = 0
    precision: str = "float32"
    schema_version: int = 1


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IndexManifest:
    """Description of an index."""

    of: IndexOf
    sizes: dict[str, int]
    """Numbers in the projection of each parameter, in the order of the columns."""
    explicit_parameters: dict[str, str]
    """`FactoredGradients.explicit_parameters` of the model."""
    cosine_error: float | None
    """Root mean square error of a cosine of two training windows; None if there is only one."""
    compared_pairs: int
    seconds: float
    sha256: dict[str, str] = field(default_factory=dict)


_MANIFESTS = TypeAdapter(IndexManifest)


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """An index, ready to be searched."""

    manifest: IndexManifest
    windows: np.ndarray
    """Projections divided by `scales`, a float16 memory map `(window, number)`."""
    scales: Tensor
    """float32 `(window,)`."""
    squared_norms: Tensor
    """Squared norms of the gradients before projection, `(window, parameter)`."""
    projections: Mapping[str, Projection]

    @property
    def num_bytes(self) -> int:
        return int(self.windows.nbytes)


def index_of(checkpoint: Path, num_windows: int, rank: int, half: torch.dtype | None) -> IndexOf:
    """Return the identity of a checkpoint's index.

    Args:
        checkpoint: Folder of the checkpoint.
        num_windows: Number of training windows.
        rank: Directions on each side of a projection.
        half: Half-precision type of matrix products; None: float32.
    """
    manifest = read_manifest(checkpoint)
    return IndexOf(
        weights=manifest.sha256.get(MODEL_FILE) or sha256(checkpoint / MODEL_FILE),
        data_fingerprint=manifest.data_fingerprint,
        config_hash=manifest.config_hash,
        num_windows=num_windows,
        rank=rank,
        precision=str(half or torch.float32).removeprefix("torch."),
    )


def find_index(checkpoint: Path, wanted: IndexOf) -> WindowIndex | None:
    """Return the index of a checkpoint; None if it is missing, stale or damaged.

    A stale or damaged index is logged as a warning.
    """
    folder = checkpoint / FOLDER
    if not (folder / INDEX_FILE).is_file():
        return None
    try:
        manifest = _MANIFESTS.validate_json((folder / INDEX_FILE).read_bytes())
        if manifest.of != wanted:
            raise CheckpointError(_difference(manifest.of, wanted))
        if manifest.sha256.keys() != {WINDOWS_FILE, DIRECTIONS_FILE}:
            raise CheckpointError(f"{INDEX_FILE} lists the digests of other files")
        for name, digest in manifest.sha256.items():
            if sha256(folder / name) != digest:
                raise CheckpointError(f"{name} was changed or damaged since it was written")
        return read_index(folder, manifest)
    except (OSError, ValueError, KeyError, EOFError, SafetensorError) as error:
        logger.warning("%s: %s; the index is built again", folder, described(error))
        return None


def read_index(folder: Path, manifest: IndexManifest) -> WindowIndex:
    """Open the files of an index."""
    tensors = load_file(folder / DIRECTIONS_FILE)
    projections: dict[str, Projection] = {}
    for name, size in manifest.sizes.items():
        rows, columns = (tensors.get(f"{side}/{name}") for side in (ROWS, COLUMNS))
        if rows is None or columns is None:
            projections[name] = Whole(size)
        else:
            projections[name] = TwoSided(rows, columns)
    return WindowIndex(
        manifest,
        np.load(folder / WINDOWS_FILE, mmap_mode="r"),
        tensors[SCALES],
        tensors[SQUARED_NORMS],
        projections,
    )


def write_manifest(folder: Path, manifest: IndexManifest) -> IndexManifest:
    """Write the description of an index, with the digests of its files."""
    digests = {name: sha256(folder / name) for name in (WINDOWS_FILE, DIRECTIONS_FILE)}
    whole = IndexManifest(**{**vars(manifest), "sha256": digests})
    (folder / INDEX_FILE).write_bytes(_MANIFESTS.dump_json(whole, indent=1))
    return whole


def _difference(found: IndexOf, wanted: IndexOf) -> str:
    other = [
        f"{key} is {value!r}, expected {asdict(wanted)[key]!r}"
        for key, value in asdict(found).items()
        if value != asdict(wanted)[key]
    ]
    return f"stale: {'; '.join(other)}"
