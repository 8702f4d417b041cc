"""Collect the scores to keep: the strongest of each test example, or all of them.

Scores arrive in tiles of training examples, already summed over all checkpoints, because adding up
the top k of each checkpoint would give wrong results.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr
from torch import Tensor

from clew.errors import NonFiniteLossError

Sign = Literal[1, -1]


@dataclass(frozen=True, eq=False)
class Tile:
    """Scores of some training examples for all test examples."""

    train: Int[Tensor, "train"]
    """Index of each training example."""
    influence: Float[Tensor, "test train"]
    by_checkpoint: Float[Tensor, "checkpoint test train"]
    by_part: Float[Tensor, "part test train"]
    cosine: Float[Tensor, "test train"] | None
    candidate: Bool[Tensor, "test train"] | None
    """Pairs to include; None: all."""
    by_run: Float[Tensor, "run test train"] | None = None
    """Scores of each run of an ensemble; `influence` is their mean."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Training examples of each test example, strongest first; -1 pads short lists."""

    train: Int[np.ndarray, "test rank"]
    influence: Float[np.ndarray, "test rank"]
    by_checkpoint: Float[np.ndarray, "checkpoint test rank"]
    by_part: Float[np.ndarray, "part test rank"]
    cosine: Float[np.ndarray, "test rank"] | None
    by_run: Float[np.ndarray, "run test rank"] | None = None

    def only(self, test: int) -> "Scored":
        return self._map(lambda values: values[..., test : test + 1, :])

    def take(self, order: Int[np.ndarray, "test kept"]) -> "Scored":
        """Return the entries in a new order, given separately for each test example."""
        return self._map(lambda v: np.take_along_axis(v, order[(None,) * (v.ndim - 2)], -1))

    def in_order(self, sign: Sign = 1, count: int | None = None) -> "Scored":
        """Return the first entries in descending order of sign x influence, padding last."""
        signed = np.where(self.train < 0, -np.inf, sign * self.influence)
        return self.take(np.lexsort((self.train, -signed), axis=1)[:, :count])

    def _map(self, change: Callable[[np.ndarray], np.ndarray]) -> "Scored":
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        columns = {name: v if v is None else change(v) for name, v in columns.items()}
        return Scored(**columns)

    @cached_property
    def spread(self) -> Float[np.ndarray, "test rank"] | None:
        """Standard deviation of the runs' scores (denominator n - 1); None without an ensemble."""
        return None if self.by_run is None else np.asarray(self.by_run.std(axis=0, ddof=1))

    @cached_property
    def agreeing(self) -> Int[np.ndarray, "test rank"] | None:
        """Number of runs whose score has the sign of the mean; None without an ensemble."""
        if self.by_run is None:
            return None
        return np.asarray((np.sign(self.by_run) == np.sign(self.influence)).sum(axis=0))


@dataclass(frozen=True, eq=False)
class Explanation:
    """Scores of training examples for each test example."""

    proponents: Scored
    opponents: Scored
    """Strongest first."""
    complete: bool
    """Whether every score was kept. If so, `proponents` and `opponents` are the same list of all
    candidates, in descending order of influence."""
    self_influence: Float[np.ndarray, "test"]
    """NaN if the form of score has no self-influence."""
    parts: tuple[str, ...]

    @property
    def listed(self) -> Scored:
        """All scores that were kept, in descending order of influence."""
        if self.complete:
            return self.proponents
        return side_by_side(self.proponents, self.opponents).in_order()

    def only(self, test: int) -> "Explanation":
        proponents = self.proponents.only(test)
        return replace(
            self,
            proponents=proponents,
            opponents=proponents if self.complete else self.opponents.only(test),
            self_influence=self.self_influence[test : test + 1],
        )


@dataclass(eq=False)
class Strongest:
    """Keeps the `k` strongest scores of one sign from a stream of tiles.

    Equal scores are ordered by index.
    """

    k: int
    sign: Sign
    _kept: Scored | None = None

    def add(self, tile: Tile) -> None:
        best = _pick(tile, self._strongest_of(tile))
        if self._kept is not None:
            best = side_by_side(self._kept, best)
        self._kept = best.in_order(self.sign, self.k)

    def _strongest_of(self, tile: Tile) -> Int[Tensor, "test kept"]:
        """Return the columns of a tile's strongest entries, padded with -1."""
        signed = self.sign * tile.influence
        wrong = signed <= 0
        if tile.candidate is not None:
            wrong |= ~tile.candidate
        signed = signed.masked_fill(wrong, -torch.inf)
        count = min(self.k, signed.shape[1])
        by_index = torch.argsort(tile.train)
        if count < signed.shape[1]:
            values, columns = signed.topk(count + 1, dim=1)
            last, next_best = values[:, count - 1], values[:, count]
            if bool(((last > next_best) | (next_best == -torch.inf)).all()):
                columns = columns[:, :count]
                return columns.masked_fill(values[:, :count] == -torch.inf, -1)
        order = signed[:, by_index].argsort(dim=1, descending=True, stable=True)[:, :count]
        columns = by_index[order]
        return columns.masked_fill(signed.gather(1, columns) == -torch.inf, -1)

    def result(self) -> Scored:
        assert self._kept is not None  # there is a tile
        return self._kept


@dataclass(eq=False)
class Everything:
    """Keeps every score."""

    details: bool = True
    """Whether to also keep the contributions of checkpoints and parts, in float32."""
    _tiles: list[Scored] = field(default_factory=list)

    def add(self, tile: Tile) -> None:
        tests, count = tile.influence.shape
        columns = torch.arange(count, device=tile.train.device).expand(tests, count)
        if tile.candidate is not None:
            columns = columns.masked_fill(~tile.candidate, -1)
        if not self.details:
            none = tile.by_part[:0]
            tile = replace(tile, by_checkpoint=none, by_part=none)
        self._tiles.append(_pick(tile, columns))

    def result(self) -> Scored:
        """Return every score in descending order; pairs that are not candidates come last."""
        self._tiles = [side_by_side(*self._tiles)]
        return self._tiles[0].in_order()


def _pick(tile: Tile, columns: Int[Tensor, "test kept"]) -> Scored:
    """Return the entries of a tile at `columns`; a column of -1 gives padding."""
    index = columns.clamp_min(0)
    missing = columns < 0

    def picked(values: Tensor) -> np.ndarray:
        spread = index.expand(*values.shape[:-2], *index.shape)
        return values.gather(-1, spread).masked_fill(missing, 0.0).cpu().numpy()

    return Scored(
        train=tile.train[index].masked_fill(missing, -1).cpu().numpy(),
        influence=picked(tile.influence),
        by_checkpoint=picked(tile.by_checkpoint).astype(np.float32),
        by_part=picked(tile.by_part).astype(np.float32),
        cosine=None if tile.cosine is None else picked(tile.cosine).astype(np.float32),
        by_run=None if tile.by_run is None else picked(tile.by_run).astype(np.float32),
    )


def side_by_side(*parts: Scored) -> Scored:
    """Put the entries of several tiles side by side."""
    columns: dict[str, Any] = {
        f.name: [getattr(part, f.name) for part in parts] for f in fields(Scored)
    }
    for name, found in columns.items():
        columns[name] = None if found[0] is None else np.concatenate(found, axis=-1)
    return Scored(**columns)


def tile_of_intervals(by_interval: np.ndarray, candidates: np.ndarray | None = None) -> Tile:
    """Return unrolled scores `(interval, test, fact)` as one tile of all facts."""
    by_checkpoint = torch.from_numpy(by_interval)
    train, influence = torch.arange(by_checkpoint.shape[2]), torch.from_numpy(by_interval.sum(0))
    candidate = None if candidates is None else torch.from_numpy(candidates)
    return Tile(train, influence, by_checkpoint, by_checkpoint[:0], None, candidate)


def strongest(tile: Tile, k: int, *, opponents: bool = True) -> tuple[Scored, Scored]:
    """Return the strongest proponents and opponents of a tile."""
    kept = Strongest(k, 1), Strongest(k if opponents else 0, -1)
    for each in kept:
        each.add(tile)
    return kept[0].result(), kept[1].result()


def require_finite(*results: Scored) -> None:
    """Raise an error if a score is NaN or infinite."""
    for scored in results:
        if not np.isfinite(scored.influence).all():
            raise NonFiniteLossError(
                "influence scores contain NaN or infinity; a checkpoint or a half-precision "
                "product overflowed. Compute without use_mixed_precision, or omit that checkpoint"
            )


def deviation(half: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return the deviation of half-precision scores `(test, train)` from exact scores."""
    correlations = []
    for a, b in zip(half, exact, strict=True):
        top = np.argsort(-np.abs(b))[:100]
        if len(top) > 1:
            correlations.append(spearmanr(a[top], b[top]).statistic)
    error = np.abs(half - exact).max() / np.abs(exact).max()
    return {
        "relative_error": float(error),
        "spearman_top_100": float(np.mean(correlations)) if correlations else 1.0,
    }
