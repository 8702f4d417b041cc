"""The first stage of a search: estimated scores of all windows, from the checkpoints' indices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.influence.windows.index_files import IndexManifest


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
