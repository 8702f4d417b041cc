"""The mean of scores over runs of one configuration with other seeds.

The score of one run says what happened in that run; how far other runs agree says how much of it is
due to the data. Each run's scores are complete before they are averaged: divided by that run's
norms, if the form of the score is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.influence.scores import Tile
from clew.influence.summation import Summation


@dataclass(frozen=True, eq=False)
class MeanOfRuns:
    """The mean of several sums over checkpoints, with the scores of each run beside it.

    Contributions of checkpoints are those of the same step in each run, averaged over all runs: a
    run that stopped earlier contributes nothing to later steps.
    """

    runs: Sequence[Summation]
    steps: Sequence[Sequence[int]]
    """Step of each checkpoint of each run."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the selected parts."""
        return self.runs[0].parts

    @property
    def test_self_influence(self) -> Float[Tensor, "test"]:
        """Self-influence of the test examples, float64."""
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


def all_steps(steps: Sequence[Sequence[int]]) -> list[int]:
    """Return every step at which a run has a checkpoint, in order."""
    return sorted({step for run in steps for step in run})
