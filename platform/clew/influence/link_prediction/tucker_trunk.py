"""TuckER's queries and their gradients, with the gradient of the core kept factored.

In evaluation mode the core is a fully connected layer on f = vec(r n(h)^T). A row's gradient of the
core is the outer product of gq and f, which is never formed.
"""

import torch
from torch import Tensor

from clew.influence.link_prediction.trunk import (
    NETWORK_PART,
    SCORER_PARTS,
    Activations,
    ParameterLayout,
    Queries,
    RowGradients,
    Trunk,
)
from clew.link_prediction.models.tucker import TuckER


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
    )

    def parts(self, depth: int) -> tuple[str, ...]:
        """Return the scorer for one layer, the scorer and the core for two, else all parts."""
        every = (*SCORER_PARTS, "dense", NETWORK_PART)
        return {1: SCORER_PARTS[:1], 2: ("entity_output", "dense")}.get(depth, every)

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
