"""Build the index of a checkpoint, and search it.

The inner product of two gradients is estimated by that of their projections. A search computes no
gradient of a training window. The exact scores of the best estimates are computed afterwards.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.files import replacing
from clew.influence.factors import (
    Explicit,
    Factor,
    Factors,
    Outer,
    in_full,
    inner_products,
    is_cheaper_in_full,
    squared_norms,
)
from clew.influence.kernel import FactoredGradients
from clew.influence.projections import (
    COLUMNS,
    DIRECTIONS_FILE,
    FOLDER,
    ROWS,
    SCALES,
    SQUARED_NORMS,
    WINDOWS_FILE,
    IndexManifest,
    IndexOf,
    Projection,
    SharedDirections,
    TwoSided,
    WindowIndex,
    read_index,
    write_manifest,
)
from clew.layers.products import MatrixProduct
from clew.training.loaders import ExampleSource
from clew.training.manifest import save_tensors
from clew.training.task import B

COMPARED_TILES = 16
"""Number of tiles of windows whose products are compared with those of their projections."""
SAMPLED_WINDOWS = 12
"""Number of windows whose gradients determine the directions of projections."""
SEARCHED_AT_ONCE = 256


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
    comparison = _Comparison()
    with replacing(checkpoint / FOLDER) as folder:
        folder.mkdir()
        with open(folder / WINDOWS_FILE, "wb") as file:  # a memory map crashes on a full disk
            shape = (len(windows), sum(sizes.values()))
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for indices in tiles:
                factors = gradients(windows.batch(indices).to(device))
                projected, own = _projected(factors, projections, multiply, comparison)
                scale = projected.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny)
                file.write((projected / scale[:, None]).half().numpy().tobytes())
                scales[indices], norms[indices] = scale, own
                progress(int(indices[-1]) + 1)
        save_tensors(
            {SCALES: scales, SQUARED_NORMS: norms, **_directions(projections)},
            folder / DIRECTIONS_FILE,
        )
        manifest = write_manifest(
            folder,
            IndexManifest(
                of=of,
                sizes=sizes,
                explicit_parameters=dict(gradients.explicit_parameters),
                cosine_error=comparison.error,
                compared_pairs=comparison.pairs,
                seconds=time.perf_counter() - started,
            ),
        )
    return read_index(checkpoint / FOLDER, manifest)


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
    comparison: "_Comparison",
) -> tuple[Float[Tensor, "window number"], Float[Tensor, "window parameter"]]:
    parts, norms, products = [], [], []
    for name, projection in projections.items():
        own: list[Factor] = factors.pop(name)
        if is_cheaper_in_full(own, [], norms=True):
            own = [Explicit(in_full(own, multiply))]
        parts.append(projection(own).cpu())
        norms.append(squared_norms(own).cpu())
        if comparison.goes_on:
            products.append(inner_products(own, own).cpu())
    projected = torch.cat(parts, dim=1)
    if comparison.goes_on:
        comparison.add(torch.stack(products).sum(0), projected @ projected.T)
    return projected, torch.stack(norms, dim=1)


def _directions(projections: Mapping[str, Projection]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, projection in projections.items():
        if isinstance(projection, TwoSided):
            sides = ((ROWS, projection.rows), (COLUMNS, projection.columns))
            found |= {f"{side}/{name}": directions.cpu() for side, directions in sides}
    return found


class _Comparison:
    """Compares exact products of the first windows with their estimates."""

    def __init__(self) -> None:
        self.tiles, self.pairs, self._squares = 0, 0, 0.0

    @property
    def goes_on(self) -> bool:
        return self.tiles < COMPARED_TILES

    @property
    def error(self) -> float | None:
        return (self._squares / self.pairs) ** 0.5 if self.pairs else None

    def add(self, exact: Float[Tensor, "a a"], estimated: Float[Tensor, "a a"]) -> None:
        norms = exact.diagonal().clamp_min(torch.finfo(torch.float32).tiny).rsqrt()
        errors = (estimated - exact) * norms[:, None] * norms
        above = torch.triu(torch.ones_like(errors, dtype=torch.bool), diagonal=1)
        self._squares += float(errors[above].square().sum())
        self.pairs += int(above.sum())
        self.tiles += 1


@dataclass(frozen=True)
class SearchSettings:
    """How windows are searched before scores are computed."""

    candidates: int
    """Windows of each sign whose scores are computed."""
    rank: int
    """Directions on each side of a projection."""
    opponents: bool = True
    """Whether to search for opponents too, or only for proponents."""


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
    settings: SearchSettings
    indices: Sequence[IndexManifest]
    index_bytes: int
    making_seconds: Sequence[float]
    """Time to build each missing index."""

    def candidates(self) -> Int[np.ndarray, "window"]:
        """Return the windows with the largest or the smallest estimates for any test."""
        count = min(self.settings.candidates, self.scores.shape[1])
        signs = (True, False) if self.settings.opponents else (True,)
        ends = [self.scores.topk(count, largest=largest).indices for largest in signs]
        return np.unique(torch.cat(ends).numpy())

    def compared(
        self, test: int, chosen: np.ndarray, scores: Float[Tensor, "window"], own: float
    ) -> Searched:
        norms = (self.own[chosen] * own).clamp_min(1e-300).sqrt()
        errors = (self.scores[test, chosen] - scores.cpu()) / norms
        stated = [index.cosine_error for index in self.indices if index.cosine_error is not None]
        return Searched(
            num_scored=len(chosen),
            opponents=self.settings.opponents,
            cosine_error=float(errors.square().mean().sqrt()),
            index_bytes=self.index_bytes,
            index_cosine_error=max(stated, default=None),
            indices_made=len(self.making_seconds),
            making_seconds=sum(self.making_seconds, 0.0),
        )
