"""DistMult: the query is the element-wise product of head and relation."""

import torch

from clew.link_prediction.models.base import Embeddings, Factorization, Queries


class DistMult(Factorization, kind="distmult"):
    """DistMult (Yang et al., 2015, arXiv 1412.6575, equation 6 with a diagonal matrix).

        s(h, r, t) = sum_k h_k r_k t_k

    (h, r, t) and (t, r, h) get the same score; inverse relations give each direction its own row.
    """

    def encode(self, head: Embeddings, relation: Embeddings) -> Queries:
        """Return h * r, with dropout on both."""
        config, training = self.config, self.training
        head = torch.dropout(head, config.input_dropout, training)
        return head * torch.dropout(relation, config.dropout_of_relations, training)

    def relation_queries(self, head: Embeddings, tail: Embeddings) -> Embeddings:
        """Return h * t."""
        return head * tail
