"""Build the index of a checkpoint, and search it.

The inner product of two gradients is estimated by that of their projections. A search computes no
gradient of a training window. The exact scores of the best estimates are computed afterwards.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.files import replacing
from clew.influence.factors import Explicit, Factor, Factors, Outer, inner_products, squared_norms
from clew.influence.kernel import FactoredGradients
from clew.influence.windows.condensing import in_full, is_cheaper_in_full
from clew.influence.windows.index_files import (
    COLUMNS,
    DIRECTIONS_FILE,
    FOLDER,
    ROWS,
    SCALES,
    SQUARED_NORMS,
    WINDOWS_FILE,
    IndexManifest,
    IndexOf,
    WindowIndex,
    read_index,
    write_manifest,
)
from clew.influence.windows.projections import Projection, SharedDirections, TwoSided
from clew.layers.products import MatrixProduct
from clew.training.checkpoint_files import save_tensors
from clew.training.loaders import ExampleSource
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
    """Project the gradient of every training window, and write the checkpoint's index.

    Args:
        checkpoint: Folder of the checkpoint.
        of: Identity of the index.
        gradients: Gradients of all parameters of the checkpoint's model.
        windows: Training windows.
        tiles: Indices of windows that are computed together; they cover all windows in order.
        multiply: Matrix product that multiplies gradients out.
        progress: Called with the number of windows done.

    Raises:
        OSError: The index cannot be written.
    """
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
