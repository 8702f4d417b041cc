"""RESCAL: a relation is a matrix between head and tail."""

import torch

from clew.config.graph_models import RESCALModel
from clew.link_prediction.models.base import Embeddings, Factorization, Queries, RelationEmbeddings


class RESCAL(Factorization, kind="rescal"):
    """RESCAL (Nickel et al., 2011, equation 2).

        s(h, r, t) = h^T M_r t

    A row of the relation table contains the matrix M_r, one row after another.
    """

    config: RESCALModel

    def encode(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return h^T M_r, with dropout on both."""
        config, training = self.config, self.training
        head = torch.dropout(head, config.input_dropout, training)
        relation = torch.dropout(relation, config.dropout_of_relations, training)
        matrix = relation.reshape(len(head), head.shape[1], -1)
        return torch.einsum("bi,bij->bj", head, matrix)

    def relation_queries(self, head: Embeddings, tail: Embeddings) -> RelationEmbeddings:
        """Return the matrix h t^T, one row after another."""
        return torch.einsum("bi,bj->bij", head, tail).flatten(1)

    @property
    def floats_per_query(self) -> int:
        return self.config.relation_size
