"""Models whose score is a negative squared distance: TransE, RotatE and RotE."""

import math

import torch
from torch import nn

from clew.config.graph_models import RotatEModel, RotEModel, TransEModel
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries, RelationEmbeddings
from clew.training.sharding import draw_normal


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
