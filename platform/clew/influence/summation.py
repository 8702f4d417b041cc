"""TracIn's sum over checkpoints, computed one tile of training examples at a time.

The outer loop is over tiles and the inner loop over checkpoints, which all stay in memory. So each
checkpoint is loaded only once, and the scores of a tile are complete after its inner loop.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.errors import CheckpointError
from clew.influence.scores import Everything, Explanation, Strongest, Tile, require_finite
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


@dataclass(eq=False)
class Sums:
    """Weighted sums of products over checkpoints, in float64."""

    by_checkpoint: list[Float[Tensor, "test train"]] = field(default_factory=list)
    by_part: Float[Tensor, "part test train"] | None = None
    own: Float[Tensor, "train"] | None = None
    """Self-influence of the training examples, if their norms are known."""

    def add(self, weight: float, products: Products) -> None:
        weighted = products.by_part.double().mul_(weight)
        self.by_checkpoint.append(weighted.sum(0))
        self.by_part = weighted if self.by_part is None else self.by_part.add_(weighted)
        if products.squared_norm is not None:
            norm = products.squared_norm.double().mul_(weight)
            self.own = norm if self.own is None else self.own.add_(norm)

    def tile(
        self,
        indices: np.ndarray,
        tests: Float[Tensor, "test"],
        *,
        cosine: bool,
        divided_by: Norms = "none",
    ) -> Tile:
        """Return the scores of training examples; `tests` are the tests' self-influences."""
        assert self.by_part is not None
        by_checkpoint, by_part, cosines = torch.stack(self.by_checkpoint), self.by_part, None
        influence = by_checkpoint.sum(0)
        if self.own is not None:
            own = self.own.to(influence.device)
            both = (tests[:, None] * own).clamp_min(1e-300).rsqrt()
            cosines = influence * both if cosine else None
            if divided_by != "none":
                scale = both if divided_by == "both" else own.clamp_min(1e-300).rsqrt()
                influence, by_checkpoint = influence * scale, by_checkpoint * scale
                by_part = by_part * scale
        train = torch.from_numpy(indices).to(influence.device)
        return Tile(train, influence, by_checkpoint, by_part, cosines, candidate=None)


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
        sums = Sums()
        for kernel, weight in zip(self.kernels, self.weights, strict=True):
            norms = self.cosine or self.divided_by != "none"
            sums.add(weight, kernel.products(indices, norms=norms))
        tile = sums.tile(
            indices, self.test_self_influence, cosine=self.cosine, divided_by=self.divided_by
        )
        if self.candidates is None:
            return tile
        candidate = torch.from_numpy(self.candidates[:, indices]).to(tile.train.device)
        return replace(tile, candidate=candidate)


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
        every, first = all_steps(self.steps), tiles[0].by_checkpoint
        by_step = first.new_zeros(len(every), *first.shape[1:])
        for steps, tile in zip(self.steps, tiles, strict=True):
            by_step[[every.index(step) for step in steps]] += tile.by_checkpoint / len(tiles)
        return replace(
            tiles[0],
            influence=by_run.mean(0),
            by_checkpoint=by_step,
            by_part=torch.stack([tile.by_part for tile in tiles]).mean(0),
            cosine=torch.stack(cosines).mean(0) if cosines else None,
            by_run=by_run,
        )


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
    own, done = summation.test_self_influence.cpu().numpy(), 0
    sinks: list[Strongest] | list[Everything] = [Strongest(top_k, 1), Strongest(top_k, -1)]
    if not top_k:
        sinks = [Everything(details=_fits(len(own), total, numbers_per_pair))]
    for count, indices in enumerate(tiles):
        tile = summation.tile(indices)
        for sink in sinks:
            sink.add(tile)
        done += len(indices)
        progress(done, total)
        cleanup.after_step(count)
    kept = [sink.result() for sink in sinks]
    require_finite(*kept)
    return Explanation(kept[0], kept[-1], not top_k, own, summation.parts)


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
        norms = [kernel.squared_norms(indices).double().cpu().numpy() for kernel in kernels]
        values[indices] = sum(w * norm for w, norm in zip(weights, norms, strict=True))
    return values
