"""Choose the cheapest form of a gradient: its factors, or the full gradient as one vector.

With P positions in a training window, Q positions in a test and a matrix of R x C weights, the
numbers of multiply-adds are

    factored    P Q (R + C) for each test, P^2 (R + C) for the norm
    in full     P R C once, then R C for each test and for the norm

So factors are cheaper for a few short prompts. For many prompts, or for norms, the gradient of a
training window is multiplied out once, used for all products, and freed. Parameters are processed
one after another, so that only one parameter's gradients of a tile of windows are held in full.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clew.influence.factors import Explicit, Factor, Outer, TableRows, explicit
from clew.layers.products import MatrixProduct


def is_cheaper_in_full(
    train: Sequence[Factor], tests: Sequence[Sequence[Factor]], *, norms: bool
) -> bool:
    """Return whether one parameter's products cost less with its gradients in full.

    Args:
        train: Factors of training examples.
        tests: Factors of each test.
        norms: Whether the norms of the training examples are also needed.
    """
    if any(isinstance(factor, Explicit) for factor in train):
        return True
    others = [*tests, train] if norms else tests
    factored = sum(_pair(a, b) for other in others for a in train for b in other)
    size = max(_size(factor) for factor in train)
    full = sum(_in_full(factor) for factor in train) + len(others) * size
    return full < factored


def in_full(factors: Sequence[Factor], multiply: MatrixProduct) -> Float[Tensor, "example size"]:
    """Return one parameter's gradients as vectors."""
    total: Tensor | None = None
    for factor in factors:
        value = _multiplied_out(factor, multiply)
        total = value if total is None else total + value
    assert total is not None
    return total


def _multiplied_out(factor: Factor, multiply: MatrixProduct) -> Tensor:
    """Return one factor as vectors: for outer products, one matrix product per example."""
    if not isinstance(factor, Outer):
        return explicit(factor)
    pairs = zip(factor.left, factor.right, strict=True)
    return torch.stack([multiply(left.T, right) for left, right in pairs]).flatten(1)


def _pair(a: Factor, b: Factor) -> int:
    if isinstance(a, Explicit) or isinstance(b, Explicit):
        return _in_full(a) + _in_full(b) + max(_size(a), _size(b))
    if isinstance(a, Outer) and isinstance(b, Outer):
        return a.left.shape[1] * b.left.shape[1] * (a.left.shape[2] + a.right.shape[2])
    return _positions(a) * _positions(b) * (_columns(a) + 1)


def _in_full(factor: Factor) -> int:
    return _positions(factor) * _size(factor) if isinstance(factor, Outer) else 0


def _size(factor: Factor) -> int:
    if isinstance(factor, Explicit):
        return factor.values.shape[1]
    if isinstance(factor, Outer):
        return factor.left.shape[2] * factor.right.shape[2]
    return factor.num_rows * factor.values.shape[2]


def _positions(factor: Outer | TableRows | Explicit) -> int:
    if isinstance(factor, Explicit):
        return 1
    return factor.left.shape[1] if isinstance(factor, Outer) else factor.ids.shape[1]


def _columns(factor: Outer | TableRows) -> int:
    return factor.right.shape[2] if isinstance(factor, Outer) else factor.values.shape[2]
