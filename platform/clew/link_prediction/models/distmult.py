"""DistMult: the query is the product of head and relation, element by element."""

import torch
from torch import nn

from clew.config.graph_models import DistMultModel
from clew.layers.shapes import Queries
from clew.link_prediction.models.base import GraphModel, Rows


class DistMult(GraphModel, kind="distmult"):
    """DistMult (Yang et al., 2015, arXiv 1412.6575, equation 6 with a diagonal matrix).

        s(h, r, t) = sum_k h_k r_k t_k

    (h, r, t) and (t, r, h) get the same score; inverse relations give each direction its own row.
    """

    config: DistMultModel

    def __init__(self, num_entities: int, num_relations: int, config: DistMultModel) -> None:
        super().__init__(num_entities, num_relations, config)
        nn.init.normal_(self.entity.weight, std=config.initial_deviation)
        nn.init.normal_(self.relation.weight, std=config.initial_deviation)

    def encode(self, head: Rows, relation: Rows) -> Queries:
        """Return h * r, with dropout on both."""
        rate, training = self.config.input_dropout, self.training
        head = torch.dropout(head, rate, training)
        return head * torch.dropout(relation, rate, training)
