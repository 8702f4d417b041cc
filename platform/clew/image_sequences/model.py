"""Regression from a short sequence of frames and the scalars beside them.

Frames of all windows are folded into one batch for the convolutions. In training they go through
in groups of `frames_per_checkpoint`; with gradient checkpointing only the frames of a group and
its feature vectors are kept, and its activations are computed again in the backward pass. The
groups are the same with and without it, so that every number is.

Pixels and scalars enter in their own units: the scalers are buffers of the model, so that a
checkpoint holds them. Outputs are in standard deviations of the training targets.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.config.image_sequences import SequenceRegressionModel
from clew.image_sequences.frame_network import FrameEncoder
from clew.image_sequences.temporal_heads import build_head

Images = Float[Tensor, "window time channel height width"]
WindowScalars = Float[Tensor, "window time scalar"]


@dataclass(frozen=True)
class SequenceShape:
    """What the data determines of the network."""

    num_frames: int
    num_channels: int
    num_scalars: int
    mask_channels: bool = False
    """Whether channels that mark the finite pixels are added."""


class SequenceRegressor(nn.Module):
    """Scalers, a network for each frame, a head over time, and a linear readout.

    Args:
        shape: Sizes that the data gives.
        config: Every other size, validated.
    """

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
        self.head = build_head(shape.num_frames, config)
        self.dropout = nn.Dropout(config.dropout)
        self.readout = nn.Linear(config.width, 1)
        nn.init.zeros_(self.readout.bias)
        nn.init.normal_(self.readout.weight, std=0.1 * config.width**-0.5)

    def forward(self, images: Images, scalars: WindowScalars) -> Float[Tensor, "window"]:
        """Return predictions in standard deviations of the training targets."""
        steps = self._encode(self._scaled(images), self._scaled_scalars(scalars))
        summary = self.head(steps.reshape(*images.shape[:2], *steps.shape[1:]))
        return self.readout(self.dropout(summary)).squeeze(1)  # type: ignore[no-any-return]

    def attention_maps(
        self, images: Images, scalars: WindowScalars
    ) -> Float[Tensor, "window time row column"]:
        """Return where the network looks in each frame; uniform without spatial attention."""
        maps = self.encoder.maps(self._scaled(images), self._scaled_scalars(scalars))
        if self.encoder.attention is None:
            weights = maps.new_full((len(maps), *maps.shape[2:]), 1 / maps[0, 0].numel())
        else:
            weights = self.encoder.attention.weights(maps)
        return weights.reshape(*images.shape[:2], *weights.shape[1:])

    def enable_gradient_checkpointing(self) -> None:
        """Keep only the input of each group of frames, and run it again in the backward pass."""
        self.encoder.recomputes = True

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the networks of a group of frames and of time, as `nn.Module.compile` does.

        The loop over groups stays as it is. As one graph with the rest, each of its rounds would be
        compiled for itself: a quarter of an hour and more for twenty groups.
        """
        self.encoder.compile(*args, **kwargs)
        self.head.compile(*args, **kwargs)

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return scales, biases, positions and eigenvalues: decay is for matrices."""
        positions = [p for n, p in self.head.named_parameters() if n in ("time", "place")]
        return [p for p in self.parameters() if p.dim() == 1] + positions

    def _scaled(self, images: Images) -> Float[Tensor, "frame input height width"]:
        """Return standardised frames of all windows; what is not finite becomes the mean."""
        frames = images.flatten(0, 1)
        scaled = (frames - self.image_mean[:, None, None]) / self.image_std[:, None, None]
        if not self.shape.mask_channels:
            return torch.nan_to_num(scaled, nan=0.0, posinf=0.0, neginf=0.0)
        finite = torch.isfinite(scaled)
        return torch.cat([torch.where(finite, scaled, 0.0), finite.to(scaled.dtype)], dim=1)

    def _scaled_scalars(self, scalars: WindowScalars) -> Float[Tensor, "frame scalar"]:
        return (scalars.flatten(0, 1) - self.scalar_mean) / self.scalar_std

    def _encode(self, frames: Tensor, scalars: Tensor) -> Float[Tensor, "frame patch map"]:
        """Run the convolutions, in training in groups of frames."""
        if not self.training:
            return self.encoder(frames, scalars)  # type: ignore[no-any-return]
        size = self.config.frames_per_checkpoint or len(frames) // self.shape.num_frames
        pairs = zip(torch.split(frames, size), torch.split(scalars, size), strict=True)
        return torch.cat([self.encoder(group, beside) for group, beside in pairs])
