"""Models linear in each of head, relation and tail: DistMult, ComplEx, CP, RESCAL; and TuckER."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.config.graph_models import ComplExModel, CPModel, RESCALModel, TuckERModel
from clew.layers.training_mode import dropout, normalised
from clew.link_prediction.models.base import (
    Embeddings,
    Factorization,
    GraphModel,
    Queries,
    RelationEmbeddings,
)
from clew.training.sharding import draw_normal, draw_xavier_normal, entity_table


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


class CP(DistMult, kind="cp"):
    """Canonical tensor decomposition (Lacroix et al., 2018, arXiv 1806.07297, section 2.2).

        s(h, r, t) = sum_k a_hk r_k e_tk

    `head_entity` contains the rows a, `entity` the rows e. Only inverse relations connect the two
    rows of an entity: without them CP generalises badly (section 5 of the paper).
    """

    config: CPModel

    def __init__(self, num_entities: int, num_relations: int, config: CPModel) -> None:
        super().__init__(num_entities, num_relations, config)
        self.head_entity = entity_table(num_entities, config.embedding_dim)
        draw_normal(self.head_entity, config.initial_deviation)

    @property
    def head_table(self) -> nn.Embedding:
        return self.head_entity


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
        # torch.export would fix the batch size at what len(head) is in the example.
        matrix = relation.reshape(-1, head.shape[1], relation.shape[1] // head.shape[1])
        return torch.einsum("bi,bij->bj", head, matrix)

    def relation_queries(self, head: Embeddings, tail: Embeddings) -> RelationEmbeddings:
        """Return the matrix h t^T, one row after another."""
        return torch.einsum("bi,bj->bij", head, tail).flatten(1)

    @property
    def floats_per_query(self) -> int:
        return self.config.relation_size


class TuckER(GraphModel, kind="tucker"):
    """TuckER (Balazevic et al., 2019, arXiv 1901.09590, equation 2).

        s(h, r, t) = sum_ijk C_kji n(h)_i r_j n'(...)_k t_k = n'(C vec(r n(h)^T)) . t

    n is the batch normalisation of the head and n' that of the product. Dropout is applied after
    both and to the matrix C r, as in the authors' code.
    """

    config: TuckERModel

    def __init__(self, num_entities: int, num_relations: int, config: TuckERModel) -> None:
        super().__init__(num_entities, num_relations, config)
        dim, relation_dim = config.embedding_dim, config.relation_size
        self.core = nn.Parameter(torch.empty(dim, relation_dim * dim))
        self.head_norm = nn.BatchNorm1d(dim)
        self.projection_norm = nn.BatchNorm1d(dim)
        nn.init.uniform_(self.core, -1.0, 1.0)
        draw_xavier_normal(self.entity)
        nn.init.xavier_normal_(self.relation.weight)

    def encode(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return n'(C vec(r n(h)^T)) of each pair of embeddings, `(batch, dim)`."""
        return self.finish(self.project(head, relation))

    def project(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return the product of core, relation and head before the last normalisation."""
        config, training = self.config, self.training
        head = dropout(normalised(self.head_norm, head), config.input_dropout, training)
        core = self.core.view(-1, relation.shape[1], head.shape[1])
        matrix = torch.einsum("bj,kji->bki", relation, core)
        matrix = dropout(matrix, config.relation_dropout, training)
        return torch.einsum("bki,bi->bk", matrix, head)

    def finish(self, projected: Queries) -> Queries:
        """Return queries from projected rows, by the last normalisation and dropout."""
        normal = normalised(self.projection_norm, projected)
        return dropout(normal, self.config.projection_dropout, self.training)

    def features(self, head: Embeddings, relation: RelationEmbeddings) -> Tensor:
        """Return vec(r n(h)^T), which the core maps to `project` in evaluation mode."""
        return torch.einsum("bj,bi->bji", relation, self.head_norm(head)).flatten(1)

    @property
    def floats_per_query(self) -> int:
        config = self.config
        return config.embedding_dim * max(config.embedding_dim, config.relation_size)
