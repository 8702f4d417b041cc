r"""Forms of the score that change the factors of gradients before they are multiplied.

A row's gradient is a sum of outer products, one for each use of a parameter:

    scorer                delta h^T          and its bias, delta      entity_output
    lookup of the head    e_head ga^T        of the same table        entity_input, entity_cross
    lookup, relation      e_relation gr^T                             relation
    fully connected       gq f^T             and its bias, gq         dense

Two forms replace these factors and leave out all other parameters: convolution and normalisation of
ConvE, and the network of other models. Their inner products follow the formula in `inner_products`
with the new factors, including cross terms.

`deflated`     h and f lose their component along their mean mu over training rows, the direction
               that every example shares: x - (x.mu) mu / |mu|^2. Everything else is unchanged.

`kronecker`    every factor x is whitened to C^(-1/2) x by its second moment C over training rows,
               so that inner products are those of the inverse of a Kronecker-factored Fisher
               matrix (Martens and Grosse, 2015, arXiv 1503.05671, section 3). For h, gq, ga and
               gr, C is the full matrix. For f, C has the leading eigenvectors and the mean of the
               other eigenvalues. For delta, e_head and e_relation, C is the diagonal. The input of
               biases is 1, which is unchanged.

C is damped by 0.1 times its mean eigenvalue. The second moments of gq, ga and gr use gradients of
labels drawn from the model (the Fisher matrix, not the empirical one). The diagonal of delta is the
mean of p (1 - p) over rows, which drawn labels would estimate.

A third form, `preconditioned`, scales gradients as Adam does. Adam moves a parameter along D g with
D = 1 / (sqrt(v) + eps) and v the second moment. The score is the one-sided product
<D g_train, g_test>. For the two large matrices, the entity table and the projection, v is replaced
by the rank-1 matrix of its row and column means (Shazeer and Stern, 2018, arXiv 1804.04235,
algorithm 1), so that D = r c^T scales both factors of an outer product. For all other parameters, D
is exact, element by element. The biases before a batch normalisation are left out (D = 0). The
normalisation cancels them in training, so that their gradient is rounding noise. Dividing by its
size would let this noise outweigh every other parameter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from clew.config.training import Adam
from clew.errors import CheckpointError
from clew.influence.link_prediction.rows import FactoredRows
from clew.influence.link_prediction.trunk import HEAD_TABLE, SCORER_PARTS, ParameterLayout, Trunk
from clew.training.checkpoints import OPTIMIZER_FILE, load_tensors
from clew.training.manifest import CheckpointRecord

WHITENED = ("deflated", "kronecker")
"""Forms that replace the factors of a gradient."""
COVERED_PARTS = (*SCORER_PARTS, "dense")
"""Parts that these forms include."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The matrix M = scale I + V diag(weights) V^T on vectors of one kind, with orthonormal V."""

    scale: float
    vectors: Float[Tensor, "dim rank"]
    weights: Float[Tensor, "rank"]

    def __call__(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        return torch.addmm(x, (x @ self.vectors) * self.weights, self.vectors.T, beta=self.scale)

    @property
    def root(self) -> "Metric":
        root = self.scale**0.5
        return Metric(root, self.vectors, (self.scale + self.weights).clamp_min(0.0).sqrt() - root)

    def to(self, dtype: torch.dtype) -> "Metric":
        return Metric(self.scale, self.vectors.to(dtype), self.weights.to(dtype))

    @classmethod
    def without(cls, mean: Float[Tensor, "dim"]) -> "Metric":
        unit = mean / mean.norm().clamp_min(torch.finfo(mean.dtype).tiny)
        return cls(1.0, unit[:, None], -unit.square().sum()[None])


@dataclass(frozen=True, eq=False)
class Geometry:
    """The change of each factor; None leaves a factor unchanged."""

    hidden: Metric
    """Metric of h, on both sides."""
    features: Metric | None
    """Metric of f, for the second side only, as f is the largest: M = C^-1, or the projection."""
    projected: Metric | None = None
    """Metric of gq."""
    head: Metric | None = None
    """Metric of ga."""
    relation: Metric | None = None
    """Metric of gr."""
    scored: Float[Tensor, "entity"] | None = None
    """Factor of each entity's delta."""
    looked_up: Float[Tensor, "entity"] | None = None
    """Factor of each entity's row as a head."""
    related: Float[Tensor, "relation"] | None = None
    """Factor of each relation's row."""

    def changed(self, rows: FactoredRows, trunk: Trunk) -> FactoredRows:
        """Return rows with new factors, except f.

        For f, the new rows have its coordinates along the directions of its metric. The base,
        `(query, entity)`, is the largest tensor, so the base of the given rows is changed in place.
        """
        queries, deltas, gradients = rows.queries, rows.rows, rows.gradients
        coordinates = None
        if self.features is not None:
            parts = (trunk.features(queries.activations, chunk) for chunk in queries.chunks())
            coordinates = torch.cat([part @ self.features.vectors for part in parts])
        queries = replace(queries, hidden=self.hidden(queries.hidden), coordinates=coordinates)
        if self.scored is not None:
            queries.base.mul_(self.scored)
            deltas = replace(deltas, beta=deltas.beta * self.scored[deltas.tail])
        gradients = replace(
            gradients,
            projected=_changed(gradients.projected, self.projected),
            head=_changed(gradients.head, self.head, self.looked_up, deltas.head),
            relation=_changed(gradients.relation, self.relation, self.related, deltas.relation),
        )
        return replace(rows, rows=deltas, queries=queries, gradients=gradients)


def _changed(
    values: Tensor | None,
    metric: Metric | None,
    factors: Tensor | None = None,
    index: Tensor | None = None,
) -> Tensor | None:
    if values is not None and metric is not None:
        values = metric(values)
    return values if values is None or factors is None else values * factors[index, None]


class RankOne:
    """D of a matrix as an outer product: 1 / sqrt(v) of the rank-1 second moment v.

    `epsilon` bounds each factor.
    """

    def __init__(self, moment: Tensor, epsilon: float) -> None:
        mean = moment.mean().clamp_min(epsilon**2)
        self.rows = 1.0 / (moment.mean(1) / mean.sqrt()).sqrt().add(epsilon)
        self.columns = 1.0 / (moment.mean(0) / mean.sqrt()).sqrt().add(epsilon)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """D of every parameter of a graph model."""

    table: RankOne
    head_table: RankOne
    """D of the table of heads; the same as `table` unless the model has two tables."""
    dense: RankOne | None
    """D of the fully connected layer, if the model has one."""
    relation: Tensor
    small: Tensor
    entity_bias: Tensor | None

    @classmethod
    def from_moments(
        cls, moments: Mapping[str, Tensor], layout: ParameterLayout, *, epsilon: float
    ) -> "Preconditioner":
        """Build from second moments by parameter name."""
        exact = {
            name: torch.zeros_like(v)
            if name in layout.without_effect
            else 1.0 / (v.sqrt() + epsilon)
            for name, v in moments.items()
            if name in {"relation.weight", "entity_bias", *layout.small}
        }
        table = RankOne(moments["entity.weight"], epsilon)
        small = [exact[name].flatten() for name in layout.small if name in exact]
        return cls(
            table=table,
            head_table=RankOne(moments[HEAD_TABLE], epsilon) if HEAD_TABLE in moments else table,
            dense=None if layout.dense is None else RankOne(moments[layout.dense], epsilon),
            relation=exact["relation.weight"],
            small=torch.cat(small) if small else moments["entity.weight"].new_empty(0),
            entity_bias=exact.get("entity_bias"),
        )


def read_preconditioner(record: CheckpointRecord, trunk: Trunk, optimizer: Adam) -> Preconditioner:
    """Read Adam's second moments from a checkpoint, with bias correction."""
    moments = {}
    path, layout = record.path / OPTIMIZER_FILE, trunk.layout
    tensors = load_tensors(path)
    for name, parameter in trunk.model.named_parameters():
        key = f"{name}/exp_avg_sq"
        if name in layout.without_effect:
            moments[name] = torch.zeros_like(parameter)
            continue
        if key not in tensors:
            raise CheckpointError(
                f"{path}: no {key}; preconditioned influence needs a model "
                "trained with adam or adamw, and checkpoints that keep the optimizer's state"
            )
        moment = tensors[key].to(parameter.device, parameter.dtype)
        moments[name] = moment.reshape(parameter.shape) / (1.0 - optimizer.beta2**record.step)
    return Preconditioner.from_moments(moments, layout, epsilon=optimizer.epsilon)
