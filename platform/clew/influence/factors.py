"""Per-example gradients in factored form, their inner products, and their projections.

A parameter is used one or more times in a forward pass. Seen as a matrix (row, column), each use
adds one factor to an example's gradient:

    Outer      sum over positions p of left_p right_p^T      linear layer, scorer, convolution
    TableRows  values_p added to row ids_p                   embedding lookup
    Explicit   the gradient itself, flattened                normalisation, biases, small kernels

The inner product of two examples' gradients of one parameter is the sum over all pairs of its
factors. A table that is both looked up and used as a scorer has cross terms; they are always
included.

An inner product is computed from factors, or from the gradients in full, whichever is cheaper. With
P positions in a training window, Q positions in a test and a matrix of R x C weights, the
numbers of multiply-adds are

    factored    P Q (R + C) for each test, P^2 (R + C) for the norm
    in full     P R C once, then R C for each test and for the norm

So factors are cheaper for a few short prompts. For many prompts, or for norms, the gradient of a
training window is multiplied out once, used for all products, and freed. Parameters are processed
one after another, so that only one parameter's gradients of a tile of windows are held in full.

Products of projections to a few numbers estimate inner products. A gradient of a matrix,
G = sum_p l_p r_p^T, is projected on both sides,

    A^T G B = sum_p (A^T l_p)(B^T r_p)^T,     A: row x a, B: column x b, orthogonal columns

scaled so that the expected inner product of two projections is that of the gradients. It is
computed from the factors, so the gradient itself is never needed. Vectors, and matrices that are
not larger than their projection, are not projected. (Projections of both factors:
Johnson-Lindenstrauss for Kronecker products, Jin et al., arXiv 1909.04801; for gradients, LoGra,
arXiv 2405.13954, section 3.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.layers.products import product

OVERSAMPLING = 8
"""Number of random combinations in addition to the directions that are kept."""


@dataclass(frozen=True)
class Outer:
    """Sum of outer products over positions."""

    left: Float[Tensor, "example position row"]
    right: Float[Tensor, "example position column"]


@dataclass(frozen=True)
class TableRows:
    """Vectors added to rows of a table."""

    ids: Int[Tensor, "example position"]
    values: Float[Tensor, "example position column"]
    num_rows: int


@dataclass(frozen=True)
class Explicit:
    """The gradient itself, flattened."""

    values: Float[Tensor, "example size"]


Factor = Outer | TableRows | Explicit
Factors = dict[str, list[Factor]]
"""Parameter name to the factors of its gradient."""


def outer_or_explicit(left: Tensor, right: Tensor) -> Factor:
    """Return P positions factored if P = 1 or 2 P^2 <= number of weights, else materialised.

    The inner product of two factored examples costs 2 P^2 (row + column) FLOP, that of two
    materialised examples 2 row column FLOP. An example is materialised once for all its pairs.
    Under autocast, one side can be in half precision; both are converted to the wider type.
    """
    dtype = torch.promote_types(left.dtype, right.dtype)
    left, right = left.to(dtype), right.to(dtype)
    num_positions, num_weights = left.shape[1], left.shape[2] * right.shape[2]
    if num_positions > 1 and 2 * num_positions**2 > num_weights:
        return Explicit(torch.einsum("npr,npc->nrc", left, right).flatten(1))
    return Outer(left, right)


def explicit(factor: Factor) -> Tensor:
    """Materialise a factor as gradients `(example, row * column)`."""
    if isinstance(factor, Explicit):
        return factor.values
    if isinstance(factor, Outer):
        return torch.einsum("npr,npc->nrc", factor.left, factor.right).flatten(1)
    examples, positions, columns = factor.values.shape
    dense = factor.values.new_zeros(examples, factor.num_rows, columns)
    index = factor.ids.unsqueeze(-1).expand(examples, positions, columns)
    return dense.scatter_add_(1, index, factor.values).flatten(1)


def inner_products(train: Sequence[Factor], test: Sequence[Factor]) -> Float[Tensor, "test train"]:
    """Return all inner products of one parameter's gradients, cross terms included."""
    return torch.stack([_cross(a, b) for a in train for b in test]).sum(0).T


def squared_norms(factors: Sequence[Factor]) -> Float[Tensor, "example"]:
    """Return each example's squared norm of one parameter's gradient, cross terms included."""
    return torch.stack([_paired(a, b) for a in factors for b in factors]).sum(0)


def _cross(a: Factor, b: Factor) -> Float[Tensor, "a b"]:
    if isinstance(a, Outer) and isinstance(b, Outer):
        return _sum_positions(_gram(a.left, b.left) * _gram(a.right, b.right))
    if isinstance(a, Outer) and isinstance(b, TableRows):
        return _outer_rows(a, b)
    if isinstance(a, TableRows) and isinstance(b, Outer):
        return _outer_rows(b, a).T
    if isinstance(a, TableRows) and isinstance(b, TableRows):
        same = a.ids[:, :, None, None] == b.ids[None, None]
        return _sum_positions(same * _gram(a.values, b.values))
    return explicit(a) @ explicit(b).T


def _outer_rows(outer: Outer, rows: TableRows) -> Float[Tensor, "outer rows"]:
    """Return the sum over p, q of left_p[id_q] (right_p . value_q): scorer times lookup."""
    picked = outer.left[:, :, rows.ids]
    return _sum_positions(picked * _gram(outer.right, rows.values))


def _gram(a: Tensor, b: Tensor) -> Float[Tensor, "a p b q"]:
    flat = a.flatten(0, 1) @ b.flatten(0, 1).T
    return flat.reshape(*a.shape[:2], *b.shape[:2])


def _sum_positions(products: Float[Tensor, "a p b q"]) -> Float[Tensor, "a b"]:
    return products.sum((1, 3))


def _paired(a: Factor, b: Factor) -> Float[Tensor, "example"]:
    if isinstance(a, Outer) and isinstance(b, Outer):
        grams = (a.left @ b.left.mT) * (a.right @ b.right.mT)
        return grams.sum((1, 2))
    if isinstance(a, Outer) and isinstance(b, TableRows):
        index = b.ids[:, None, :].expand(-1, a.left.shape[1], -1)
        return (a.left.gather(2, index) * (a.right @ b.values.mT)).sum((1, 2))
    if isinstance(a, TableRows) and isinstance(b, Outer):
        return _paired(b, a)
    if isinstance(a, TableRows) and isinstance(b, TableRows):
        same = a.ids[:, :, None] == b.ids[:, None, :]
        return (same * (a.values @ b.values.mT)).sum((1, 2))
    return (explicit(a) * explicit(b)).sum(1)


def is_cheaper_in_full(
    train: Sequence[Factor], tests: Sequence[Sequence[Factor]], *, norms: bool
) -> bool:
    """Return whether one parameter's products cost less with its gradients in full."""
    if any(isinstance(factor, Explicit) for factor in train):
        return True
    others = [*tests, train] if norms else tests
    factored = sum(_pair(a, b) for other in others for a in train for b in other)
    size = max(_size(factor) for factor in train)
    full = sum(_in_full(factor) for factor in train) + len(others) * size
    return full < factored


def in_full(
    factors: Sequence[Factor], multiply: Callable[[Tensor, Tensor], Tensor] = product
) -> Float[Tensor, "example size"]:
    """Return one parameter's gradients as vectors."""

    def of(factor: Factor) -> Tensor:
        if not isinstance(factor, Outer):
            return explicit(factor)
        pairs = zip(factor.left, factor.right, strict=True)  # one matrix product per example
        return torch.stack([multiply(left.T, right) for left, right in pairs]).flatten(1)

    return reduce(torch.add, map(of, factors))


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


def _positions(factor: Outer | TableRows) -> int:
    return factor.left.shape[1] if isinstance(factor, Outer) else factor.ids.shape[1]


def _columns(factor: Outer | TableRows) -> int:
    return factor.right.shape[2] if isinstance(factor, Outer) else factor.values.shape[2]


@dataclass(frozen=True, eq=False)
class Projection:
    """The projection of the gradients of one parameter."""

    size: int
    """Numbers of a projected gradient."""
    sides: tuple[Float[Tensor, "row a"], Float[Tensor, "column b"]] | None = None
    """Directions of rows and columns of a matrix; None: a gradient is not changed."""

    def to(self, device: torch.device) -> "Projection":
        if self.sides is None:
            return self
        return Projection(self.size, (self.sides[0].to(device), self.sides[1].to(device)))

    def __call__(self, factors: Sequence[Factor]) -> Float[Tensor, "example size"]:
        if self.sides is None:
            return in_full(factors)
        return reduce(torch.add, (_projected(factor, *self.sides) for factor in factors))


def _projected(factor: Factor, rows: Tensor, columns: Tensor) -> Tensor:
    if isinstance(factor, Explicit):
        matrix = factor.values.view(-1, len(rows), len(columns))
        return torch.matmul(rows.T, matrix @ columns).flatten(1)
    if isinstance(factor, Outer):
        left, right = factor.left @ rows, factor.right @ columns
    else:
        left, right = rows[factor.ids], factor.values @ columns
    return (left.mT @ right).flatten(1)


class SharedDirections:
    """Chooses projections from the leading directions of a few gradients and random directions.

    Gradients of different windows have much in common. Half of the directions on each side of a
    matrix are the leading directions of a sample of gradients, found from random combinations of
    their rows and columns (Halko et al., 2011, arXiv 0909.4061, section 4). The other half are
    random directions orthogonal to these. The products are unbiased over the random half. With the
    same size, their error is a quarter of the error of random directions alone (measured on a
    language model).
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], rank: int, seed: int) -> None:
        self.rank, self._generator = rank, torch.Generator().manual_seed(seed)
        self._sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self._sides = {
            name: (shape[0], self._sizes[name] // shape[0])
            for name, shape in shapes.items()
            if len(shape) > 1 and self._sizes[name] > rank**2
        }
        self._combined: dict[str, tuple[list[Tensor], list[Tensor]]] = {
            name: ([], []) for name in self._sides
        }

    def add(self, name: str, gradients: Float[Tensor, "example size"]) -> None:
        if name not in self._sides:
            return
        rows, columns = self._combined[name]
        for gradient in gradients.reshape(-1, *self._sides[name]):
            unit = gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            rows.append((unit @ self._random(unit.shape[1]).to(unit)).cpu())
            columns.append((unit.T @ self._random(unit.shape[0]).to(unit)).cpu())

    def projections(self) -> dict[str, Projection]:
        found = {name: Projection(size) for name, size in self._sizes.items()}
        for name, sizes in self._sides.items():
            rows, columns = map(self._side, sizes, self._combined[name])
            found[name] = Projection(rows.shape[1] * columns.shape[1], (rows, columns))
        return found

    def _side(self, size: int, combined: Sequence[Tensor]) -> Float[Tensor, "size kept"]:
        """Return orthogonal columns; the identity if `size` is not larger than the rank."""
        if size <= self.rank:
            return torch.eye(size)
        leading = torch.zeros(size, 0, dtype=torch.float64)
        if combined:
            found = torch.linalg.svd(torch.cat(list(combined), dim=1).double(), full_matrices=False)
            leading = found.U[:, : self.rank // 2]
        kept = self.rank - leading.shape[1]
        rest = self._random(size, kept)
        for _ in range(2):  # the second pass removes the rounding error of the first
            rest = torch.linalg.qr(rest - leading @ (leading.T @ rest)).Q
        scale = math.sqrt((size - leading.shape[1]) / kept)
        return torch.cat([leading, scale * rest], dim=1).float()

    def _random(self, size: int, count: int | None = None) -> Float[Tensor, "size count"]:
        count = self.rank // 2 + OVERSAMPLING if count is None else count
        return torch.randn(size, count, generator=self._generator, dtype=torch.float64)
