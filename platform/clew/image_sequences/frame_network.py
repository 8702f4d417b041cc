"""The network for a single frame: convolutions, FiLM by scalars, pooling by attention.

Notable choices:

- GroupNorm, so that the features of a frame do not depend on its batch.
- FiLM as x (1 + gamma) + beta, with gamma and beta initially zero (Perez et al., 2018, arXiv
  1709.07871).
- Every convolution halves height and width, so that no tensor as large as the frame is kept.
- Channels last.
- Normalisation removes the level of a frame, which is the most important feature for temperatures.
  So the mean of the pixels and of their squares is added to the feature vector on a separate path.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.image_sequences import SequenceRegressionModel
from clew.layers.training_mode import recomputed

Frames = Float[Tensor, "frame channel height width"]
Maps = Float[Tensor, "frame map row column"]
Halved = Float[Tensor, "frame new_map new_row new_column"]
Scalars = Float[Tensor, "frame scalar"]


class FrameBlock(nn.Module):
    """A convolution of stride 2, normalisation, FiLM and SiLU."""

    def __init__(self, inputs: int, outputs: int, config: SequenceRegressionModel) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm: nn.Module = (
            nn.GroupNorm(config.norm_groups, outputs)
            if config.normalization == "group"
            else nn.BatchNorm2d(outputs)
        )

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

    def weights(self, x: Maps) -> Float[Tensor, "frame row column"]:
        scores = self.score(x).flatten(1)
        return torch.softmax(scores, dim=1).view(x.shape[0], *x.shape[2:])

    def forward(self, x: Maps) -> Float[Tensor, "frame map"]:
        return torch.einsum("nchw,nhw->nc", x, self.weights(x))


class FrameEncoder(nn.Module):
    """Computes feature vectors of frames: one for each frame, or one for each patch of a frame.

    Args:
        num_channels: Number of channels of a frame.
        num_scalars: Number of scalars of a frame.
        config: Validated settings.
    """

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
        self.attention: SpatialAttention | None = None
        if config.spatial_attention and self.patches is None:
            self.attention = SpatialAttention(config.width)

    def forward(self, frames: Frames, scalars: Scalars) -> Float[Tensor, "frame patch map"]:
        """Return the feature vectors of each frame's patches; one patch if there is no grid."""

        def encode(x: Frames) -> Float[Tensor, "frame patch map"]:
            return self._encode(x, scalars)

        if self.recomputes and self.training and torch.is_grad_enabled():
            return recomputed(encode, frames, within=self)
        return encode(frames)

    def _encode(self, frames: Frames, scalars: Scalars) -> Float[Tensor, "frame patch map"]:
        maps = self.maps(frames, scalars)
        level = self._level(frames)
        if self.patches is not None:
            return F.adaptive_avg_pool2d(maps, self.patches).flatten(2).mT + level
        pooled = maps.mean((2, 3)) if self.attention is None else self.attention(maps)
        return pooled.unsqueeze(1) + level

    def _level(self, frames: Frames) -> Float[Tensor, "frame patch map"]:
        grid = self.patches or (1, 1)
        moments = torch.cat(
            [F.adaptive_avg_pool2d(x, grid).flatten(2) for x in (frames, frames.square())], dim=1
        )
        return self.level(moments.mT)  # type: ignore[no-any-return]

    def maps(self, frames: Frames, scalars: Scalars) -> Maps:
        """Return the feature maps of the last convolution."""
        modulations: tuple[Tensor | None, ...] = (None,) * len(self.blocks)
        if self.film is not None:
            modulations = torch.split(self.film(scalars), self.widths, dim=1)
        x = frames.contiguous(memory_format=torch.channels_last)
        for block, modulation in zip(self.blocks, modulations, strict=True):
            x = block(x, modulation)
        return x
