r"""Adam's scaling of gradients, in the form that keeps per-example gradients factored.

Adam moves a parameter along D g with D = 1 / (sqrt(v) + eps), v the second moment. Influence in
that geometry is the one-sided form <D g_train, g_test>. For the two large matrices, the entity
table and the projection, v is replaced by the rank-1 matrix of its row and column means (Shazeer
and Stern, 2018, arXiv 1804.04235, algorithm 1), so that D = r c^T scales both factors of an outer
product; for everything else D is exact, element by element.

The biases before a batch normalisation are left out, D = 0: in training the normalisation cancels
them, so their gradient is rounding noise, and dividing by its size would let noise outweigh every
other parameter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clew.errors import CheckpointError
from clew.influence.link_prediction.trunk import HEAD_TABLE, ParameterLayout
from clew.link_prediction.models.base import GraphModel
from clew.training.checkpoints import OPTIMIZER_FILE, load_tensors

SECOND_MOMENT = "exp_avg_sq"


@dataclass(frozen=True, eq=False)
class RankOne:
    """D of a matrix as an outer product."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, moment: Tensor, epsilon: float) -> "RankOne":
        """Factor 1 / sqrt of the rank-1 second moment; `epsilon` bounds each factor."""
        mean = moment.mean().clamp_min(epsilon**2)
        rows = 1.0 / (moment.mean(1) / mean.sqrt()).sqrt().add(epsilon)
        columns = 1.0 / (moment.mean(0) / mean.sqrt()).sqrt().add(epsilon)
        return cls(rows, columns)

    def dense(self) -> Tensor:
        """Return D as a matrix."""
        return self.rows[:, None] * self.columns


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """D of every parameter of a graph model."""

    table: RankOne
    head_table: RankOne
    """D of the table of heads; the same as `table` unless a model has two."""
    dense: RankOne | None
    """D of the fully connected layer, if the model has one."""
    relation: Tensor
    small: Tensor
    vectors: Mapping[str, Tensor]
    """D of the biases of entities and projection, if the model has them."""

    @classmethod
    def from_moments(
        cls, moments: Mapping[str, Tensor], layout: ParameterLayout, *, epsilon: float
    ) -> "Preconditioner":
        """Build from second moments by parameter name."""
        factored = {"entity.weight", "relation.weight", HEAD_TABLE, layout.dense}
        exact = {
            name: torch.zeros_like(v).flatten()
            if name in layout.without_effect
            else 1.0 / (v.flatten().sqrt() + epsilon)
            for name, v in moments.items()
            if name not in factored
        }
        table = RankOne.of(moments["entity.weight"], epsilon)
        small = [exact[name] for name in layout.small if name in exact]
        return cls(
            table=table,
            head_table=RankOne.of(moments[HEAD_TABLE], epsilon) if HEAD_TABLE in moments else table,
            dense=None if layout.dense is None else RankOne.of(moments[layout.dense], epsilon),
            relation=1.0 / (moments["relation.weight"].sqrt() + epsilon),
            small=torch.cat(small) if small else moments["entity.weight"].new_empty(0),
            vectors={n: v for n, v in exact.items() if n not in layout.small},
        )


def read_preconditioner(
    folder: Path,
    model: GraphModel,
    layout: ParameterLayout,
    *,
    step: int,
    beta2: float,
    epsilon: float,
) -> Preconditioner:
    """Read Adam's second moments from a checkpoint, corrected for their start at zero."""
    moments = {}
    tensors = load_tensors(folder / OPTIMIZER_FILE)
    reference = next(model.parameters())
    for name, parameter in model.named_parameters():
        key = f"{name}/{SECOND_MOMENT}"
        if name in layout.without_effect:
            moments[name] = torch.zeros_like(parameter)
            continue
        if key not in tensors:
            raise CheckpointError(
                f"{folder / OPTIMIZER_FILE}: no {key}; preconditioned influence needs a model "
                "trained with adam or adamw, and checkpoints that keep the optimizer's state"
            )
        moment = tensors[key].to(reference.device, parameter.dtype)
        moments[name] = moment.reshape(parameter.shape) / (1.0 - beta2**step)
    return Preconditioner.from_moments(moments, layout, epsilon=epsilon)
