r"""Forms of the score that change the factors of gradients before they are multiplied.

A row's gradient is a sum of outer products, one for each use of a parameter:

    scorer                delta h^T          and its bias, delta      entity_output
    lookup of the head    e_head ga^T        of the same table        entity_input, entity_cross
    lookup, relation      e_relation gr^T                             relation
    fully connected       gq f^T             and its bias, gq         dense

Both forms leave all other parameters out: convolution and normalisation of ConvE, the network of
other models. They replace factors, and the inner products are those of the formula in
`inner_products` with the new factors, cross terms included.

`deflated`     h and f lose their component along their mean mu over training rows, the direction
               that every example shares: x - (x.mu) mu / |mu|^2. All else stays.

`kronecker`    every factor x is whitened, C^(-1/2) x, by its second moment C over training rows,
               so that gradients meet as under a Kronecker-factored Fisher matrix (Martens and
               Grosse, 2015, arXiv 1503.05671, section 3). For h, gq, ga and gr, C is the full
               matrix; for f its leading eigenvectors and the mean of the other eigenvalues; for
               delta, e_head and e_relation the diagonal. Biases have the input 1, and stay.

C is damped by .1 times its mean eigenvalue. The gradients behind gq, ga and gr are those of labels
drawn from the model (the Fisher matrix, not the empirical one); delta's diagonal is the mean of
p (1 - p) over rows, which is what drawing labels would estimate.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence.link_prediction.rows import FactoredRows
from clew.influence.link_prediction.trunk import SCORER_PARTS, Queries, Trunk
from clew.link_prediction.models.base import model_class
from clew.link_prediction.task import LinkPrediction

WHITENED = ("deflated", "kronecker")
"""Forms that change the factors of a gradient."""
COVERED_PARTS = (*SCORER_PARTS, "dense")
"""Parts that have a form beside the raw one."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The matrix M = scale I + V diag(weights) V^T on vectors of one kind, V orthonormal."""

    scale: float
    vectors: Float[Tensor, "dim rank"]
    weights: Float[Tensor, "rank"]

    def __call__(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        """Return M x of each row."""
        return torch.addmm(x, (x @ self.vectors) * self.weights, self.vectors.T, beta=self.scale)

    @property
    def root(self) -> "Metric":
        """The symmetric square root of M."""
        root = self.scale**0.5
        return Metric(root, self.vectors, (self.scale + self.weights).clamp_min(0.0).sqrt() - root)

    def to(self, dtype: torch.dtype) -> "Metric":
        """Return the matrix in a floating-point type."""
        return Metric(self.scale, self.vectors.to(dtype), self.weights.to(dtype))

    @classmethod
    def without(cls, mean: Float[Tensor, "dim"]) -> "Metric":
        """Return the projection that removes the direction of a mean."""
        unit = mean / mean.norm().clamp_min(torch.finfo(mean.dtype).tiny)
        return cls(1.0, unit[:, None], -unit.square().sum()[None])


@dataclass(frozen=True, eq=False)
class Geometry:
    """What becomes of each factor; None: it stays."""

    hidden: Metric
    """Of h, on both sides."""
    features: Metric | None
    """Of f, for the second side alone, because f is the largest: M = C^-1, or the projection."""
    projected: Metric | None = None
    """Of gq."""
    head: Metric | None = None
    """Of ga."""
    relation: Metric | None = None
    """Of gr."""
    scored: Float[Tensor, "entity"] | None = None
    """Factor of each entity's delta."""
    looked_up: Float[Tensor, "entity"] | None = None
    """Factor of each entity's row as a head."""
    related: Float[Tensor, "relation"] | None = None
    """Factor of each relation's row."""

    def changed(self, rows: FactoredRows, trunk: Trunk) -> FactoredRows:
        """Return rows with new factors, f apart; the rows given lose their own base.

        Of f they get the coordinates along the directions of its metric. The base,
        `(query, entity)`, is changed in place, because it is the largest of them.
        """
        queries, deltas, gradients = rows.queries, rows.rows, rows.gradients
        queries = replace(
            queries,
            hidden=self.hidden(queries.hidden),
            coordinates=self._coordinates(queries, trunk),
        )
        if self.scored is not None:
            queries.base.mul_(self.scored[trunk.model.table_rows.place])
            deltas = replace(deltas, beta=deltas.beta * self.scored[deltas.tail])
        gradients = replace(
            gradients,
            projected=_changed(gradients.projected, self.projected, None),
            head=_changed(gradients.head, self.head, _at(self.looked_up, deltas.head)),
            relation=_changed(
                gradients.relation, self.relation, _at(self.related, deltas.relation)
            ),
        )
        return replace(rows, rows=deltas, queries=queries, gradients=gradients)

    def _coordinates(self, queries: Queries, trunk: Trunk) -> Tensor | None:
        if self.features is None:
            return None
        directions = self.features.vectors
        chunks = queries.chunks()
        return torch.cat([trunk.features(queries.activations, i) @ directions for i in chunks])


def _changed(values: Tensor | None, metric: Metric | None, factor: Tensor | None) -> Tensor | None:
    if values is not None and metric is not None:
        values = metric(values)
    return values if values is None or factor is None else values * factor[:, None]


def _at(factors: Tensor | None, index: Tensor) -> Tensor | None:
    return None if factors is None else factors[index]


def with_chosen_form(settings: InfluenceConfig, task: LinkPrediction) -> InfluenceConfig:
    """Return the settings with `auto` replaced by the form that it means for this model.

    That is `kronecker`, which predicts retraining best (docs/trust.md); `cosine` for the models
    and losses that it is not defined for.
    """
    if settings.score != "auto":
        return settings
    chosen = "cosine" if _why_not_whitened(task) else "kronecker"
    return settings.model_copy(update={"score": chosen})


def require_defined(settings: InfluenceConfig, task: LinkPrediction, config: RunConfig) -> None:
    """Refuse what this model cannot give.

    Raises:
        ConfigError: it has no such question, or its gradients no such form.
    """
    if settings.direction == "head" and not task.inverse_relations:
        raise ConfigError(
            "influence.direction is head, but the model was trained with "
            "data.inverse_relations=false and has no question for heads; use tail"
        )
    reason = _why_not_whitened(task)
    if settings.score in WHITENED and reason:
        raise ConfigError(f"influence.score is {settings.score}, but {reason}; use raw or cosine")
    assert isinstance(config.loss, EntityLoss)
    weight = config.loss.relation_prediction_weight
    if settings.score == "preconditioned" and weight:
        raise ConfigError(
            "influence.score is preconditioned, but the gradient of "
            f"loss.relation_prediction_weight={weight} has no factored form in that geometry; use "
            "raw or cosine"
        )


def _why_not_whitened(task: LinkPrediction) -> str:
    """Return why the whitened forms are not defined for a model; empty if they are."""
    if model_class(task.model_config).squared_distance:
        return (
            f"{task.model_config.kind} scores by a squared distance, whose gradient of an entity "
            "is no outer product"
        )
    if task.terms is not None:
        return (
            "it is not defined for what the loss adds for each triple (loss.regularizer, "
            "loss.relation_prediction_weight)"
        )
    return ""
