"""What losses, ranking, prediction, export and influence need from a graph model.

The score of (head, relation, tail) is the inner product of a query vector with the tail's row of
the entity table, plus the tail's bias if there is one:

    s(h, r, t) = q(h, r) . e_t + b_t

A new model is one file in this folder, named after its `kind`, with a subclass that implements
`encode`; its settings are one class in `clew.config.graph_models`.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.config.graph_models import GraphModelSettings
from clew.layers.shapes import Ids, Queries

Rows = Float[Tensor, "batch dim"]


class GraphModel(nn.Module, ABC):
    """A model whose score is an inner product of a query vector and a row of the entity table.

    Args:
        num_entities: Rows of the entity table.
        num_relations: Rows of the relation table, inverse relations included.
        config: The model's settings.
    """

    kinds: ClassVar[dict[str, type["GraphModel"]]] = {}
    """Model class of each `model.kind` whose file has been imported."""

    entity_bias: nn.Parameter | None
    stacked: bool = False
    """Whether `torch.func.vmap` runs several models at once; it knows torch's functions only."""

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if kind is not None:
            GraphModel.kinds[kind] = cls

    def __init__(self, num_entities: int, num_relations: int, config: GraphModelSettings) -> None:
        super().__init__()
        self.config = config
        self.entity = nn.Embedding(num_entities, config.embedding_dim)
        self.relation = nn.Embedding(num_relations, config.embedding_dim)
        bias = nn.Parameter(torch.zeros(num_entities)) if config.entity_bias else None
        self.register_parameter("entity_bias", bias)

    @abstractmethod
    def encode(self, head: Rows, relation: Rows) -> Queries:
        """Return query vectors from the embeddings of heads and relations, `(batch, dim)`."""

    def queries(self, head: Ids, relation: Ids) -> Queries:
        """Return the query vector of each (head, relation), `(batch, dim)`."""
        return self.encode(self.entity(head), self.relation(relation))

    def forward(self, head: Ids, relation: Ids) -> Queries:
        """Return `queries`; wrappers such as `torch.compile` call it."""
        return self.queries(head, relation)

    @property
    def floats_per_query(self) -> int:
        """Return how many numbers the forward pass of one query keeps for the backward pass."""
        return 4 * self.config.embedding_dim


def build_graph_model(
    config: GraphModelSettings, num_entities: int, num_relations: int
) -> GraphModel:
    """Build the model that the settings ask for, with fresh weights, on the CPU."""
    import_module(f"{__package__}.{config.kind}")
    return GraphModel.kinds[config.kind](num_entities, num_relations, config)
