"""The index of a checkpoint on disk: projections of every training window's gradient.

    projections/index.json              identity, error, and the digests of the other files
    projections/windows.npy             float16 `(window, number)`, one parameter after the other
    projections/directions.safetensors  the random directions, scales, and squared norms

The folder is inside the checkpoint's folder and is written atomically. The identity of an index is
the digest of the weights, the fingerprint of the data, and the settings of the projections. An
index with another identity is stale, and is built again.

The inner product of two gradients is estimated by that of their projections. A search computes no
gradient of a training window. The exact scores of the best estimates are computed afterwards.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pydantic
import torch
from jaxtyping import Float, Int
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.config.services import InfluenceConfig
from clew.errors import CheckpointError, described
from clew.files import replacing
from clew.influence.factors import (
    Explicit,
    Factor,
    Factors,
    Outer,
    Projection,
    SharedDirections,
    in_full,
    inner_products,
    is_cheaper_in_full,
    squared_norms,
)
from clew.influence.kernel import FactoredGradients
from clew.layers.products import MatrixProduct
from clew.training.loaders import ExampleSource
from clew.training.manifest import MODEL_FILE, read_manifest, save_tensors, sha256
from clew.training.task import B

logger = logging.getLogger(__name__)
FOLDER = "projections"
INDEX_FILE, WINDOWS_FILE, DIRECTIONS_FILE = "index.json", "windows.npy", "directions.safetensors"
SCALES, SQUARED_NORMS = "scales", "squared_norms"
ROWS, COLUMNS = "rows", "columns"
COMPARED_TILES = 16
"""Number of tiles of windows whose products are compared with those of their projections."""
SAMPLED_WINDOWS = 12
"""Number of windows whose gradients determine the directions of projections."""
SEARCHED_AT_ONCE = 256


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


class WindowIndex:
    """An index in a folder, ready to be searched."""

    def __init__(self, folder: Path, manifest: IndexManifest) -> None:
        tensors = load_file(folder / DIRECTIONS_FILE)
        self.manifest = manifest
        self.windows: np.ndarray = np.load(folder / WINDOWS_FILE, mmap_mode="r")
        """Projections divided by `scales`, a float16 memory map `(window, number)`."""
        self.scales = tensors[SCALES]
        """float32 `(window,)`."""
        self.squared_norms = tensors[SQUARED_NORMS]
        """Squared norms of the gradients before projection, `(window, parameter)`."""
        self.projections: dict[str, Projection] = {}
        for name, size in manifest.sizes.items():
            rows, columns = (tensors.get(f"{side}/{name}") for side in (ROWS, COLUMNS))
            sides = None if rows is None or columns is None else (rows, columns)
            self.projections[name] = Projection(size, sides)


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
        for name in (WINDOWS_FILE, DIRECTIONS_FILE):
            if sha256(folder / name) != manifest.sha256.get(name):
                raise CheckpointError(f"{name} was changed or damaged since it was written")
        return WindowIndex(folder, manifest)
    except (OSError, ValueError, KeyError, EOFError, SafetensorError) as error:
        logger.warning("%s: %s; the index is built again", folder, described(error))
        return None


def write_manifest(folder: Path, manifest: IndexManifest) -> IndexManifest:
    """Write the description of an index, with the digests of its files."""
    digests = {name: sha256(folder / name) for name in (WINDOWS_FILE, DIRECTIONS_FILE)}
    whole = IndexManifest(**{**vars(manifest), "sha256": digests})
    (folder / INDEX_FILE).write_bytes(_MANIFESTS.dump_json(whole, indent=1))
    return whole


@torch.no_grad()
def make_index(
    checkpoint: Path,
    of: IndexOf,
    gradients: FactoredGradients[B],
    windows: ExampleSource[B],
    tiles: Iterable[np.ndarray],
    *,
    multiply: MatrixProduct,
    progress: Callable[[int], None],
) -> WindowIndex:
    """Project the gradient of every training window, and write the checkpoint's index."""
    started = time.perf_counter()
    device = next(gradients.model.parameters()).device
    projections = _chosen(of, gradients, windows, multiply)
    sizes = {name: projection.size for name, projection in projections.items()}
    scales, norms = torch.empty(len(windows)), torch.empty(len(windows), len(sizes))
    errors: list[Tensor] = []
    with replacing(checkpoint / FOLDER) as folder:
        folder.mkdir()
        with open(folder / WINDOWS_FILE, "wb") as file:  # a memory map crashes on a full disk
            shape = (len(windows), sum(sizes.values()))
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for indices in tiles:
                factors = gradients(windows.batch(indices).to(device))
                projected, own = _projected(factors, projections, multiply, errors)
                scale = projected.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny)
                file.write((projected / scale[:, None]).half().numpy().tobytes())
                scales[indices], norms[indices] = scale, own
                progress(int(indices[-1]) + 1)
        tensors = {SCALES: scales, SQUARED_NORMS: norms}
        for name, projection in projections.items():
            sides = zip((ROWS, COLUMNS), projection.sides or (), strict=False)
            tensors |= {f"{side}/{name}": directions for side, directions in sides}
        save_tensors(tensors, folder / DIRECTIONS_FILE)
        compared = torch.cat(errors).double()
        description = IndexManifest(
            of=of,
            sizes=sizes,
            explicit_parameters=dict(gradients.explicit_parameters),
            cosine_error=float(compared.square().mean().sqrt()) if len(compared) else None,
            compared_pairs=len(compared),
            seconds=time.perf_counter() - started,
        )
        manifest = write_manifest(folder, description)
    return WindowIndex(checkpoint / FOLDER, manifest)


def _chosen(
    of: IndexOf, gradients: FactoredGradients[B], windows: ExampleSource[B], multiply: MatrixProduct
) -> dict[str, Projection]:
    device = next(gradients.model.parameters()).device
    shapes = {name: tuple(parameter.shape) for name, parameter in gradients.parameters.items()}
    directions = SharedDirections(shapes, of.rank, of.seed)
    for index in np.unique(np.linspace(0, len(windows) - 1, SAMPLED_WINDOWS).astype(int)):
        factors = gradients(windows.batch(np.array([index])).to(device))
        for name in gradients.parts:
            directions.add(name, in_full(factors.pop(name), multiply))
    return {name: found.to(device) for name, found in directions.projections().items()}


@torch.no_grad()
def search(
    index: WindowIndex, tests: Iterable[Factors], selected: Iterable[str]
) -> Float[Tensor, "test window"]:
    """Return estimates of the products of every training window with the tests, float64."""
    wanted = _columns(index, selected)
    sketches = torch.stack([_sketch(index.projections, test) for test in tests]).cpu()[:, wanted]
    parts = []
    for start in range(0, len(index.windows), SEARCHED_AT_ONCE):
        end = start + SEARCHED_AT_ONCE
        rows = torch.from_numpy(np.array(index.windows[start:end])).float()[:, wanted]
        parts.append((sketches @ rows.T).double() * index.scales[start:end])
    return torch.cat(parts, dim=1)


def window_norms(index: WindowIndex, selected: Iterable[str]) -> Float[Tensor, "window"]:
    names = list(index.manifest.sizes)
    return index.squared_norms[:, [names.index(name) for name in selected]].double().sum(1)


def _columns(index: WindowIndex, selected: Iterable[str]) -> slice | Tensor:
    chosen = set(selected)
    if chosen == set(index.manifest.sizes):
        return slice(None)
    sizes = index.manifest.sizes.items()
    return torch.cat([torch.full((size,), name in chosen) for name, size in sizes])


def _sketch(projections: Mapping[str, Projection], test: Factors) -> Float[Tensor, "number"]:
    """Return the projection of a test; zero for parameters that are not selected."""
    return torch.cat(
        [
            projection.to(_device(test[name]))(test[name])[0].cpu()
            if name in test
            else torch.zeros(projection.size)
            for name, projection in projections.items()
        ]
    )


def _device(factors: Sequence[Factor]) -> torch.device:
    factor = factors[0]
    return factor.left.device if isinstance(factor, Outer) else factor.values.device


def _projected(
    factors: Factors,
    projections: Mapping[str, Projection],
    multiply: MatrixProduct,
    errors: list[Tensor],
) -> tuple[Float[Tensor, "window number"], Float[Tensor, "window parameter"]]:
    """Return projections and squared norms; the first tiles add the errors of their cosines."""
    parts, norms, products = [], [], []
    compares = len(errors) < COMPARED_TILES
    for name, projection in projections.items():
        own: list[Factor] = factors.pop(name)
        if is_cheaper_in_full(own, [], norms=True):
            own = [Explicit(in_full(own, multiply))]
        parts.append(projection(own).cpu())
        norms.append(squared_norms(own).cpu())
        if compares:
            products.append(inner_products(own, own).cpu())
    projected = torch.cat(parts, dim=1)
    if compares:
        exact = torch.stack(products).sum(0)
        scale = exact.diagonal().clamp_min(torch.finfo(torch.float32).tiny).rsqrt()
        found = (projected @ projected.T - exact) * scale[:, None] * scale
        errors.append(found[torch.triu(torch.ones_like(found, dtype=torch.bool), diagonal=1)])
    return projected, torch.stack(norms, dim=1)


@dataclass(frozen=True)
class Searched:
    """Statistics of a search."""

    num_scored: int
    """Training windows whose scores were computed."""
    opponents: bool
    """Whether windows with the smallest estimates were scored too."""
    cosine_error: float
    """Root mean square error of these windows' estimated cosines with the test."""
    index_bytes: int
    """Size of all checkpoints' projections."""
    index_cosine_error: float | None
    """Largest `cosine_error` of the indices; None if only one window was indexed."""
    indices_made: int
    """Number of indices that were missing and were built first."""
    making_seconds: float
    """Time to build these indices."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated scores of all windows, summed over checkpoints."""

    scores: Float[Tensor, "test window"]
    own: Float[Tensor, "window"]
    """Self-influence of the windows; this is exact, not an estimate."""
    settings: InfluenceConfig
    indices: Sequence[WindowIndex]
    making_seconds: Sequence[float]
    """Time to build each missing index."""

    def candidates(self) -> Int[np.ndarray, "window"]:
        """Return the windows with the largest or the smallest estimates for any test."""
        count = min(self.settings.candidates, self.scores.shape[1])
        signs = (True, False) if self.settings.search_opponents else (True,)
        ends = [self.scores.topk(count, largest=largest).indices for largest in signs]
        return np.unique(torch.cat(ends).numpy())

    def compared(
        self, test: int, chosen: np.ndarray, scores: Float[Tensor, "window"], own: float
    ) -> Searched:
        norms = (self.own[chosen] * own).clamp_min(1e-300).sqrt()
        errors = (self.scores[test, chosen] - scores.cpu()) / norms
        stated = [index.manifest.cosine_error for index in self.indices]
        return Searched(
            num_scored=len(chosen),
            opponents=self.settings.search_opponents,
            cosine_error=float(errors.square().mean().sqrt()),
            index_bytes=sum(index.windows.nbytes for index in self.indices),
            index_cosine_error=max((e for e in stated if e is not None), default=None),
            indices_made=len(self.making_seconds),
            making_seconds=sum(self.making_seconds, 0.0),
        )
