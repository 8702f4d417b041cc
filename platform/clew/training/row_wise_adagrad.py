"""Adagrad with one accumulator per row, for entity tables whose optimizer state is too large."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

MATRIX_DIMENSIONS = 2


class RowWiseAdagrad(Optimizer):
    """Adagrad whose accumulator, for a matrix, is a row's mean squared gradient.

    With g the gradient of a row of length d: a += |g|^2 / d, row -= lr g / (sqrt(a) + eps), as in
    FBGEMM's exact row-wise Adagrad for recommender tables. A parameter that is no matrix has an
    accumulator for each element, as in Adagrad. A table of E rows thus needs E numbers in addition
    to its gradient, instead of E d (Adagrad) or 2 E d (Adam), and no temporary of its size. Where
    the gradient is sparse, only its rows are read and written; the result is the same.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"] and not gradient.is_sparse:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state = self.state[parameter]
        by_row = parameter.dim() == MATRIX_DIMENSIONS
        if not state:
            state["sum"] = torch.zeros_like(parameter[:, 0] if by_row else parameter)
        if gradient.is_sparse:
            self._move_rows(parameter, gradient.coalesce(), state["sum"], group)
            return
        if by_row:
            state["sum"] += torch.linalg.vector_norm(gradient, dim=1).square_() / gradient.shape[1]
        else:
            state["sum"].addcmul_(gradient, gradient)
        scale = (state["sum"].sqrt() + group["eps"]).reciprocal_()
        parameter.addcmul_(gradient, scale[:, None] if by_row else scale, value=-group["lr"])

    @staticmethod
    def _move_rows(
        parameter: Tensor, gradient: Tensor, sums: Tensor, group: dict[str, Any]
    ) -> None:
        """Move the rows of a sparse gradient; those that it does not name would not move."""
        (rows,), values = gradient.indices(), gradient.values()
        squares = values.square()
        sums.index_add_(0, rows, squares if squares.dim() == 1 else squares.mean(dim=1))
        scale = (sums[rows].sqrt() + group["eps"]).reciprocal_()
        scaled = values * (scale if values.dim() == 1 else scale[:, None])
        parameter.index_add_(0, rows, scaled, alpha=-group["lr"])
