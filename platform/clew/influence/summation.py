"""TracIn's sum over checkpoints, computed one tile of training examples at a time.

The outer loop goes over tiles, the inner one over checkpoints, which all stay in memory: no
checkpoint is loaded twice, and scores leave the loop only when they are complete.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.influence.scores import Tile

Norms = Literal["none", "train", "both"]
"""What a score is divided by: nothing, the training gradient's norm, or both gradients' norms."""


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products of gradients at one checkpoint."""

    by_part: Float[Tensor, "part test train"]
    squared_norm: Float[Tensor, "train"] | None
    """Squared gradient norms of the training examples, if requested."""


@runtime_checkable
class CheckpointKernel(Protocol):
    """The contribution of one checkpoint."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the selected parts."""
        ...

    @property
    def test_squared_norm(self) -> Tensor:
        """Squared gradient norms of the test examples, `(test,)`."""
        ...

    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        """Return the products of training examples, by index, with all test examples."""
        ...

    def squared_norms(self, train: np.ndarray) -> Tensor:
        """Return the squared gradient norms of training examples, `(train,)`."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Receives tiles."""

    def add(self, tile: Tile) -> None:
        """Take a tile."""
        ...


@dataclass(frozen=True, eq=False)
class Summation:
    """The weighted sum over checkpoints.

    With weights w_k and gradients g_k, a score is the inner product of the vectors
    (sqrt(w_k) g_k)_k; a cosine divides it by their norms, the roots of the self-influences.
    """

    kernels: Sequence[CheckpointKernel]
    weights: Sequence[float]
    cosine: bool = False
    """Whether cosines are computed."""
    divided_by: Norms = "none"
    """Norms that scores and contributions are divided by."""
    candidates: np.ndarray | None = None
    """Pairs to include, `(test, train)`, bool; None: all."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the selected parts."""
        return self.kernels[0].parts

    @property
    def test_self_influence(self) -> Float[Tensor, "test"]:
        """Self-influence of the test examples, float64."""
        norms = [kernel.test_squared_norm.double() for kernel in self.kernels]
        return torch.stack([w * n for w, n in zip(self.weights, norms, strict=True)]).sum(0)

    def run(self, tiles: Iterable[np.ndarray], sinks: Sequence[Sink]) -> None:
        """Send every tile of training indices through all checkpoints into the sinks."""
        for indices in tiles:
            tile = self.tile(indices)
            for sink in sinks:
                sink.add(tile)

    def tile(self, indices: np.ndarray) -> Tile:
        """Return the scores of some training examples."""
        by_checkpoint, by_part, own = [], None, None
        for kernel, weight in zip(self.kernels, self.weights, strict=True):
            products = kernel.products(indices, norms=self.cosine or self.divided_by != "none")
            weighted = products.by_part.double().mul_(weight)
            by_checkpoint.append(weighted.sum(0))
            by_part = weighted if by_part is None else by_part.add_(weighted)
            if products.squared_norm is not None:
                norm = products.squared_norm.double().mul_(weight)
                own = norm if own is None else own.add_(norm)
        assert by_part is not None
        return self._assemble(indices, torch.stack(by_checkpoint), by_part, own)

    def _assemble(
        self, indices: np.ndarray, by_checkpoint: Tensor, by_part: Tensor, own: Tensor | None
    ) -> Tile:
        influence, cosine = by_checkpoint.sum(0), None
        if own is not None:
            both = (self.test_self_influence[:, None] * own).clamp_min(1e-300).rsqrt()
            cosine = influence * both if self.cosine else None
            if self.divided_by != "none":
                scale = both if self.divided_by == "both" else own.clamp_min(1e-300).rsqrt()
                influence, by_checkpoint = influence * scale, by_checkpoint * scale
                by_part = by_part * scale
        candidate = None
        if self.candidates is not None:
            candidate = torch.from_numpy(self.candidates[:, indices]).to(influence.device)
        return Tile(
            train=torch.from_numpy(indices).to(influence.device),
            influence=influence,
            by_checkpoint=by_checkpoint,
            by_part=by_part,
            cosine=cosine,
            candidate=candidate,
        )


def self_influence(
    kernels: Sequence[CheckpointKernel],
    weights: Sequence[float],
    tiles: Iterable[np.ndarray],
    num_examples: int,
) -> Float[np.ndarray, "train"]:
    """Return TracIn of every training example on itself, NaN if no tile contains it."""
    values: np.ndarray = np.full(num_examples, np.nan)
    for indices in tiles:
        total = np.zeros(len(indices))
        for kernel, weight in zip(kernels, weights, strict=True):
            total += weight * kernel.squared_norms(indices).double().cpu().numpy()
        values[indices] = total
    return values
