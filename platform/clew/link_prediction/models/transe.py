"""TransE: a relation is a translation, and the score a negative squared distance."""

import torch
from torch import nn

from clew.config.graph_models import TransEModel
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries
from clew.training.sharding.table import draw_normal


class TransE(GraphModel, kind="transe"):
    """TransE (Bordes et al., 2013, equation 1) with the squared Euclidean distance.

        s(h, r, t) = -|h + r - t|^2 + b_t

    Distances alone are never positive, so binary cross entropy needs the bias.
    """

    config: TransEModel
    squared_distance = True

    def __init__(self, num_entities: int, num_relations: int, config: TransEModel) -> None:
        super().__init__(num_entities, num_relations, config)
        draw_normal(self.entity, config.initial_deviation)
        nn.init.normal_(self.relation.weight, std=config.initial_deviation)

    def encode(self, head: Embeddings, relation: Embeddings) -> Queries:
        """Return 2 (h + r), with dropout on both."""
        rate, training = self.config.input_dropout, self.training
        head = torch.dropout(head, rate, training)
        return 2.0 * (head + torch.dropout(relation, rate, training))
