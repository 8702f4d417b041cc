"""Losses over all entities, estimated from one sample of entities for the whole batch.

A sum over all entities is the exact sum over the positives of a row plus an estimate of the rest.
With r_k the expected number of draws of the k-th drawn entity (below),

    sum_e f(s_e)  ~  sum_p f(s_p) + sum_k f(s_k) / r_k,    k over draws that are not positives

The loss of a row is then, as in `one_vs_all`,

    binary cross entropy     sum_e softplus(s_e)                - sum_e y_e s_e
    softmax cross entropy    (sum_e y_e) log sum_e exp(s_e)     - sum_e y_e s_e

with an estimate of each sum. The first loss and its gradients are unbiased. In the second loss, the
estimate is inside the logarithm: exp(s_k) / r_k = exp(s_k - log r_k) is the correction of sampled
softmax (Bengio and Senecal, 2008; Jean et al., 2015, arXiv 1412.2007, equation 9). Its bias
vanishes as the sample grows. If every entity is drawn, both are the losses over all entities.

The largest tensors are the scores `(batch, negative)`; no tensor has an embedding for each score.
If the sample contains positives of a row, their draws are removed from it by coordinates.

All examples of a batch share one sample. For N draws from E entities, the interval from 0 to N is
divided into one segment for each entity. Entity e has a segment of length r_e = min(1, c w_e),
where c makes the lengths add up to N. The k-th draw is the entity at k + u_k, with u_k uniform in
[0, 1). Entity e is therefore drawn r_e times on average, and at most twice. A sum over all entities
is estimated without bias by sum_k f(e_k) / r_(e_k). With N = E each entity is drawn exactly once,
and estimates are exact. Such stratified draws vary less than independent ones.

The numbers u depend only on the seed and on the *set* of examples in the batch. They depend neither
on workers nor on earlier draws, so a resumed run draws the same samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from torch.nn import functional as F

from clew.link_prediction.losses.one_vs_all import SOFTPLUS_THRESHOLD, LossFunction, Targets
from clew.link_prediction.models.base import Embeddings, EntityBias, Ids, Queries, QueryBias
from clew.link_prediction.triples import HEAD, TAIL, Triples, row_blocks
from clew.training.sharding import Exchange, log_sum_of_all

DEGREE_POWER = 0.75  # as for the words of word2vec (Mikolov et al., 2013, arXiv 1310.4546)
_GOLDEN, _MIX_1, _MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of splitmix64 (Steele et al., 2014), as signed numbers."""


@dataclass(frozen=True)
class Negatives:
    """Drawn entities in ascending order, and the expected number of draws of each."""

    entity: Int64[Tensor, " negative"]
    rate: Float64[Tensor, " negative"]


class NegativeSampler:
    """Draws the entities that a batch is compared with."""

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
        if self._ends.device != place.device:
            self._ends, self._rates = self._ends.to(place.device), self._rates.to(place.device)
        entity = torch.searchsorted(self._ends, place, right=True)
        entity.clamp_(max=self.num_entities - 1)
        return Negatives(entity, self._rates[entity])


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


def degree_weights(
    triples: Triples, num_entities: int, times: np.ndarray | None = None
) -> Float64[np.ndarray, " entity"]:
    """Return (1 + n)^0.75 for each entity, where n is its number of triples as head or tail.

    `times` says how often each triple counts.
    """
    degree = np.ones(num_entities)
    for rows in row_blocks(len(triples)):
        counts = None if times is None else times[rows]
        for column in (HEAD, TAIL):
            degree += np.bincount(triples[rows, column], counts, num_entities)
    return np.power(degree, DEGREE_POWER, out=degree)


def _mixed(number: Tensor) -> Tensor:
    """Return 64-bit integers that look random: the finalizer of splitmix64."""
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * _MIX_1
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return number ^ ((number >> 31) & 0x1FFFFFFFF)


_NEVER = -1e30
"""Added to a score that does not count, so that exp and its slope are 0 and not NaN."""


class SampledScores:
    """Scores of a batch's positives and of a sample, and estimates of sums over all entities.

    Args:
        queries: Query vectors.
        query_bias: What is added to all scores of each query, or None.
        targets: Labels of the rows.
        drawn: The entities that the batch is compared with.
        tails: `GraphModel.tails`.
    """

    def __init__(
        self,
        queries: Queries,
        query_bias: QueryBias | None,
        targets: Targets,
        drawn: Negatives,
        tails: Callable[[Ids], tuple[Embeddings, EntityBias | None]],
    ) -> None:
        exact, self.targets = targets.weight.dtype, targets
        positive, bias = tails(targets.entity)
        scores = F.linear(queries, *tails(drawn.entity)).to(exact)
        own = (queries.to(exact)[targets.row] * positive.to(exact)).sum(1)
        own = own if bias is None else own + bias
        if query_bias is not None:
            scores, own = scores + query_bias[:, None], own + query_bias[targets.row]
        self.scores, self.own = scores, own
        self.weight = drawn.rate.reciprocal().to(exact)
        self._place, self._is_drawn = _draws_of(targets.entity, drawn.entity)
        times = self.weight[self._place] if len(self.weight) else self._is_drawn.to(exact)
        self._own_share = 1.0 - (times * self._is_drawn).sum(0)

    def losses(
        self, function: LossFunction, exchange: Exchange | None = None
    ) -> Float[Tensor, " batch"]:
        """Return the estimated loss of each row.

        With an exchange, drawn entities and positives are the part of one process, and the losses
        of all processes add up to those of the rows.
        """
        if function == "binary_cross_entropy":
            normaliser = self.total(softplus)
        elif exchange is None:
            normaliser = self.targets.mass * self.log_sum()
        else:
            log_sum = log_sum_of_all(self.log_sum(), exchange)
            normaliser = self.targets.mass * log_sum / exchange.size
        return normaliser - self.labelled()

    def total(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " batch"]:
        """Return the estimate of sum_e f(s_e) for each row, in full precision despite autocast."""
        with torch.autocast(self.scores.device.type, enabled=False):
            sampled = function(self.scores) @ self.weight
        return sampled.index_add(0, self.targets.row, function(self.own) * self._own_share)

    def log_sum(self) -> Float[Tensor, " batch"]:
        """Return the estimate of log sum_e exp(s_e) for each row."""
        row = self.targets.row
        scores = self.scores + self.weight.log()
        if len(self.weight):
            hidden = torch.where(self._is_drawn, _NEVER, 0.0).to(scores.dtype)
            for place, value in zip(self._place, hidden, strict=True):
                scores = scores.index_put((row, place), value, accumulate=True)
        sampled = scores.logsumexp(dim=1)
        top = sampled.detach().clamp(min=_NEVER)
        top = top.scatter_reduce(0, row, self.own.detach(), "amax")
        known = (self.own - top[row]).exp()
        return top + (sampled - top).exp().index_add(0, row, known).log()

    def labelled(self) -> Float[Tensor, " batch"]:
        """Return sum_e y_e s_e for each row; the part from label smoothing is estimated."""
        targets = self.targets
        known = torch.zeros_like(targets.mass)
        known = known.index_add(0, targets.row, targets.weight * self.own)
        if not targets.floor:
            return known
        return known + targets.floor * targets.times * self.total(torch.clone)


def softplus(scores: Tensor) -> Tensor:
    """Return log(1 + exp(s)), which is also exact in float64."""
    return F.softplus(scores, threshold=SOFTPLUS_THRESHOLD)


def _draws_of(
    entity: Int[Tensor, " positive"], drawn: Int64[Tensor, " negative"]
) -> tuple[Int64[Tensor, "2 positive"], Bool[Tensor, "2 positive"]]:
    """Return the positions of entities in an ascending sample, which has each at most twice."""
    first = torch.searchsorted(drawn, entity)
    place = torch.stack([first, first + 1])
    inside = place < len(drawn)
    place = place.clamp(max=max(len(drawn) - 1, 0))
    if not len(drawn):
        return place, inside
    return place, inside & (drawn[place] == entity)
