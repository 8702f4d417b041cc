"""Base classes of graph models, for losses, ranking, prediction, export and influence.

The score of (head, relation, tail) is the inner product of a query vector with the tail's row of
the entity table, plus a bias of the tail and a bias of the query:

    s(h, r, t) = q(h, r) . e_t + b_t + c(q)

In most models b is a parameter or absent, and there is no c. A squared distance |p - e_t|^2 between
a point p(h, r) and the tail has this form with q = 2 p. Its biases follow from the table and the
query:

    -|p - e_t|^2 = 2 p . e_t - |e_t|^2 - |p|^2 = q . e_t - |e_t|^2 - |q|^2 / 4

A new model is one file in this folder, with a subclass that names its `kind` and implements
`encode`. Its settings are one class in `clew.config.graph_models`.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.graph_models import FactorizationSettings, GraphModelSettings
from clew.layers.products import linear
from clew.training.sharding import (
    OwnRows,
    RowShard,
    ShardedTable,
    draw_normal,
    entity_table,
    row_bias,
)

Ids = Int[Tensor, "batch"]
Queries = Float[Tensor, "batch dim"]
EntityTable = Float[Tensor, "entity dim"]
EntityBias = Float[Tensor, "entity"]
QueryBias = Float[Tensor, "batch"]
Scores = Float[Tensor, "batch entity"]
Embeddings = Float[Tensor, "batch dim"]
RelationEmbeddings = Float[Tensor, "batch relation_dim"]
EVERY_ENTITY = slice(None)


class GraphModel(nn.Module, ABC):
    """A model whose score is an inner product of a query vector and a row of the entity table."""

    kinds: ClassVar[dict[str, type["GraphModel"]]] = {}
    """Model class of each `model.kind` of this folder."""
    squared_distance: ClassVar[bool] = False
    """Whether a score is the negative squared distance of half a query vector to a tail's row."""

    entity_bias: nn.Parameter | None

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if kind is not None:
            GraphModel.kinds[kind] = cls

    def __init__(self, num_entities: int, num_relations: int, config: GraphModelSettings) -> None:
        super().__init__()
        self.config = config
        self.entity = entity_table(num_entities, config.embedding_dim)
        self.relation = nn.Embedding(num_relations, config.relation_size)
        bias = row_bias(self.entity) if config.entity_bias else None
        self.register_parameter("entity_bias", bias)

    @property
    def head_table(self) -> nn.Embedding:
        """The table with the rows of heads: the entity table, unless the model has two tables."""
        return self.entity

    @property
    def table_rows(self) -> OwnRows:
        """The rows of the entity table that this process has."""
        table = self.entity
        if isinstance(table, ShardedTable):
            return OwnRows(table.shard, table.exchange)
        return OwnRows(RowShard(table.num_embeddings, rank=0, size=1))

    @abstractmethod
    def encode(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        """Return query vectors from the embeddings of heads and relations, `(batch, dim)`."""

    def forward(self, head: Embeddings, relation: RelationEmbeddings) -> Queries:
        return self.encode(head, relation)

    def queries(self, head: Ids, relation: Ids) -> Queries:
        """Return the query vector of each (head, relation), `(batch, dim)`; never compiled.

        A compiled forward would be compiled again for each of the many sizes used here.
        """
        return self.encode(self.head_table(head), self.relation(relation))

    def look_up(
        self, head: Ids, tail: Int[Tensor, " positive"]
    ) -> tuple[Embeddings, Float[Tensor, "positive dim"]]:
        """Return the embeddings of heads and of tails, with one lookup if one table has both.

        This saves memory, because each lookup's backward pass creates a gradient of the whole
        table.
        """
        if self.head_table is not self.entity:
            return self.head_table(head), self.entity(tail)
        both: Tensor = self.entity(torch.cat([head, tail]))
        return both[: len(head)], both[len(head) :]

    def tail_bias(self, entities: slice | Tensor = EVERY_ENTITY) -> EntityBias | None:
        """Return what is added to the score of each entity, or None; differentiable."""
        bias = None if self.entity_bias is None else self.entity_bias[entities]
        if not self.squared_distance:
            return bias
        lengths = self.entity.weight[entities].square().sum(1)
        return -lengths if bias is None else bias - lengths

    def tails(self, entities: Ids) -> tuple[Embeddings, EntityBias | None]:
        """Return rows of the entity table and what is added to their scores; differentiable.

        With a sharded table, entities are rows of this process, numbered from its first row.
        """
        rows = F.embedding(entities, self.entity.weight, sparse=self.entity.sparse)
        bias: EntityBias | None = None
        if self.entity_bias is not None:
            bias = torch.gather(self.entity_bias, 0, entities, sparse_grad=self.entity.sparse)
        if self.squared_distance:
            lengths = rows.square().sum(1)
            bias = -lengths if bias is None else bias - lengths
        return rows, bias

    def use_row_gradients(self) -> None:
        """Give entity tables sparse gradients, which contain only the rows that a batch uses."""
        self.entity.sparse = self.head_table.sparse = True

    def query_bias(self, queries: Queries) -> QueryBias | None:
        """Return what is added to all scores of each query, or None; differentiable."""
        if not self.squared_distance:
            return None
        return -0.25 * queries.to(self.entity.weight.dtype).square().sum(1)

    def scores(self, queries: Queries, entities: slice | Tensor = EVERY_ENTITY) -> Scores:
        """Return the score of each of some entities for each query, `(batch, entity)`."""
        scores = linear(queries, self.entity.weight[entities], None)
        tail_bias, query_bias = self.tail_bias(entities), self.query_bias(queries)
        if tail_bias is not None:
            scores += tail_bias
        if query_bias is not None:
            scores += query_bias[:, None]
        return scores

    @property
    def floats_per_query(self) -> int:
        return 4 * self.config.embedding_dim


class Factorization(GraphModel):
    """A model that is linear in each of head, relation and tail, without a neural network.

    It factorizes the tensor of triples, so it can have a regularizer and relation prediction.
    """

    config: FactorizationSettings

    def __init__(
        self, num_entities: int, num_relations: int, config: FactorizationSettings
    ) -> None:
        super().__init__(num_entities, num_relations, config)
        draw_normal(self.entity, config.initial_deviation)
        nn.init.normal_(self.relation.weight, std=config.initial_deviation)

    @abstractmethod
    def relation_queries(self, head: Embeddings, tail: Embeddings) -> RelationEmbeddings:
        """Return p with s(h, r, t) = p(h, t) . r from the embeddings of heads and tails."""

    def squared_moduli(self, rows: Float[Tensor, "batch n"]) -> Float[Tensor, "batch modulus"]:
        return rows.square()


class EntityScorer(nn.Module):
    """A graph model that takes ids and returns the scores of all entities."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return `(batch, entity)` scores of `(batch,)` heads and relations."""
        return self.model.scores(self.model.queries(head, relation))


def model_class(config: GraphModelSettings) -> type[GraphModel]:
    for file in iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        import_module(file.name)
    return GraphModel.kinds[config.kind]


def build_graph_model(
    config: GraphModelSettings, num_entities: int, num_relations: int
) -> GraphModel:
    """Build the model that the settings describe, with new initial weights, on the CPU."""
    return model_class(config)(num_entities, num_relations, config)
