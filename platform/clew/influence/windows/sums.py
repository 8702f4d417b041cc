"""Scores of windows summed over checkpoints, before the strongest are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.influence.scores import Tile
from clew.influence.summation import Products
from clew.influence.windows.checkpoint import WindowCheckpoint
from clew.training.task import B


@dataclass(eq=False)
class WindowSums:
    """Sums over checkpoints, in float64: a score of every pair, and self-influences."""

    parts: tuple[str, ...] = ()
    by_checkpoint: list[Float[Tensor, "test window"]] = field(default_factory=list)
    by_part: Float[Tensor, "part test window"] | None = None
    tests: Float[Tensor, "test"] | None = None
    """Self-influence of the tests."""
    own: Float[Tensor, "window"] | None = None
    """Self-influence of the windows, where cosines are wanted."""
    losses: list[float] = field(default_factory=list)
    """Loss of each test at the last checkpoint."""

    def add(self, weight: float, tiles: Sequence[Products], kernel: WindowCheckpoint[B]) -> None:
        """Add a checkpoint: the products of all windows, tile after tile."""
        by_part = torch.cat([tile.by_part for tile in tiles], dim=2).double().mul_(weight)
        self.parts = kernel.parts
        self.by_checkpoint.append(by_part.sum(0))
        self.by_part = by_part if self.by_part is None else self.by_part.add_(by_part)
        tests = kernel.test_squared_norm.double() * weight
        self.tests = tests if self.tests is None else self.tests + tests
        norms = [tile.squared_norm for tile in tiles if tile.squared_norm is not None]
        if norms:
            own = torch.cat(norms).double() * weight
            self.own = own if self.own is None else self.own + own

    def tile(self, test: int, chosen: np.ndarray) -> Tile:
        """Return the scores of one test."""
        assert self.by_part is not None
        assert self.tests is not None
        only = slice(test, test + 1)
        by_checkpoint = torch.stack(self.by_checkpoint)[:, only]
        influence, cosine = by_checkpoint.sum(0), None
        if self.own is not None:
            own = self.own.to(influence.device)
            cosine = influence * (self.tests[only, None] * own).clamp_min(1e-300).rsqrt()
        return Tile(
            train=torch.from_numpy(chosen).to(influence.device),
            influence=influence,
            by_checkpoint=by_checkpoint,
            by_part=self.by_part[:, only],
            cosine=cosine,
            candidate=None,
        )
