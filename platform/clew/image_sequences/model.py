"""The regression model for a short sequence of frames and their scalars.

The frames of all windows are folded into one batch for the convolutions. In training they go
through the convolutions in groups of `frames_per_checkpoint`. With gradient checkpointing, only the
frames and the feature vectors of a group are kept, and the activations are recomputed in the
backward pass. The groups are the same with and without gradient checkpointing, so the results are
the same too.

Inputs are pixels and scalars in their own units. The scalers are buffers of the model, so that a
checkpoint contains them. Outputs are in standard deviations of the training targets.

Notable choices of the network for a frame:

- GroupNorm, so that the features of a frame do not depend on its batch.
- FiLM as x (1 + gamma) + beta, with gamma and beta initially zero (Perez et al., 2018, arXiv
  1709.07871).
- Every convolution halves height and width, so that no tensor as large as the frame is kept.
- Channels last.
- Normalisation removes the level of a frame, which is the most important feature for temperatures.
  So the mean of the pixels and of their squares is added to the feature vector on a separate path.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import SequenceRegressionModel
from clew.layers.eigenstate import EigenstateBlock
from clew.layers.training_mode import recomputed

Images = Float[Tensor, "window time channel height width"]
WindowScalars = Float[Tensor, "window time scalar"]


@dataclass(frozen=True)
class SequenceShape:
    """The sizes of the network that the data determine."""

    num_frames: int
    num_channels: int
    num_scalars: int
    mask_channels: bool = False
    """Whether channels that mark the finite pixels are added."""


class SequenceRegressor(nn.Module):
    """Scalers, a network for each frame, a head over time, and a linear readout."""

    image_mean: Tensor
    image_std: Tensor
    scalar_mean: Tensor
    scalar_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(self, shape: SequenceShape, config: SequenceRegressionModel) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        channels = shape.num_channels * (2 if shape.mask_channels else 1)
        for name, size in (("image", shape.num_channels), ("scalar", shape.num_scalars)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.register_buffer("target_mean", torch.zeros(()))
        self.register_buffer("target_std", torch.ones(()))
        self.encoder = FrameEncoder(channels, shape.num_scalars, config)
        self.head = HEADS[config.architecture](shape.num_frames, config)
        self.dropout = nn.Dropout(config.dropout)
        self.readout = nn.Linear(config.width, 1)
        nn.init.zeros_(self.readout.bias)
        nn.init.normal_(self.readout.weight, std=0.1 * config.width**-0.5)

    def forward(self, images: Images, scalars: WindowScalars) -> Float[Tensor, "window"]:
        beside = (scalars.flatten(0, 1) - self.scalar_mean) / self.scalar_std
        steps = self._encode(self._scaled(images), beside)
        summary = self.head(steps.reshape(*images.shape[:2], *steps.shape[1:]))
        return self.readout(self.dropout(summary)).squeeze(1)  # type: ignore[no-any-return]

    def enable_gradient_checkpointing(self) -> None:
        """Keep only the input of each group of frames, and recompute it in the backward pass."""
        self.encoder.recomputes = True

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the encoder of a group of frames and the head, as `nn.Module.compile` does.

        The loop over groups is not compiled. In one graph, every iteration of the loop would be
        compiled separately, which takes 15 minutes or more for twenty groups.
        """
        self.encoder.compile(*args, **kwargs)
        self.head.compile(*args, **kwargs)

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return the parameters without weight decay: scales, biases, positions and eigenvalues."""
        positions = [p for n, p in self.head.named_parameters() if n in ("time", "place")]
        return [p for p in self.parameters() if p.dim() == 1] + positions

    def _scaled(self, images: Images) -> Float[Tensor, "frame input height width"]:
        """Return standardised frames of all windows; pixels that are not finite become the mean."""
        frames = images.flatten(0, 1)
        scaled = (frames - self.image_mean[:, None, None]) / self.image_std[:, None, None]
        if not self.shape.mask_channels:
            return torch.nan_to_num(scaled, nan=0.0, posinf=0.0, neginf=0.0)
        finite = torch.isfinite(scaled)
        return torch.cat([torch.where(finite, scaled, 0.0), finite.to(scaled.dtype)], dim=1)

    def _encode(self, frames: Tensor, scalars: Tensor) -> Float[Tensor, "frame patch map"]:
        if not self.training:
            return self.encoder(frames, scalars)  # type: ignore[no-any-return]
        size = self.config.frames_per_checkpoint or len(frames) // self.shape.num_frames
        pairs = zip(torch.split(frames, size), torch.split(scalars, size), strict=True)
        return torch.cat([self.encoder(group, beside) for group, beside in pairs])


Frames = Float[Tensor, "frame channel height width"]
Maps = Float[Tensor, "frame map row column"]
Halved = Float[Tensor, "frame new_map new_row new_column"]
Scalars = Float[Tensor, "frame scalar"]


class FrameBlock(nn.Module):
    """A convolution of stride 2, normalisation, FiLM and SiLU."""

    def __init__(self, inputs: int, outputs: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        is_group = config.normalization == "group"
        norm = nn.GroupNorm(config.norm_groups, outputs) if is_group else nn.BatchNorm2d(outputs)
        self.norm: nn.Module = norm

    def forward(self, x: Maps, modulation: Float[Tensor, "frame two_channels"] | None) -> Halved:
        """Return feature maps of half the height and width."""
        x = self.norm(self.convolution(x))
        if modulation is not None:
            gamma, beta = modulation[:, :, None, None].chunk(2, dim=1)
            x = torch.addcmul(beta, x, 1.0 + gamma)
        return F.silu(x)


class SpatialAttention(nn.Module):
    """Attention over positions: the softmax of a linear score."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # No bias: it would shift all scores of a frame equally, which does not change the softmax.
        self.score = nn.Conv2d(channels, 1, 1, bias=False)

    def forward(self, x: Maps) -> Float[Tensor, "frame map"]:
        weights = torch.softmax(self.score(x).flatten(1), dim=1).view(x.shape[0], *x.shape[2:])
        return torch.einsum("nchw,nhw->nc", x, weights)


class FrameEncoder(nn.Module):
    """Computes feature vectors of frames: one for each frame, or one for each patch of a frame."""

    def __init__(
        self, num_channels: int, num_scalars: int, config: SequenceRegressionModel
    ) -> None:
        super().__init__()
        self.recomputes = False
        self.patches = config.patch_grid if config.architecture == "gnn" else None
        sizes = (num_channels, *config.channels)
        self.widths = [2 * size for size in config.channels]
        self.blocks = nn.ModuleList(FrameBlock(a, b, config) for a, b in itertools.pairwise(sizes))
        self.film: nn.Sequential | None = None
        if config.film and num_scalars:
            last = nn.Linear(config.film_hidden, sum(self.widths))
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.film = nn.Sequential(nn.Linear(num_scalars, config.film_hidden), nn.SiLU(), last)
        self.level = nn.Linear(2 * num_channels, config.width, bias=False)
        self.attention = SpatialAttention(config.width) if self.patches is None else None

    def forward(self, frames: Frames, scalars: Scalars) -> Float[Tensor, "frame patch map"]:
        """Return the feature vectors of each frame's patches; one patch if there is no grid."""
        if self.recomputes and self.training and torch.is_grad_enabled():
            return recomputed(partial(self._encode, scalars=scalars), frames, within=self)
        return self._encode(frames, scalars)

    def _encode(self, frames: Frames, scalars: Scalars) -> Float[Tensor, "frame patch map"]:
        maps, grid = self.maps(frames, scalars), self.patches or (1, 1)
        moments = torch.cat(
            [F.adaptive_avg_pool2d(x, grid).flatten(2) for x in (frames, frames.square())], dim=1
        )
        level: Tensor = self.level(moments.mT)
        if self.attention is None:
            return F.adaptive_avg_pool2d(maps, grid).flatten(2).mT + level
        pooled: Tensor = self.attention(maps)
        return pooled.unsqueeze(1) + level

    def maps(self, frames: Frames, scalars: Scalars) -> Maps:
        """Return the feature maps of the last convolution."""
        modulations: tuple[Tensor | None, ...] = (None,) * len(self.blocks)
        if self.film is not None:
            modulations = torch.split(self.film(scalars), self.widths, dim=1)
        x = frames.contiguous(memory_format=torch.channels_last)
        for block, modulation in zip(self.blocks, modulations, strict=True):
            x = block(x, modulation)
        return x


Nodes = Float[Tensor, "window node dim"]
Steps = Float[Tensor, "window time patch dim"]
Summary = Float[Tensor, "window dim"]


class AttentionBlock(nn.Module):
    """Multi-head attention and an MLP, each on a normalised copy of the residual stream."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, 2 * dim)
        self.contract = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Nodes, edges: Bool[Tensor, "node node"] | None = None) -> Nodes:
        """Return the residual stream after the block; without `edges`, all nodes see each other."""
        parts = self.project(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=edges)
        x = x + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        added: Tensor = self.contract(F.gelu(self.expand(self.mlp_norm(x))))
        summed: Tensor = x + self.dropout(added)
        return summed


class AttentionHead(nn.Module):
    """Attention over frames, or over the graph of patches and times.

    In the graph, a patch sees its neighbours in the same frame, and the same patch one frame
    earlier and later (after Velickovic et al., 2018, arXiv 1710.10903).
    """

    edges: Tensor | None

    def __init__(self, num_frames: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        dim, grid = config.width, config.patch_grid if config.architecture == "gnn" else (1, 1)
        self.time = nn.Parameter(0.02 * torch.randn(num_frames, 1, dim))
        self.place = nn.Parameter(0.02 * torch.randn(grid[0] * grid[1], dim))
        edges = graph_edges(num_frames, *grid) if config.architecture == "gnn" else None
        self.register_buffer("edges", edges, persistent=False)
        self.blocks = nn.ModuleList(
            AttentionBlock(dim, config.heads, config.dropout) for _ in range(config.temporal_layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, steps: Steps) -> Summary:
        """Return the mean over nodes after all layers."""
        x = (steps + self.time + self.place).flatten(1, 2)
        for block in self.blocks:
            x = block(x, self.edges)
        normed: Tensor = self.norm(x)
        return normed.mean(1)


class EigenstateHead(nn.Module):
    """Eigenstate layers over the frames; the output is the vector of the last frame."""

    def __init__(self, num_frames: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        settings = EigenstateLMModel(
            d_model=config.width,
            n_layers=config.temporal_layers,
            num_eigenstates=config.width // 2,
            num_heads=config.heads,
            max_seq_len=max(2, num_frames),
            chunk_size=num_frames,
            mlp_ratio=2,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(
            EigenstateBlock(settings) for _ in range(config.temporal_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, steps: Steps) -> Summary:
        """Return the normalised residual stream after the last frame."""
        x = steps.flatten(1, 2)
        for block in self.blocks:
            x = block(x)[0]
        normed: Tensor = self.norm(x)
        return normed[:, -1]


class MeanHead(nn.Module):
    """The mean over frames, normalised."""

    def __init__(self, num_frames: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)

    def forward(self, steps: Steps) -> Summary:
        normed: Tensor = self.norm(steps.flatten(1, 2).mean(1))
        return normed


HEADS: dict[str, type[nn.Module]] = {
    "transformer": AttentionHead,
    "gnn": AttentionHead,
    "ssm": EigenstateHead,
    "cnn": MeanHead,
}


def graph_edges(num_frames: int, rows: int, columns: int) -> Bool[Tensor, "node node"]:
    """Return which nodes see each other: neighbours in a frame, and a patch one frame apart.

    Nodes are numbered by time, then row, then column. Every node sees itself.
    """

    def near(size: int) -> Tensor:
        place = torch.arange(size)
        return (place[:, None] - place).abs() <= 1

    def same(size: int) -> Tensor:
        return torch.eye(size, dtype=torch.bool)

    beside = torch.kron(same(num_frames), torch.kron(near(rows), near(columns)))
    before = torch.kron(near(num_frames), same(rows * columns))
    return beside | before
