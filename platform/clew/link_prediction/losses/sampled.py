"""Losses over all entities, estimated from one sample of entities for the whole batch.

A sum over all entities is the exact sum over the positives of a row plus an estimate of the rest.
With r_k the expected number of draws of the k-th drawn entity (`clew...losses.negatives`),

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
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from torch.nn import functional as F

from clew.link_prediction.losses.negatives import Negatives
from clew.link_prediction.losses.one_vs_all import SOFTPLUS_THRESHOLD, LossFunction, Targets
from clew.link_prediction.models.base import Queries, QueryBias

_NEVER = -1e30
"""Added to a score that does not count, so that exp and its slope are 0 and not NaN."""


@dataclass(frozen=True)
class EntityRows:
    """Rows of the entity table with their biases."""

    rows: Float[Tensor, "chosen dim"]
    bias: Float[Tensor, "chosen"] | None


@dataclass(frozen=True)
class Sample:
    """The entities that a batch is compared with, and their rows and biases in the model."""

    drawn: Negatives
    tails: EntityRows


def sampled_row_losses(
    queries: Queries,
    query_bias: QueryBias | None,
    sample: Sample,
    positive: EntityRows,
    targets: Targets,
    *,
    function: LossFunction,
) -> Float[Tensor, " batch"]:
    """Return the estimated loss of each row.

    Args:
        queries: Query vectors X.
        query_bias: Query bias c, or None.
        sample: The sample of entities.
        positive: Rows and biases of the entities in `targets`.
        targets: Labels of the rows.
        function: Which loss to compute.
    """
    scores = SampledScores(queries, query_bias, sample, positive, targets)
    if function == "binary_cross_entropy":
        normaliser = scores.total(softplus)
    else:
        normaliser = targets.mass * scores.log_sum()
    return normaliser - scores.labelled()


class SampledScores:
    """Scores of a batch's positives and of a sample, and estimates of sums over all entities."""

    def __init__(
        self,
        queries: Queries,
        query_bias: QueryBias | None,
        sample: Sample,
        positive: EntityRows,
        targets: Targets,
    ) -> None:
        exact, self.targets = targets.weight.dtype, targets
        scores = F.linear(queries, sample.tails.rows, sample.tails.bias).to(exact)
        rows = queries.to(exact)[targets.row]
        own = (rows * positive.rows.to(exact)).sum(1)
        own = own if positive.bias is None else own + positive.bias
        if query_bias is not None:
            scores, own = scores + query_bias[:, None], own + query_bias[targets.row]
        self.scores, self.own = scores, own
        self.weight = sample.drawn.rate.reciprocal().to(exact)
        self._place, self._is_drawn = _draws_of(targets.entity, sample.drawn.entity)
        drawn = self.weight[self._place] if len(self.weight) else self._is_drawn.to(exact)
        self._own_share = 1.0 - (drawn * self._is_drawn).sum(0)

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
    """Return the positions of entities in an ascending sample, which has each at most twice.

    Returns:
        Two positions for each entity, and whether the sample has the entity there.
    """
    first = torch.searchsorted(drawn, entity)
    place = torch.stack([first, first + 1])
    inside = place < len(drawn)
    place = place.clamp(max=max(len(drawn) - 1, 0))
    if not len(drawn):
        return place, inside
    return place, inside & (drawn[place] == entity)
