"""RotE: a relation rotates and translates the head; scores are negative squared distances."""

import math

import torch
from torch import nn

from clew.config.graph_models import RotEModel
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries, RelationEmbeddings
from clew.link_prediction.models.rotate import turned
from clew.training.sharding.table import draw_normal


class RotE(GraphModel, kind="rote"):
    """RotE (Chami et al., 2020, arXiv 2005.00545): RotatE followed by TransE.

        s(h, r, t) = -|h e^(i a_r) + v_r - t|^2 + b_t

    A row of the entity table contains the real parts of its complex numbers, then the imaginary
    parts. A row of the relation table contains angles in radians, then the translation. The paper's
    bias of the head is left out: it adds the same number to all scores of a query, so it does not
    change any rank. Dropout is applied to the head before its rotation, and to the translation.
    """

    config: RotEModel
    squared_distance = True

    def __init__(self, num_entities: int, num_relations: int, config: RotEModel) -> None:
        super().__init__(num_entities, num_relations, config)
        draw_normal(self.entity, config.initial_deviation)
        num_angles = config.embedding_dim // 2
        with torch.no_grad():
            self.relation.weight[:, :num_angles].uniform_(-math.pi, math.pi)
            nn.init.normal_(self.relation.weight[:, num_angles:], std=config.initial_deviation)

    def encode(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return 2 (h e^(i a) + v) as real parts, then imaginary parts."""
        rate, training = self.config.input_dropout, self.training
        num_angles = self.config.embedding_dim // 2
        angles, translation = relation[:, :num_angles], relation[:, num_angles:]
        head = turned(torch.dropout(head, rate, training), angles)
        return 2.0 * (head + torch.dropout(translation, rate, training))
