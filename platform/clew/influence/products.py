"""Matrix products of the influence engine, in float32 or with half-precision operands.

Sums are accumulated in float32 in both cases (by the hardware for half-precision operands).
Gradients are never computed with a loss scale: it would enter every score squared.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clew.layers.products import linear, product


@dataclass(frozen=True)
class MatrixProduct:
    """How large matrix products are computed.

    `operand` None keeps the tensors' own type; float16 or bfloat16 round the operands first.
    """

    operand: torch.dtype | None = None

    def prepare(self, matrix: Tensor) -> Tensor:
        """Return a matrix in the operands' type, so that it is converted once."""
        return matrix if self.operand is None else matrix.to(self.operand)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return `a @ b` in float32, or in the tensors' own type if `operand` is None."""
        if self.operand is None:
            return product(a, b)
        a, b = self.prepare(a), self.prepare(b)
        if a.is_cuda:
            return torch.mm(a, b, out_dtype=torch.float32)
        return (a @ b).float()

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `x @ weight.T + bias`."""
        if self.operand is None:
            return linear(x, weight, bias)
        result = self(x, weight.T)
        return result if bias is None else result.add_(bias)


def half_precision_for(device: torch.device, choice: str) -> torch.dtype:
    """Return the half-precision type: float16 on a GPU and bfloat16 on the CPU, unless chosen."""
    if choice == "auto":
        return torch.float16 if device.type == "cuda" else torch.bfloat16
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}[choice]
