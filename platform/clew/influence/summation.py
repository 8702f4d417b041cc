"""TracIn's sum over checkpoints, computed one tile of training examples at a time.

The outer loop is over tiles and the inner loop over checkpoints, which all stay in memory. So each
checkpoint is loaded only once, and the scores of a tile are complete after its inner loop.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.errors import CheckpointError
from clew.influence.scores import (
    Everything,
    Explanation,
    Strongest,
    Tile,
    require_finite,
)
from clew.training.manifest import CheckpointRecord
from clew.training.memory import MemoryCleanup

logger = logging.getLogger(__name__)

DETAILS_LIMIT_MIB = 1024.0

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

    @property
    def test_squared_norm(self) -> Tensor:
        """Squared gradient norms of the test examples, `(test,)`."""

    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        """Return the products of training examples, by index, with all test examples."""

    def squared_norms(self, train: np.ndarray) -> Tensor:
        """Return the squared gradient norms of training examples, `(train,)`."""


@dataclass(frozen=True, eq=False)
class Summation:
    """The weighted sum over checkpoints.

    With weights w_k and gradients g_k, a score is the inner product of the vectors
    (sqrt(w_k) g_k)_k. A cosine divides it by the norms of both vectors, which are the square roots
    of the self-influences.
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
        return self.kernels[0].parts

    @property
    def test_self_influence(self) -> Float[Tensor, "test"]:
        norms = [kernel.test_squared_norm.double() for kernel in self.kernels]
        return torch.stack([w * n for w, n in zip(self.weights, norms, strict=True)]).sum(0)

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


@dataclass(frozen=True, eq=False)
class MeanOfRuns:
    """The mean of several sums over checkpoints, together with the scores of each run.

    The runs have the same configuration and different seeds. The score of one run describes what
    happened in that run. The agreement of the runs shows how much of it is due to the data. If the
    form of score divides by norms, each run's scores are divided by that run's norms before they
    are averaged. The contributions of checkpoints at the same step are averaged over all runs; a
    run that stopped earlier contributes 0 to later steps.
    """

    runs: Sequence[Summation]
    steps: Sequence[Sequence[int]]
    """Step of each checkpoint of each run."""

    @property
    def parts(self) -> tuple[str, ...]:
        return self.runs[0].parts

    @property
    def test_self_influence(self) -> Float[Tensor, "test"]:
        return torch.stack([run.test_self_influence for run in self.runs]).mean(0)

    def tile(self, indices: np.ndarray) -> Tile:
        """Return the scores of some training examples."""
        tiles = [run.tile(indices) for run in self.runs]
        by_run = torch.stack([tile.influence for tile in tiles])
        cosines = [tile.cosine for tile in tiles if tile.cosine is not None]
        return replace(
            tiles[0],
            influence=by_run.mean(0),
            by_checkpoint=self._by_step([tile.by_checkpoint for tile in tiles]),
            by_part=torch.stack([tile.by_part for tile in tiles]).mean(0),
            cosine=torch.stack(cosines).mean(0) if cosines else None,
            by_run=by_run,
        )

    def _by_step(self, by_checkpoint: Sequence[Tensor]) -> Float[Tensor, "step test train"]:
        every = all_steps(self.steps)
        total = by_checkpoint[0].new_zeros(len(every), *by_checkpoint[0].shape[1:])
        for steps, values in zip(self.steps, by_checkpoint, strict=True):
            total[[every.index(step) for step in steps]] += values / len(self.runs)
        return total


def checked_weights(checkpoints: Sequence[CheckpointRecord]) -> list[float]:
    if not checkpoints:
        raise CheckpointError(
            "the run has no checkpoints; influence is a sum over them. Train with "
            "training.checkpoint_frequency of 1 or more and tracking.log_checkpoints"
        )
    weights = [record.learning_rate_weight for record in checkpoints]
    if not any(weights):
        raise CheckpointError(
            "all checkpoints have learning_rate_weight 0: nothing was learned between them"
        )
    return weights


def all_steps(steps: Sequence[Sequence[int]]) -> list[int]:
    return sorted({step for run in steps for step in run})


def explain_in_tiles(
    summation: Summation | MeanOfRuns,
    tiles: Iterable[np.ndarray],
    total: int,
    *,
    top_k: int,
    numbers_per_pair: int,
    cleanup: MemoryCleanup,
    progress: Callable[[int, int], None],
) -> Explanation:
    """Score training examples for the test examples of one sum over checkpoints.

    Args:
        summation: Holds the test examples.
        tiles: Indices of the training examples, tile by tile.
        total: Number of training examples in all tiles.
        top_k: Proponents and opponents of each test example to keep; 0 keeps every score.
        numbers_per_pair: Number of contributions of a pair; they are kept with every score if they
            fit into memory.
        cleanup: Frees cached memory after some of the tiles.
        progress: Called with the number of training examples done and in total.
    """
    own = summation.test_self_influence.cpu().numpy()
    everything = Everything(details=bool(top_k) or _fits(len(own), total, numbers_per_pair))
    strongest = (Strongest(top_k, 1), Strongest(top_k, -1)) if top_k else None
    done = 0
    for count, indices in enumerate(tiles):
        tile = summation.tile(indices)
        for kept in strongest or (everything,):
            kept.add(tile)
        done += len(indices)
        progress(done, total)
        cleanup.after_step(count)
    if strongest is not None:
        proponents, opponents = (kept.result() for kept in strongest)
    else:
        proponents = opponents = everything.result()
    require_finite(proponents, opponents)
    return Explanation(proponents, opponents, not top_k, own, summation.parts)


def _fits(num_tests: int, num_train: int, numbers_per_pair: int) -> bool:
    """Whether the contributions of all pairs fit into memory; warn if they do not."""
    size_mib = 4.0 * num_tests * num_train * numbers_per_pair / 2**20
    if size_mib > DETAILS_LIMIT_MIB:
        logger.warning(
            "contributions by part and checkpoint of %d x %d scores would need %.0f MiB and "
            "are left out; the scores are complete",
            num_tests,
            num_train,
            size_mib,
        )
    return size_mib <= DETAILS_LIMIT_MIB


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
