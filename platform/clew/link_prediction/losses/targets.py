"""What scores over all entities are compared with: smoothed labels, as coordinates.

With eps the label smoothing and E the number of entities, a row's label of entity e is

    y_e = weight at its positives + floor,    floor = eps / E

where the weight is 1 - eps for binary cross entropy, and (1 - eps) / (positives of the row) for
softmax cross entropy, whose labels are a distribution (as in LibKGE: labels normalised by row).
The matrix y is never built: both losses are linear in y, so its two parts are added separately.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

LossFunction = Literal["binary_cross_entropy", "softmax_cross_entropy"]

# By default torch's softplus returns s itself above 20: an error of 2e-9, visible in float64.
SOFTPLUS_THRESHOLD = 40.0


@dataclass(frozen=True)
class Targets:
    """Labels of a batch of rows over all entities; coordinates are unique, in any order."""

    row: Int[Tensor, " positive"]
    entity: Int[Tensor, " positive"]
    weight: Float[Tensor, " positive"]
    """Label of each positive beyond `floor`."""
    floor: float
    """Label of every entity, by smoothing."""
    mass: Float[Tensor, " batch"]
    """Sum of the labels of each row."""


def smoothed_targets(
    row: Int[Tensor, " positive"],
    entity: Int[Tensor, " positive"],
    *,
    batch: int,
    entities: int,
    function: LossFunction,
    label_smoothing: float,
    dtype: torch.dtype,
) -> Targets:
    """Weigh the positives `(row, entity)` of `batch` rows over `entities` entities."""
    ones = torch.ones(row.shape, dtype=dtype, device=row.device)
    positives = torch.zeros(batch, dtype=dtype, device=row.device).index_add_(0, row, ones)
    keep = 1.0 - label_smoothing
    if function == "binary_cross_entropy":
        weight, mass = keep * ones, keep * positives + label_smoothing
    else:
        weight = keep / positives[row]
        mass = keep * (positives > 0).to(dtype) + label_smoothing
    return Targets(row, entity, weight, label_smoothing / entities, mass)
