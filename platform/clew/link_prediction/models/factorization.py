"""Models whose score is linear in each of head, relation and tail, without a network."""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from clew.config.graph_models import FactorizationSettings
from clew.link_prediction.models.base import Embeddings, GraphModel, RelationEmbeddings
from clew.training.sharding.table import draw_normal


class Factorization(GraphModel):
    """A factorization of the tensor of triples: its regularisers and its relation scores are known.

    Args:
        num_entities: Rows of the entity table.
        num_relations: Rows of the relation table, inverse relations included.
        config: The model's settings.
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
        """Return the squared size of each number of a row."""
        return rows.square()
