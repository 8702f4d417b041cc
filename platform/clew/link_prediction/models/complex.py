"""ComplEx: embeddings of complex numbers, so that relations can be antisymmetric."""

import torch
from jaxtyping import Float
from torch import Tensor

from clew.config.graph_models import ComplExModel
from clew.link_prediction.models.base import Embeddings, Factorization, Queries


class ComplEx(Factorization, kind="complex"):
    """ComplEx (Trouillon et al., 2016, arXiv 1606.06357, equation 9).

        s(h, r, t) = Re(sum_k h_k r_k conj(t_k)) = q_re . t_re + q_im . t_im,   q = h r

    A row of a table contains the real parts of its `embedding_dim / 2` complex numbers, then their
    imaginary parts, so that the score is an inner product of two rows.
    """

    config: ComplExModel

    def encode(self, head: Embeddings, relation: Embeddings) -> Queries:
        """Return the complex product h r as real parts, then imaginary parts."""
        config, training = self.config, self.training
        head = torch.dropout(head, config.input_dropout, training)
        relation = torch.dropout(relation, config.dropout_of_relations, training)
        (head_re, head_im), (rel_re, rel_im) = head.chunk(2, dim=1), relation.chunk(2, dim=1)
        real = head_re * rel_re - head_im * rel_im
        return torch.cat([real, head_re * rel_im + head_im * rel_re], dim=1)

    def relation_queries(self, head: Embeddings, tail: Embeddings) -> Embeddings:
        """Return the complex product conj(h) t as real parts, then imaginary parts."""
        (head_re, head_im), (tail_re, tail_im) = head.chunk(2, dim=1), tail.chunk(2, dim=1)
        real = head_re * tail_re + head_im * tail_im
        return torch.cat([real, head_re * tail_im - head_im * tail_re], dim=1)

    def squared_moduli(self, rows: Float[Tensor, "batch n"]) -> Float[Tensor, "batch modulus"]:
        real, imaginary = rows.chunk(2, dim=1)
        return real.square() + imaginary.square()
