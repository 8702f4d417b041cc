"""CP: DistMult with two rows for an entity, one as head and one as tail."""

from torch import nn

from clew.config.graph_models import CPModel
from clew.link_prediction.models.distmult import DistMult
from clew.training.sharding.table import draw_normal, entity_table


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
