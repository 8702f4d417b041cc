"""Samples of entities to compare a batch with: all examples of the batch share one sample.

For N draws from E entities, the interval from 0 to N is divided into one segment for each entity.
Entity e has a segment of length r_e = min(1, c w_e), where c makes the lengths add up to N. The
k-th draw is the entity at k + u_k, with u_k uniform in [0, 1). Entity e is therefore drawn r_e
times on average, and at most twice. A sum over all entities is estimated without bias by
sum_k f(e_k) / r_(e_k). With N = E each entity is drawn exactly once, and estimates are exact. Such
stratified draws vary less than independent ones.

The numbers u depend only on the seed and on the *set* of examples in the batch. They depend neither
on workers nor on earlier draws, so a resumed run draws the same samples.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from clew.link_prediction.triples import HEAD, TAIL, Triples

Sampling = Literal["uniform", "degree"]
DEGREE_POWER = 0.75  # as for the words of word2vec (Mikolov et al., 2013, arXiv 1310.4546)
_BLOCK_TRIPLES = 10_000_000
_GOLDEN, _MIX_1, _MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of splitmix64 (Steele et al., 2014), as signed numbers."""


@dataclass(frozen=True)
class Negatives:
    """Drawn entities in ascending order, and the expected number of draws of each."""

    entity: Int64[Tensor, " negative"]
    rate: Float64[Tensor, " negative"]


class NegativeSampler:
    """Draws the entities that a batch is compared with.

    Args:
        num_entities: Number of entities.
        num_draws: Number of draws in a sample; at most the number of entities is used.
        seed: Seed of the run.
        weights: Weight of each entity, `(entity,)`; if None, all weights are equal.
    """

    def __init__(
        self,
        num_entities: int,
        num_draws: int,
        *,
        seed: int,
        weights: Float64[np.ndarray, " entity"] | None = None,
    ) -> None:
        self.num_entities, self.num_draws = num_entities, min(num_draws, num_entities)
        # Products of tensors wrap around at 64 bits; products of Python integers do not.
        self._start = int(torch.tensor(seed + 1) * _GOLDEN)
        self._rates = self._ends = None
        if weights is not None:
            rates = expected_draws(weights, self.num_draws)
            self._rates, self._ends = torch.from_numpy(rates), torch.from_numpy(rates.cumsum())

    def draw(self, example: Int64[Tensor, " batch"]) -> Negatives:
        return self.draw_from(self.entropy(example))

    def entropy(self, example: Int64[Tensor, " batch"]) -> Int64[Tensor, ""]:
        """Return the number that determines the sample: a sum over the examples of the batch.

        Examples can be in any order, and the sums of several parts of a batch can be added.
        """
        return _mixed(example + self._start).sum()

    def draw_from(self, entropy: Int64[Tensor, ""]) -> Negatives:
        count = torch.arange(self.num_draws, device=entropy.device)
        # With 32 bits, k + u is exact for every k below 2^20, and never rounds up to k + 1.
        bits = (_mixed(_mixed(entropy) + count * _GOLDEN) >> 32) & 0xFFFFFFFF
        place = count + bits.double() / 2**32
        if self._rates is None or self._ends is None:
            rate = self.num_draws / self.num_entities
            entity = (place * (self.num_entities / self.num_draws)).long()
            entity.clamp_(max=self.num_entities - 1)
            return Negatives(entity, torch.full_like(place, rate))
        ends, rates = self._on(place.device)
        entity = torch.searchsorted(ends, place, right=True).clamp_(max=self.num_entities - 1)
        return Negatives(entity, rates[entity])

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        assert self._ends is not None
        assert self._rates is not None
        if self._ends.device != device:
            self._ends, self._rates = self._ends.to(device), self._rates.to(device)
        return self._ends, self._rates


def expected_draws(weights: np.ndarray, num_draws: int) -> Float64[np.ndarray, " entity"]:
    """Return min(1, c w) for each weight w, where c makes the values add up to `num_draws`."""
    certain = np.zeros(len(weights), bool)
    while True:
        left = num_draws - int(certain.sum())
        factor = left / weights[~certain].sum() if left else 0.0
        above = ~certain & (factor * weights >= 1.0)
        if not above.any():
            return np.where(certain, 1.0, factor * weights)
        certain |= above


def degree_weights(triples: Triples, num_entities: int) -> Float64[np.ndarray, " entity"]:
    """Return (1 + n)^0.75 for each entity, where n is its number of triples as head or tail."""
    degree = np.ones(num_entities)
    for start in range(0, len(triples), _BLOCK_TRIPLES):
        block = triples[start : start + _BLOCK_TRIPLES]
        for column in (HEAD, TAIL):
            degree += np.bincount(block[:, column], minlength=num_entities)
    return np.power(degree, DEGREE_POWER, out=degree)


def _mixed(number: Tensor) -> Tensor:
    """Return 64-bit integers that look random: the finalizer of splitmix64."""
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * _MIX_1
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return number ^ ((number >> 31) & 0x1FFFFFFFF)
