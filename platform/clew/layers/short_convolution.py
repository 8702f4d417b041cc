"""A causal convolution over the last few steps of a sequence, with one filter per channel.

    y_t = sum_{i < width} k_i * x_{t-i}

A recurrence with few states can pass only a few numbers from one step to the next. The convolution
reads the neighbouring steps in every channel (H3, arXiv 2212.14052, section 3.1; Mamba, 2312.00752,
section 3.4).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.layers.training_mode import for_each_example

Series = Float[Tensor, "batch time channel"]
Inputs = Float[Tensor, "batch before channel"]
Positions = Int[Tensor, "batch time"]
"""Number of earlier tokens of the same document, for each token; 0 at the start of a document."""

NEIGHBOUR_STD = 0.3
"""Standard deviation of a filter's initial values around 1 for the current step, 0 for others."""


class ShortConvolution(nn.Module):
    """Filter each channel over the current step and the `width - 1` steps before it.

    Args:
        dim: Number of channels.
        width: Number of steps that a filter reads; with 1, inputs pass through unchanged.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.kernel: nn.Parameter | None = None
        if width > 1:
            kernel = torch.randn(width, dim) * NEIGHBOUR_STD
            kernel[0] += 1.0
            self.kernel = nn.Parameter(kernel)

    def forward(
        self, x: Series, before: Inputs | None = None, positions: Positions | None = None
    ) -> tuple[Series, Inputs]:
        """Return the filtered series, and the last inputs, which the next steps need.

        Args:
            x: Inputs.
            before: The `width - 1` inputs before `x`, `(batch, width - 1, channel)`; None at the
                start of a sequence, where they are zero.
            positions: Position of each step in its document. A step reads only inputs of the same
                document. None: all steps are one document.
        """
        if self.kernel is None:
            return x, x[:, :0]
        history = len(self.kernel) - 1
        if before is None:
            before = x.new_zeros(x.shape[0], history, x.shape[2])
        inputs = torch.cat([before, x], dim=1)
        kernel = for_each_example(self.kernel, x.shape[0]).to(x.dtype)
        filtered: Tensor = _Filter.apply(inputs, kernel, positions)  # type: ignore[no-untyped-call]
        return filtered, inputs[:, -history:]


class _Filter(torch.autograd.Function):
    """The convolution in one pass over memory per filter step; plain autograd takes 2.5 times that.

    Inputs `(batch, width - 1 + time, channel)` and filters `(batch, width, channel)` give
    `(batch, time, channel)`. The input i steps ago is used only if the position is at least i.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kernel: Tensor, positions: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, kernel, positions)
        return _filtered(inputs, kernel, positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs, kernel, positions = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient itself will be differentiated
            filtered = _filtered(inputs, kernel, positions)
            leaves = (inputs, kernel)
            found = torch.autograd.grad(filtered, leaves, gradient, create_graph=True)
            return found[0], found[1], None
        width = kernel.shape[1]
        to_inputs, to_kernel = torch.zeros_like(inputs), torch.empty_like(kernel)
        delays = zip(_delayed(inputs, width), _delayed(to_inputs, width), strict=True)
        for i, (delayed, to_delayed) in enumerate(delays):
            reaching = _within(gradient, positions, i)
            to_delayed.addcmul_(reaching, kernel[:, i : i + 1])
            to_kernel[:, i] = (reaching * delayed).sum(1)
        return to_inputs, to_kernel, None


def _filtered(inputs: Tensor, kernel: Tensor, positions: Tensor | None) -> Tensor:
    own, *others = _delayed(inputs, kernel.shape[1])
    result = own * kernel[:, :1]
    for i, delayed in enumerate(others, start=1):
        result.addcmul_(_within(delayed, positions, i), kernel[:, i : i + 1])
    return result


def _within(series: Tensor, positions: Tensor | None, steps: int) -> Tensor:
    if positions is None or steps == 0:
        return series
    return series * (positions >= steps).unsqueeze(2)


def _delayed(inputs: Tensor, width: int) -> list[Tensor]:
    """Return views of the series delayed by 0, 1, ... `width - 1` steps."""
    time = inputs.shape[1] - width + 1
    return [inputs[:, first : first + time] for first in reversed(range(width))]
