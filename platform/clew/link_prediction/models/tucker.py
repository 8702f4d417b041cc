"""TuckER: relations share a core tensor, which turns each relation into a matrix."""

import torch
from torch import Tensor, nn

from clew.config.graph_models import TuckERModel
from clew.layers.training_mode import dropout, normalised
from clew.link_prediction.models.base import Embeddings, GraphModel, Queries, RelationEmbeddings
from clew.training.sharding.table import draw_xavier_normal


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
