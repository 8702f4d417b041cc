"""A causal convolution over the last few steps of a sequence, with one filter a channel.

    y_t = sum_{i < width} k_i * x_{t-i}

A recurrence with few states reads neighbouring steps through as many numbers; this reads them in
every channel (H3, arXiv 2212.14052, section 3.1; Mamba, 2312.00752, section 3.4).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.layers.examples import for_each_example

Series = Float[Tensor, "batch time channel"]
Inputs = Float[Tensor, "batch before channel"]
Positions = Int[Tensor, "batch time"]
"""Tokens of the same document before each token; a document begins where there are none."""

NEIGHBOUR_STD = 0.3
"""Spread of a filter's initial values around 1 for the step itself and 0 for those before."""


class ShortConvolution(nn.Module):
    """Filter each channel over the step itself and the `width - 1` before it.

    Args:
        dim: Channels.
        width: Steps that a filter sees; with 1, inputs pass through unchanged.
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
        """Return the filtered series, and the inputs that the steps after it will see.

        Args:
            x: Inputs.
            before: The `width - 1` inputs before them, `(batch, width - 1, channel)`; None at the
                start of a sequence, where they are zero.
            positions: Of each step in its document, of which alone it sees inputs; None: all is
                one document.
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
    """A pass over memory for each step of a filter; autograd alone takes two and a half times that.

    Inputs `(batch, width - 1 + time, channel)` and filters `(batch, width, channel)` give
    `(batch, time, channel)`. An input i steps ago counts where the position is i or more.
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
    """Return a series, zero where `steps` ago there was another document."""
    if positions is None or steps == 0:
        return series
    return series * (positions >= steps).unsqueeze(2)


def _delayed(inputs: Tensor, width: int) -> list[Tensor]:
    """Return views of the series as it was 0, 1, ... `width - 1` steps ago."""
    time = inputs.shape[1] - width + 1
    return [inputs[:, first : first + time] for first in reversed(range(width))]
