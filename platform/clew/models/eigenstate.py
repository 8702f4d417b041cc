"""The temporal eigenstate layer: a gated diagonal linear recurrence over the sequence.

Notable choices: eigenvalues are exp(-exp(rate) + i frequency), within the unit circle whatever the
rate becomes; inputs are scaled by sqrt(1 - |lambda|^2), so that slow and fast eigenstates have
states of equal size; time constants start log-uniform over the whole window, so that something
remembers its first token, unless a shorter one is asked for; resonance acts on the readout, so
that the recurrence stays diagonal and a function of its inputs alone, not of how they are cut into
chunks.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.models.multiscale import ScanState, scan_at_scale
from clew.models.scan import RealEigenvalues, RealSeries

Hidden = Float[Tensor, "batch time dim"]

FASTEST_TURN = math.pi / 2
"""Largest initial frequency, in radians a step."""


@dataclass(frozen=True)
class LayerState:
    """What a layer carries from one part of a sequence to the next, one entry a time scale."""

    scans: tuple[ScanState, ...]


class EigenstateMixer(nn.Module):
    """Mix information over time with K eigenstates.

        b_t = sqrt(1 - |lambda|^2) (W_in x_t + b_in),   c_t = lambda c_{t-1} + b_t    (complex)
        y_t = sigmoid(W_g x_t + b_g) * W_out R c_t,    R = I + eps M        (block-diagonal)

    Diagonal recurrences and their initialisation: S4D (arXiv 2206.11893), LRU (2303.06349, section
    3), S5 (2208.04933).

    Args:
        config: Sizes, validated.
    """

    def __init__(self, config: EigenstateLMModel) -> None:
        super().__init__()
        self.config = config
        dim, states, heads = config.d_model, config.num_eigenstates, config.num_heads
        # W_in above W_g: one product with x gives drives and gates.
        self.project = nn.Linear(dim, 2 * states + config.gates)
        self.output = nn.Linear(2 * states, dim, bias=False)
        self.rate = nn.Parameter(_initial_rates(config))
        self.frequency = nn.Parameter(torch.rand(states) * FASTEST_TURN)
        width = 2 * states // heads
        self.resonance: nn.Parameter | None = None
        if config.resonance:
            self.resonance = nn.Parameter(torch.randn(heads, width, width) / math.sqrt(width))
        nn.init.normal_(self.project.weight, std=dim**-0.5)
        nn.init.zeros_(self.project.bias)
        nn.init.normal_(self.output.weight, std=(4 * states * config.n_layers) ** -0.5)

    def forward(self, x: Hidden, state: LayerState | None = None) -> tuple[Hidden, LayerState]:
        """Return what is added to the residual stream, and the state after the last step."""
        eigenvalues, scale = self.eigenvalues(len(x))
        widths = [2 * self.config.num_eigenstates, self.config.gates]
        drive, gate = torch.split(self.project(x), widths, dim=-1)
        pairs = drive.to(self.rate.dtype).view(*drive.shape[:2], -1, 2) * scale[:, None, :, None]
        states, after = self._scan(pairs, eigenvalues, state)
        readout, gate = self.output(self._resonate(states)), torch.sigmoid(gate)
        if self.config.gates < self.config.d_model:
            gate = gate.repeat_interleave(self.config.d_model // self.config.gates, dim=-1)
        return readout * gate, after

    def eigenvalues(self, batch: int) -> tuple[RealEigenvalues, Float[Tensor, "batch state"]]:
        """Return lambda and the input scale sqrt(1 - |lambda|^2), once for each example."""
        each = self._for_each(batch, 1)
        decay, angle = -torch.exp(self.rate + each), self.frequency + each
        modulus = torch.exp(decay)
        pairs = torch.stack([modulus * torch.cos(angle), modulus * torch.sin(angle)], dim=-1)
        return pairs, torch.sqrt(-torch.expm1(2.0 * decay))

    def _for_each(self, batch: int, *others: int) -> Tensor:
        """Return zeros that, added to a parameter, give every example a copy of its own.

        The gradient of an example can then be told from the others'.
        """
        return torch.zeros(batch, *others, dtype=self.rate.dtype, device=self.rate.device)

    def _scan(
        self, drive: RealSeries, eigenvalues: RealEigenvalues, state: LayerState | None
    ) -> tuple[RealSeries, LayerState]:
        """Scan each time scale's share of the eigenstates."""
        scales, chunk_size = self.config.scales, self.config.chunk_size
        share = self.config.num_eigenstates // len(scales)
        before = state.scans if state is not None else (None,) * len(scales)
        drives, values = torch.split(drive, share, dim=2), torch.split(eigenvalues, share, dim=1)
        results = [
            scan_at_scale(inputs, value, scan, scale=scale, chunk_size=chunk_size)
            for inputs, value, scan, scale in zip(drives, values, before, scales, strict=True)
        ]
        states = [series for series, _ in results]
        after = LayerState(tuple(scan for _, scan in results))
        return (states[0] if len(states) == 1 else torch.cat(states, dim=2)), after

    def _resonate(self, states: RealSeries) -> Float[Tensor, "batch time two_states"]:
        """Return R c as real numbers."""
        flat = states.flatten(-2)
        if self.resonance is None:
            return flat
        heads = flat.view(*flat.shape[:2], self.config.num_heads, -1)
        matrices = self.resonance + self._for_each(len(states), 1, 1, 1)
        mixed = torch.einsum("bthi,bhoi->btho", heads, matrices)
        return flat + self.config.resonance * mixed.flatten(-2)


def _initial_rates(config: EigenstateLMModel) -> Tensor:
    """Return log(1 / time constant), time constants log-uniform from one token on, `(state,)`.

    An eigenstate of scale s takes a step every s tokens, so its longest is s times shorter.
    """
    share = config.num_eigenstates // len(config.scales)
    longest = config.longest_time_constant or config.max_seq_len
    return torch.cat(
        [-torch.rand(share) * math.log(max(1.0, longest / scale)) for scale in config.scales]
    )


class EigenstateBlock(nn.Module):
    """A mixer and an MLP with squared ReLU, each on a normalised copy of the residual stream."""

    def __init__(self, config: EigenstateLMModel) -> None:
        super().__init__()
        dim, hidden = config.d_model, config.mlp_ratio * config.d_model
        self.dropout = config.dropout
        self.mixer_norm = nn.LayerNorm(dim, bias=False)
        self.mixer = EigenstateMixer(config)
        self.mlp_norm = nn.LayerNorm(dim, bias=False)
        self.expand = nn.Linear(dim, hidden, bias=False)
        self.contract = nn.Linear(hidden, dim, bias=False)
        nn.init.normal_(self.expand.weight, std=dim**-0.5)
        nn.init.normal_(self.contract.weight, std=(2 * hidden * config.n_layers) ** -0.5)

    def forward(self, x: Hidden, state: LayerState | None = None) -> tuple[Hidden, LayerState]:
        """Return the residual stream after the block, and the mixer's state."""
        mixed, after = self.mixer(self.mixer_norm(x), state)
        x = x + drop_channels(mixed, self.dropout, training=self.training)
        added = self.contract(squared_relu(self.expand(self.mlp_norm(x))))
        return x + drop_channels(added, self.dropout, training=self.training), after


def drop_channels(x: Hidden, probability: float, *, training: bool) -> Hidden:
    """Drop channels for all tokens of a window at once (Gal and Ghahramani, arXiv 1512.05287).

    A recurrence would average masks drawn anew at every token away; and one draw for a window
    costs nothing, where one for each token would cost a tenth of a training step on a CPU.
    """
    if not training or probability == 0.0:
        return x
    keep = 1.0 - probability
    mask = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(keep).div_(keep)
    return x * mask


def squared_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al., 2021, arXiv 2109.08668)."""
    squared: Tensor = _SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
    return squared


class _SquaredReLU(torch.autograd.Function):
    """One tensor kept and one pass over it in each direction; autograd alone takes twice that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(gradient.new_zeros(()), gradient, positive, value=2.0)
