"""The index of a checkpoint on disk: projections of every training window's gradient.

    projections/index.json              identity, error, and the digests of the other files
    projections/windows.npy             float16 `(window, number)`, one parameter after the other
    projections/directions.safetensors  the random directions, scales, and squared norms

The folder is inside the checkpoint's folder and is written atomically. The identity of an index is
the digest of the weights, the fingerprint of the data, and the settings of the projections. An
index with another identity is stale, and is built again.

A gradient of a matrix, G = sum_p l_p r_p^T, is projected on both sides,

    A^T G B = sum_p (A^T l_p)(B^T r_p)^T,     A: row x a, B: column x b, orthogonal columns

scaled so that the expected inner product of two projections is that of the gradients. It is
computed from the factors, so the gradient itself is never needed. Vectors, and matrices that are
not larger than their projection, are not projected. (Projections of both factors:
Johnson-Lindenstrauss for Kronecker products, Jin et al., arXiv 1909.04801; for gradients, LoGra,
arXiv 2405.13954, section 3.)
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import CheckpointError, described
from clew.influence.factors import Explicit, Factor, Outer, TableRows, explicit_sum
from clew.training.manifest import MODEL_FILE, read_manifest, sha256

OVERSAMPLING = 8
"""Number of random combinations in addition to the directions that are kept."""
logger = logging.getLogger(__name__)
FOLDER = "projections"
INDEX_FILE, WINDOWS_FILE, DIRECTIONS_FILE = "index.json", "windows.npy", "directions.safetensors"
SCALES, SQUARED_NORMS = "scales", "squared_norms"
ROWS, COLUMNS = "rows", "columns"


@dataclass(frozen=True, eq=False)
class TwoSided:
    """The projection of one matrix parameter, `(row, column)`."""

    rows: Float[Tensor, "row a"]
    columns: Float[Tensor, "column b"]

    @property
    def size(self) -> int:
        return self.rows.shape[1] * self.columns.shape[1]

    def to(self, device: torch.device) -> "TwoSided":
        return TwoSided(self.rows.to(device), self.columns.to(device))

    def __call__(self, factors: Sequence[Factor]) -> Float[Tensor, "example size"]:
        parts = [self._of(factor) for factor in factors]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def _of(self, factor: Factor) -> Tensor:
        if isinstance(factor, Explicit):
            matrix = factor.values.view(-1, len(self.rows), len(self.columns))
            return torch.matmul(self.rows.T, matrix @ self.columns).flatten(1)
        if isinstance(factor, Outer):
            left, right = factor.left @ self.rows, factor.right @ self.columns
        else:
            assert isinstance(factor, TableRows)
            left, right = self.rows[factor.ids], factor.values @ self.columns
        return (left.mT @ right).flatten(1)


@dataclass(frozen=True, eq=False)
class Whole:
    """The identity, for a parameter that is not projected."""

    size: int

    def to(self, device: torch.device) -> "Whole":
        return self

    def __call__(self, factors: Sequence[Factor]) -> Float[Tensor, "example size"]:
        return explicit_sum(factors)


Projection = TwoSided | Whole


class SharedDirections:
    """Chooses projections from the leading directions of a few gradients and random directions.

    Gradients of different windows have much in common. Half of the directions on each side of a
    matrix are the leading directions of a sample of gradients, found from random combinations of
    their rows and columns (Halko et al., 2011, arXiv 0909.4061, section 4). The other half are
    random directions orthogonal to these. The products are unbiased over the random half. With the
    same size, their error is a quarter of the error of random directions alone (measured on a
    language model).
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], rank: int, seed: int) -> None:
        self.rank, self._generator = rank, torch.Generator().manual_seed(seed)
        self._sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self._sides = {
            name: (shape[0], self._sizes[name] // shape[0])
            for name, shape in shapes.items()
            if len(shape) > 1 and self._sizes[name] > rank**2
        }
        self._combined: dict[str, tuple[list[Tensor], list[Tensor]]] = {
            name: ([], []) for name in self._sides
        }

    def add(self, name: str, gradients: Float[Tensor, "example size"]) -> None:
        if name not in self._sides:
            return
        rows, columns = self._combined[name]
        for gradient in gradients.reshape(-1, *self._sides[name]):
            unit = gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            rows.append((unit @ self._random(unit.shape[1]).to(unit)).cpu())
            columns.append((unit.T @ self._random(unit.shape[0]).to(unit)).cpu())

    def projections(self) -> dict[str, Projection]:
        return {name: self._projection(name) for name in self._sizes}

    def _projection(self, name: str) -> Projection:
        if name not in self._sides:
            return Whole(self._sizes[name])
        sides = zip(self._sides[name], self._combined[name], strict=True)
        return TwoSided(*(self._side(size, combined) for size, combined in sides))

    def _side(self, size: int, combined: Sequence[Tensor]) -> Float[Tensor, "size kept"]:
        """Return orthogonal columns; the identity if `size` is not larger than the rank."""
        if size <= self.rank:
            return torch.eye(size)
        leading = torch.zeros(size, 0, dtype=torch.float64)
        if combined:
            found = torch.linalg.svd(torch.cat(list(combined), dim=1).double(), full_matrices=False)
            leading = found.U[:, : self.rank // 2]
        kept = self.rank - leading.shape[1]
        rest = self._random(size, kept)
        for _ in range(2):  # the second pass removes the rounding error of the first
            rest = torch.linalg.qr(rest - leading @ (leading.T @ rest)).Q
        scale = math.sqrt((size - leading.shape[1]) / kept)
        return torch.cat([leading, scale * rest], dim=1).float()

    def _random(self, size: int, count: int | None = None) -> Float[Tensor, "size count"]:
        count = self.rank // 2 + OVERSAMPLING if count is None else count
        return torch.randn(size, count, generator=self._generator, dtype=torch.float64)


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


def index_of(checkpoint: Path, num_windows: int, rank: int, half: torch.dtype | None) -> IndexOf:
    """Return the identity of a checkpoint's index."""
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
            own, other = asdict(manifest.of), asdict(wanted)
            stale = [f"{k} is {own[k]!r}, expected {v!r}" for k, v in other.items() if own[k] != v]
            raise CheckpointError(f"stale: {'; '.join(stale)}")
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
