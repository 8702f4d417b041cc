"""Queries of a graph model and their gradients, as the inner products need them.

`Trunk` works for every graph model, with autograd over the model's `encode`. A model can have a
faster subclass, which must give the same numbers: `conve_trunk` for ConvE, `TuckERTrunk` for
TuckER. In evaluation mode TuckER's core is a fully connected layer on f = vec(r n(h)^T). A row's
gradient of the core is the outer product of gq and f, which is never formed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, grad, vmap

from clew.layers.products import MatrixProduct
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import Factorization, GraphModel
from clew.link_prediction.models.factorizations import TuckER

Activations = Mapping[str, Tensor]
"""Values kept for the backward pass of queries, by name; tensors are `(query, ...)`."""

EVERY = slice(None)
"""All queries."""
QUERY_CHUNK = 256
SCORER_PARTS = ("entity_output", "entity_cross", "entity_input", "relation")
NETWORK_PART = "network"
"""All parameters except the tables and the entity bias, if a model has any."""
HEAD_TABLE = "head_entity.weight"
"""Table of heads, in a model with separate tables for heads and tails."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The values that all rows of a query share."""

    head: Int[Tensor, "query"]
    relation: Int[Tensor, "query"]
    activations: Activations
    hidden: Float[Tensor, "query dim"]
    """h, the query vector"""
    base: Float[Tensor, "dense entity"]
    """P or Y of the queries that need it, see `rows`."""
    base_row: Int[Tensor, "query"]
    base_query: Int[Tensor, "dense"]
    """Query of each row of `base`."""
    pulled: Float[Tensor, "query dim"]
    """Gradient of B . s with respect to h; zero if no base is needed."""
    coordinates: Float[Tensor, "query rank"] | None = None
    """V^T f, if the geometry has a metric of f with the directions V."""

    def chunks(self) -> list[slice]:
        size = len(self.head)
        return [slice(start, start + QUERY_CHUNK) for start in range(0, size, QUERY_CHUNK)]


@dataclass(frozen=True, eq=False)
class RowGradients:
    """Activation gradients of rows; those below the last layer only if they are needed."""

    projected: Float[Tensor, "row dim"] | None = None
    """gq, before the last normalisation, if a model has a fully connected layer."""
    head: Float[Tensor, "row dim"] | None = None
    """ga"""
    relation: Float[Tensor, "row relation_dim"] | None = None
    """gr"""
    small: Float[Tensor, "row small"] | None = None
    """w, of all other parameters, concatenated."""
    tail: Float[Tensor, "row dim"] | None = None
    """gt, of the tail as an embedding, if the loss has terms per triple; without the scorer."""
    relation_delta: Float[Tensor, "row relations"] | None = None
    """dr, slope of the scores of all relations, if the loss predicts relations."""
    relation_query: Float[Tensor, "row relation_dim"] | None = None
    """p, the query vector that scores relations."""

    def part(self, rows: slice) -> "RowGradients":
        return RowGradients(**{k: None if v is None else v[rows] for k, v in vars(self).items()})

    @classmethod
    def joined(cls, parts: Sequence["RowGradients"]) -> "RowGradients":
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return cls(**{k: None if v[0] is None else torch.cat(v) for k, v in columns.items()})


@dataclass(frozen=True)
class ParameterLayout:
    """Positions of the parameters of a model's network in the gradients of a row."""

    dense: str | None
    """Weight of the fully connected layer; its gradient stays factored."""
    small: tuple[str, ...]
    """Parameters in the order of a row's small vector."""
    parts: tuple[str, ...]
    without_effect: tuple[str, ...] = ()
    """Biases that a batch normalisation cancels in training."""


class Trunk:
    """The frozen model of one checkpoint in evaluation mode: its queries and their gradients.

    This class works for every graph model, by autograd over its `encode`. Subclasses handle a fully
    connected layer before the query vectors, if a model has one.
    """

    dense_bias: Tensor | None = None
    """Bias of the fully connected layer, if there is one."""

    def __init__(
        self, model: GraphModel, product: MatrixProduct | None = None, keep_features: bool = True
    ) -> None:
        self.model, self.keep_features = model, keep_features
        self.product = product or MatrixProduct()

    @property
    def layout(self) -> ParameterLayout:
        scored = {"entity.weight", "relation.weight", "entity_bias", HEAD_TABLE}
        named = self.model.named_parameters()
        small = tuple(name for name, _ in named if name not in scored)
        parts = (*SCORER_PARTS, NETWORK_PART) if small else SCORER_PARTS
        return ParameterLayout(None, small, parts)

    def parts(self, depth: int) -> tuple[str, ...]:
        """Return the parts of the last `depth` layers; three layers are everything."""
        if depth == 2 and self.layout.dense is not None:
            return "entity_output", "dense"
        return self.layout.parts[: 1 if depth == 1 else None]

    @torch.no_grad()
    def forward(self, head: Tensor, relation: Tensor) -> tuple[Activations, Tensor]:
        """Return the activations to keep, and the query vectors `(query, dim)`."""
        rows = {"head": self.model.head_table(head), "relation": self.model.relation(relation)}
        return rows, self.model.encode(**rows)

    def features(self, activations: Activations, index: Tensor | slice) -> Tensor:
        raise AssertionError("a model without a fully connected layer has no features")

    def backward(
        self, queries: Queries, index: Tensor, grad_hidden: Tensor, *, deep: bool, small: bool
    ) -> RowGradients:
        """Return the activation gradients of rows, which do not influence each other.

        `index` is the query of each row, and `grad_hidden` is W^T delta, `(row, dim)`. If `deep`,
        continue below the last layer; with `small`, to all other parameters too.
        """
        head, relation = (queries.activations[name][index] for name in ("head", "relation"))
        with torch.enable_grad():
            leaves = [head.detach().requires_grad_(), relation.detach().requires_grad_()]
            hidden = self.model.encode(*leaves)
            of_head, of_relation = torch.autograd.grad(hidden, leaves, grad_hidden)
        has_small = small and len(self._network) > 0
        network = self._small(head, relation, grad_hidden) if has_small else None
        return RowGradients(None, of_head, of_relation, network)

    @cached_property
    def _network(self) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters())
        return {name: named[name].detach() for name in self.layout.small}

    @torch.no_grad()
    def _small(self, head: Tensor, relation: Tensor, grad_hidden: Tensor) -> Tensor:
        """Return each row's gradient of the network's parameters, `(row, small)`."""

        def pulled(network: dict[str, Tensor], h: Tensor, r: Tensor, g: Tensor) -> Tensor:
            hidden: Tensor = functional_call(self.model, network, (h[None], r[None]))
            return (hidden[0] * g).sum()

        of_rows = vmap(grad(pulled), in_dims=(None, 0, 0, 0))
        rows = of_rows(self._network, head, relation, grad_hidden)
        return torch.cat([rows[name].flatten(1) for name in self._network], dim=1)


class Scorer:
    """The products with the entity table, which are the same for every model.

    A squared distance has the biases -|W_e|^2 and -|h|^2 / 4, so that ds_e / dh = W_e - h / 2.
    """

    def __init__(self, model: GraphModel, product: MatrixProduct) -> None:
        self._model, bias = model, model.tail_bias()
        self.bias = None if bias is None else bias.detach()
        self._product, self._prepared = product, product.prepare(model.entity.weight.detach())

    def scores(self, hidden: Float[Tensor, "n dim"]) -> Float[Tensor, "n entity"]:
        scores = self._product.affine(hidden, self._prepared, self.bias)
        bias = self._model.query_bias(hidden)
        return scores if bias is None else scores.add_(bias[:, None])

    def pull(
        self, base: Float[Tensor, "n entity"], hidden: Float[Tensor, "n dim"]
    ) -> Float[Tensor, "n dim"]:
        """Return the gradient of B . s with respect to h.

        It is W^T B, and for a squared distance W^T B - sum(B) h / 2.
        """
        pulled = self._product(base, self._prepared)
        if self._model.squared_distance:
            pulled -= 0.5 * base.sum(1, keepdim=True) * hidden
        return pulled

    def slope(
        self, entity: Int[Tensor, "n"], hidden: Float[Tensor, "n dim"]
    ) -> Float[Tensor, "n dim"]:
        """Return the gradient of one entity's score per row with respect to h."""
        rows: Tensor = self._model.entity(entity).detach()
        return rows - 0.5 * hidden if self._model.squared_distance else rows


def with_terms(
    gradients: RowGradients,
    model: GraphModel,
    terms: TripleTerms,
    ids: tuple[Int[Tensor, "row"], Int[Tensor, "row"], Int[Tensor, "row"]],
) -> RowGradients:
    """Add the gradients of the loss terms per triple to the gradients of training rows.

    `ids` are the heads, relations and tails of the rows.

    The terms belong to the loss that trained the model, so they are part of a training triple's
    gradient. The gradient of a test triple does not include them, because it is that of the
    explained prediction.
    """
    assert isinstance(model, Factorization)
    head_id, relation_id, tail_id = ids
    looked_up = model.head_table(head_id), model.relation(relation_id), model.entity(tail_id)
    leaves = [values.detach().requires_grad_() for values in looked_up]
    with torch.enable_grad():
        total = terms.losses(model, leaves[0], leaves[1], leaves[2], relation_id).sum()
        head, relation, tail = torch.autograd.grad(total, leaves, materialize_grads=True)
    assert gradients.head is not None
    assert gradients.relation is not None
    found = replace(
        gradients, head=gradients.head + head, relation=gradients.relation + relation, tail=tail
    )
    if not terms.relation_prediction_weight:
        return found
    query = model.relation_queries(leaves[0], leaves[2]).detach()
    delta = (query @ model.relation.weight.detach().T).softmax(1)
    delta[torch.arange(len(delta), device=delta.device), relation_id] -= 1.0
    delta *= terms.relation_prediction_weight
    return replace(found, relation_delta=delta, relation_query=query)


class TuckERTrunk(Trunk):
    """The frozen TuckER of a checkpoint, with the arguments of `Trunk`."""

    model: TuckER
    layout = ParameterLayout(
        dense="core",
        small=(
            "head_norm.weight",
            "head_norm.bias",
            "projection_norm.weight",
            "projection_norm.bias",
        ),
        parts=(*SCORER_PARTS, "dense", NETWORK_PART),
    )

    @torch.no_grad()
    def forward(self, head: Tensor, relation: Tensor) -> tuple[Activations, Tensor]:
        rows, hidden = super().forward(head, relation)
        kept = {"features": self.model.features(**rows)} if self.keep_features else {}
        return {**rows, **kept}, hidden

    @torch.no_grad()
    def features(self, activations: Activations, index: Tensor | slice) -> Tensor:
        """Return f of some queries; it is recomputed if it was not kept."""
        if "features" in activations:
            return activations["features"][index]
        head, relation = (activations[name][index] for name in ("head", "relation"))
        return self.model.features(head, relation)

    def backward(
        self, queries: Queries, index: Tensor, grad_hidden: Tensor, *, deep: bool, small: bool
    ) -> RowGradients:
        """Return the activation gradients of rows; see `Trunk`."""
        head, relation = (queries.activations[name][index] for name in ("head", "relation"))
        with torch.enable_grad():
            leaves = [head.detach().requires_grad_(), relation.detach().requires_grad_()]
            projected = self.model.project(*leaves)
            wanted = [projected, *leaves] if deep else [projected]
            found = torch.autograd.grad(self.model.finish(projected), wanted, grad_hidden)
        if not deep:
            return RowGradients(found[0])
        of_projected, of_head, of_relation = found
        others = self._small(head, relation, grad_hidden) if small else None
        return RowGradients(of_projected, of_head, of_relation, others)
