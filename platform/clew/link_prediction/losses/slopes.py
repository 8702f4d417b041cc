"""What happens to a tile of scores between the matrix products of the fused losses.

A tile P = X W_c^T `(batch, chunk)` becomes, with the bias added, a part of the normaliser N and its
slope G = dN/ds, in the type and scale of the next products. This module uses PyTorch, one operation
after another, for the CPU and as the reference of the CUDA kernels in `triton_slopes`.
"""

import importlib.util
import logging
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from clew.link_prediction.losses.entity_chunks import Workspace
from clew.link_prediction.losses.one_vs_all import SOFTPLUS_THRESHOLD

logger = logging.getLogger(__name__)

Tile = Float[Tensor, "batch chunk"]
TileBias = Float[Tensor, " chunk"]
PerRow = Float[Tensor, " batch"]


@dataclass(frozen=True)
class Slope:
    """Slope of the normaliser over a tile."""

    scaled: Tile
    """G times the gain, in the type of matrix operands."""
    columns: Float[Tensor, " chunk"]
    """G summed over rows."""


class Slopes:
    """Turns tiles of scores into slopes, by PyTorch; may overwrite the scores."""

    def __init__(self, workspace: Workspace, operand: torch.dtype, gain: float) -> None:
        self._workspace, self._operand, self._gain = workspace, operand, gain

    def softplus(self, scores: Tile, bias: TileBias | None) -> Float[Tensor, ""]:
        """Return the sum of log(1 + exp(s)) over the tile, in float64."""
        scores = _biased(scores, bias)
        softplus = self._workspace.take("softplus", tuple(scores.shape), scores.dtype)
        torch.ops.aten.softplus.out(scores, 1.0, SOFTPLUS_THRESHOLD, out=softplus)
        return softplus.sum().double()

    def sigmoid(self, scores: Tile, bias: TileBias | None) -> tuple[Float[Tensor, ""], Slope]:
        """Return the sum of log(1 + exp(s)) in float64, and its slope 1 / (1 + exp(-s))."""
        total = self.softplus(scores, bias)
        return total, self._slope(scores.sigmoid_())

    def log_sum(self, scores: Tile, bias: TileBias | None) -> PerRow:
        """Return log sum exp(s) over the tile's columns."""
        return _biased(scores, bias).logsumexp(dim=1)

    def softmax(self, scores: Tile, bias: TileBias | None, log_sum: PerRow, mass: PerRow) -> Slope:
        """Return the slope mass * exp(s - log_sum)."""
        scores = _biased(scores, bias)
        return self._slope(scores.sub_(log_sum[:, None]).exp_().mul_(mass[:, None]))

    def _slope(self, slope: Tensor) -> Slope:
        columns = slope.sum(dim=0)
        if self._operand != slope.dtype:
            if self._gain != 1.0:
                slope *= self._gain
            shape = tuple(slope.shape)
            slope = self._workspace.take("scores", shape, self._operand).copy_(slope)
        return Slope(slope, columns)


def _biased(scores: Tensor, bias: Tensor | None) -> Tensor:
    """Add the bias in place."""
    return scores if bias is None else scores.add_(bias)


def slopes_for(
    workspace: Workspace, exact: torch.dtype, operand: torch.dtype, gain: float
) -> Slopes:
    """Return the CUDA kernels if they can run, else PyTorch's operations."""
    if workspace.device.type == "cuda" and exact == torch.float32 and _triton_is_installed():
        from clew.link_prediction.losses.triton_slopes import TritonSlopes

        return TritonSlopes(workspace, operand, gain)
    return Slopes(workspace, operand, gain)


@cache
def _triton_is_installed() -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found:
        logger.warning(
            "the package triton is not installed: the fused loss uses PyTorch's slower operations; "
            "pip install 'clew[gpu]'"
        )
    return found
