"""RotatE: a relation rotates complex numbers, and the score is a negative squared distance."""

import math

import torch
from torch import nn

from clew.config.graph_models import RotatEModel
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries, RelationEmbeddings
from clew.training.sharding.table import draw_normal


class RotatE(GraphModel, kind="rotate"):
    """RotatE (Sun et al., 2019, arXiv 1902.10197, equation 4) with the squared distance.

        s(h, r, t) = -|h e^(i r) - t|^2 + b_t

    A row of the entity table contains the real parts of its complex numbers, then the imaginary
    parts. A row of the relation table contains angles in radians. Dropout is applied to the head
    before its rotation, and not to the angles, because an angle of zero is a rotation too.
    """

    config: RotatEModel
    squared_distance = True

    def __init__(self, num_entities: int, num_relations: int, config: RotatEModel) -> None:
        super().__init__(num_entities, num_relations, config)
        draw_normal(self.entity, config.initial_deviation)
        nn.init.uniform_(self.relation.weight, -math.pi, math.pi)

    def encode(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return 2 h e^(i r) as real parts, then imaginary parts."""
        head = torch.dropout(head, self.config.input_dropout, self.training)
        return 2.0 * turned(head, relation)


def turned(head: Embeddings, angles: RelationEmbeddings) -> Embeddings:
    """Return h e^(i r) as real parts, then imaginary parts; h has the same order."""
    head_re, head_im = head.chunk(2, 1)
    cosine, sine = angles.cos(), angles.sin()
    real = head_re * cosine - head_im * sine
    return torch.cat([real, head_re * sine + head_im * cosine], dim=1)
