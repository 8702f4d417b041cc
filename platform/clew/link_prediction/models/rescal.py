"""RESCAL: a relation is a matrix between head and tail."""

import torch
from torch import nn

from clew.config.graph_models import RESCALModel
from clew.layers.shapes import Queries
from clew.link_prediction.models.base import GraphModel, RelationRows, Rows


class RESCAL(GraphModel, kind="rescal"):
    """RESCAL (Nickel et al., 2011, equation 2).

        s(h, r, t) = h^T M_r t

    A row of the relation table holds the matrix M_r, one row after another.
    """

    config: RESCALModel

    def __init__(self, num_entities: int, num_relations: int, config: RESCALModel) -> None:
        super().__init__(num_entities, num_relations, config)
        nn.init.normal_(self.entity.weight, std=config.initial_deviation)
        nn.init.normal_(self.relation.weight, std=config.initial_deviation)

    def encode(self, head: Rows, relation: RelationRows) -> Queries:
        """Return h^T M_r, with dropout on both."""
        rate, training = self.config.input_dropout, self.training
        head = torch.dropout(head, rate, training)
        matrix = torch.dropout(relation, rate, training).unflatten(1, (head.shape[1], -1))
        return torch.einsum("bi,bij->bj", head, matrix)

    @property
    def floats_per_query(self) -> int:
        """Return the size of a relation's matrix."""
        return self.config.relation_size
