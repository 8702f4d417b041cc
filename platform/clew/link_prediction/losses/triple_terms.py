"""Terms that a loss can add for each training triple: a regularizer and relation prediction.

    N3                    sum_k |h_k|^3 + |r_k|^3 + |t_k|^3     Lacroix et al., arXiv 1806.07297
    DURA                  |q(h, r)|^2 + |t|^2                   Zhang et al., arXiv 2011.05816
    relation prediction   -log softmax(p(h, t) . r)             Chen et al., arXiv 2110.02834

The softmax is over all relations. In the paper, DURA also has two terms for the other direction.
With inverse relations these are the terms of the triple's second row. All terms are sums over
triples: a query with several tails has the sum of the terms of its triples.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from clew.config.loss import EntityLoss
from clew.link_prediction.models.base import (
    Embeddings,
    Factorization,
    GraphModel,
    Ids,
    RelationEmbeddings,
)


@dataclass(frozen=True)
class TripleTerms:
    """Which terms a loss adds."""

    regularizer: Literal["n3", "dura"] | None
    regularizer_weight: float
    relation_prediction_weight: float

    @classmethod
    def from_config(cls, loss: EntityLoss) -> "TripleTerms | None":
        """Return the terms of a configuration, or None if it has none."""
        if loss.needs_factorization is None:
            return None
        return cls(loss.regularizer, loss.regularizer_weight, loss.relation_prediction_weight)

    def losses(
        self,
        model: GraphModel,
        head: Embeddings,
        relation: RelationEmbeddings,
        tail: Embeddings,
        relation_id: Ids,
    ) -> Float[Tensor, "batch"]:
        """Return the sum of the terms for each triple, in float32 despite autocast."""
        assert isinstance(model, Factorization)  # the configuration refuses other models
        with torch.autocast(head.device.type, enabled=False):
            total = head.new_zeros(len(head))
            if self.regularizer == "n3":
                for rows in (head, relation, tail):
                    cubes = model.squared_moduli(rows).pow(1.5).sum(1)
                    total = total + self.regularizer_weight * cubes
            if self.regularizer == "dura":
                squares = model.encode(head, relation).square().sum(1) + tail.square().sum(1)
                total = total + self.regularizer_weight * squares
            if self.relation_prediction_weight:
                scores = model.relation_queries(head, tail) @ model.relation.weight.T
                missed = F.cross_entropy(scores, relation_id, reduction="none")
                total = total + self.relation_prediction_weight * missed
            return total
