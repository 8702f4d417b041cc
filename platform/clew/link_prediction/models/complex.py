"""ComplEx: embeddings of complex numbers, so that relations may be antisymmetric."""

import torch
from torch import nn

from clew.config.graph_models import ComplExModel
from clew.layers.shapes import Queries
from clew.link_prediction.models.base import GraphModel, Rows


class ComplEx(GraphModel, kind="complex"):
    """ComplEx (Trouillon et al., 2016, arXiv 1606.06357, equation 9).

        s(h, r, t) = Re(sum_k h_k r_k conj(t_k)) = q_re . t_re + q_im . t_im,   q = h r

    A row of a table holds the real parts of its `embedding_dim / 2` complex numbers, then the
    imaginary parts, so that the score is an inner product of two rows.
    """

    config: ComplExModel

    def __init__(self, num_entities: int, num_relations: int, config: ComplExModel) -> None:
        super().__init__(num_entities, num_relations, config)
        nn.init.normal_(self.entity.weight, std=config.initial_deviation)
        nn.init.normal_(self.relation.weight, std=config.initial_deviation)

    def encode(self, head: Rows, relation: Rows) -> Queries:
        """Return the complex product h r as real parts, then imaginary parts."""
        rate, training = self.config.input_dropout, self.training
        head_re, head_im = torch.dropout(head, rate, training).chunk(2, dim=1)
        rel_re, rel_im = torch.dropout(relation, rate, training).chunk(2, dim=1)
        real = head_re * rel_re - head_im * rel_im
        return torch.cat([real, head_re * rel_im + head_im * rel_re], dim=1)
