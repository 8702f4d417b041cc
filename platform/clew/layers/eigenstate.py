"""The temporal eigenstate layer: a gated diagonal linear recurrence over the sequence.

Design choices:

- Eigenvalues are exp(-exp(rate) + i frequency), so they are inside the unit circle for any rate.
- Inputs are scaled by sqrt(1 - |lambda|^2), so that slow and fast eigenstates have equal size.
- Initial time constants are log-uniform from one token up to the window (or up to
  `longest_time_constant`), so that some eigenstates remember the first token of the window.
- Resonance acts on the readout. The recurrence stays diagonal and depends only on its inputs, not
  on how they are divided into chunks.
- The weights of the step sizes of gated transitions start at zero, so that gated transitions start
  equal to fixed ones.
- A recurrence with few states can pass only a few numbers from one step to the next. A causal
  convolution over the last few steps, with one filter per channel, `y_t = sum_i k_i * x_{t-i}`,
  reads the neighbouring steps in every channel (H3, arXiv 2212.14052, section 3.1; Mamba,
  2312.00752, section 3.4).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.layers.scan import RealEigenvalues, RealSeries, RealState, scan
from clew.layers.training_mode import dropout, for_each_example

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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, kernel, positions = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient itself will be differentiated
            filtered = _filtered(inputs, kernel, positions)
            leaves = (inputs, kernel)
            return *torch.autograd.grad(filtered, leaves, gradient, create_graph=True), None
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


Hidden = Float[Tensor, "batch time dim"]

FASTEST_TURN = math.pi / 2
"""Largest initial frequency, in radians per step."""
ONE_STEP = math.log(math.e - 1.0)
"""The value with softplus(value) = 1."""
LEAST_DECAY = 1e-30


@dataclass(frozen=True)
class LayerState:
    """The state of a block: its eigenstates and the last inputs of its convolutions.

    All fields are None at the start of a sequence.
    """

    eigenstates: RealState | None = None
    mixer_inputs: Inputs | None = None
    mlp_inputs: Inputs | None = None


class EigenstateMixer(nn.Module):
    """Mix information over time with K eigenstates.

        b_t = sqrt(1 - |lambda|^2) (W_in x_t + b_in),   c_t = lambda c_{t-1} + b_t    (complex)
        y_t = sigmoid(W_g x_t + b_g) * W_out R c_t,    R = I + eps M        (block-diagonal)

    With gated transitions, lambda_t = lambda^delta_t replaces lambda, also in the scale of b_t:

        delta_t = softplus(W_d x_t + b_d)

    Diagonal recurrences and their initialisation: S4D (arXiv 2206.11893), LRU (2303.06349, section
    3), S5 (2208.04933). Step sizes that depend on the input: Mamba (2312.00752, section 3.2).
    """

    def __init__(self, config: EigenstateLMModel) -> None:
        super().__init__()
        self.config = config
        dim, states, heads = config.d_model, config.num_eigenstates, config.num_heads
        # W_in, W_g and W_d are stacked: one product with x gives drives, gates and step sizes.
        self.widths = [2 * states, config.gates, states if config.transition == "gated" else 0]
        self.project = nn.Linear(dim, sum(self.widths))
        self.output = nn.Linear(2 * states, dim, bias=False)
        # Time constants are log-uniform from one token up.
        longest = config.longest_time_constant or config.max_seq_len
        self.rate = nn.Parameter(-torch.rand(states) * math.log(longest))
        self.frequency = nn.Parameter(torch.rand(states) * FASTEST_TURN)
        width = 2 * states // heads
        self.resonance: nn.Parameter | None = None
        if config.resonance:
            self.resonance = nn.Parameter(torch.randn(heads, width, width) / math.sqrt(width))
        nn.init.normal_(self.project.weight, std=dim**-0.5)
        nn.init.zeros_(self.project.bias)
        first_step = 2 * states + config.gates
        nn.init.zeros_(self.project.weight[first_step:])
        nn.init.constant_(self.project.bias[first_step:], ONE_STEP)
        nn.init.normal_(self.output.weight, std=(4 * states * config.n_layers) ** -0.5)

    def forward(
        self, x: Hidden, before: RealState | None = None, positions: Positions | None = None
    ) -> tuple[Hidden, RealState]:
        """Return the update of the residual stream, and the state after the last step."""
        drive, gate, step_sizes = torch.split(self.project(x), self.widths, dim=-1)
        pairs = drive.to(self.rate.dtype).view(*drive.shape[:2], -1, 2)
        if self.config.transition == "gated":
            multipliers, scale = self._gated(step_sizes)
        else:
            multipliers, scale = self.eigenvalues(len(x))
            scale = scale.unsqueeze(1)
        inputs, size = pairs * scale.unsqueeze(-1), self.config.chunk_size
        starts = None if positions is None else positions == 0
        states = scan(inputs, multipliers, before, chunk_size=size, starts=starts)
        readout, gate = self.output(self._resonate(states)), torch.sigmoid(gate)
        if self.config.gates < self.config.d_model:
            gate = gate.repeat_interleave(self.config.d_model // self.config.gates, dim=-1)
        return readout * gate, states[:, -1]

    def _gated(
        self, step_sizes: Float[Tensor, "batch time state"]
    ) -> tuple[RealSeries, Float[Tensor, "batch time state"]]:
        """Return lambda_t and the input scale of each step."""
        lengths, batch = F.softplus(step_sizes.to(self.rate.dtype)), len(step_sizes)
        decay = -torch.exp(for_each_example(self.rate, batch)).unsqueeze(1) * lengths
        decay = decay.clamp(max=-LEAST_DECAY)  # sqrt in _scale has no gradient at 0
        angle = for_each_example(self.frequency, batch).unsqueeze(1) * lengths
        return _powers(decay, angle), _scale(decay)

    def eigenvalues(self, batch: int) -> tuple[RealEigenvalues, Float[Tensor, "batch state"]]:
        """Return lambda and the input scale sqrt(1 - |lambda|^2), with a copy per example."""
        decay = -torch.exp(for_each_example(self.rate, batch))
        return _powers(decay, for_each_example(self.frequency, batch)), _scale(decay)

    def _resonate(self, states: RealSeries) -> Float[Tensor, "batch time two_states"]:
        flat = states.flatten(-2)
        if self.resonance is None:
            return flat
        heads = flat.view(*flat.shape[:2], self.config.num_heads, -1)
        matrices = for_each_example(self.resonance, states.shape[0])
        mixed = torch.einsum("bthi,bhoi->btho", heads, matrices)
        return flat + self.config.resonance * mixed.flatten(-2)


def _powers(decay: Tensor, angle: Tensor) -> Tensor:
    """Return exp(decay + i angle) as pairs of real and imaginary part."""
    modulus = torch.exp(decay)
    return torch.stack([modulus * torch.cos(angle), modulus * torch.sin(angle)], dim=-1)


def _scale(decay: Tensor) -> Tensor:
    """Return sqrt(1 - |lambda|^2)."""
    return torch.sqrt(-torch.expm1(2.0 * decay))


class EigenstateBlock(nn.Module):
    """A mixer and an MLP with squared ReLU, each applied to the normalised residual stream."""

    def __init__(self, config: EigenstateLMModel) -> None:
        super().__init__()
        dim, hidden = config.d_model, config.mlp_ratio * config.d_model
        self.dropout = config.dropout
        self.mixer_norm = nn.LayerNorm(dim, bias=False)
        self.mixer_filter = ShortConvolution(dim, config.convolution_width)
        self.mixer = EigenstateMixer(config)
        self.mlp_norm = nn.LayerNorm(dim, bias=False)
        self.mlp_filter = ShortConvolution(dim, config.convolution_width)
        self.expand = nn.Linear(dim, hidden, bias=False)
        self.contract = nn.Linear(hidden, dim, bias=False)
        nn.init.normal_(self.expand.weight, std=dim**-0.5)
        nn.init.normal_(self.contract.weight, std=(2 * hidden * config.n_layers) ** -0.5)

    def forward(
        self, x: Hidden, state: LayerState | None = None, positions: Positions | None = None
    ) -> tuple[Hidden, LayerState]:
        """Return the residual stream after the block, and the block's state.

        Args:
            x: The residual stream.
            state: The state after the sequence so far; None at the start of a sequence.
            positions: Position of each token in its document. A token depends only on tokens of
                the same document. None: the sequence is one document.
        """
        before = state or LayerState()
        filtered, mixer_inputs = self.mixer_filter(
            self.mixer_norm(x), before.mixer_inputs, positions
        )
        mixed, eigenstates = self.mixer(filtered, before.eigenstates, positions)
        x = x + dropout(mixed, self.dropout, self.training)
        filtered, mlp_inputs = self.mlp_filter(self.mlp_norm(x), before.mlp_inputs, positions)
        added = self.contract(squared_relu(self.expand(filtered)))
        x = x + dropout(added, self.dropout, self.training)
        return x, LayerState(eigenstates, mixer_inputs, mlp_inputs)


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al., 2021, arXiv 2109.08668)."""
    squared: Tensor = _SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
    return squared


class _SquaredReLU(torch.autograd.Function):
    """Squared ReLU that saves one tensor and makes one pass; plain autograd needs two of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.relu(x).square_()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.addcmul(gradient.new_zeros(()), gradient, F.relu(x), value=2.0)
