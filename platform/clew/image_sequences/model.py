"""The regression model for a short sequence of frames and their scalars.

The frames of all windows are folded into one batch for the convolutions. In training they go
through the convolutions in groups of `frames_per_checkpoint`. With gradient checkpointing, only the
frames and the feature vectors of a group are kept, and the activations are recomputed in the
backward pass. The groups are the same with and without gradient checkpointing, so the results are
the same too.

Inputs are pixels and scalars in their own units. The scalers are buffers of the model, so that a
checkpoint contains them. Outputs are in standard deviations of the training targets.
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
    """The sizes of the network that the data determine."""

    num_frames: int
    num_channels: int
    num_scalars: int
    mask_channels: bool = False
    """Whether channels that mark the finite pixels are added."""


class SequenceRegressor(nn.Module):
    """Scalers, a network for each frame, a head over time, and a linear readout.

    Args:
        shape: Sizes that the data determine.
        config: Validated settings with all other sizes.
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
        steps = self._encode(self._scaled(images), self._scaled_scalars(scalars))
        summary = self.head(steps.reshape(*images.shape[:2], *steps.shape[1:]))
        return self.readout(self.dropout(summary)).squeeze(1)  # type: ignore[no-any-return]

    def attention_maps(
        self, images: Images, scalars: WindowScalars
    ) -> Float[Tensor, "window time row column"]:
        """Return the attention weights in each frame; uniform without spatial attention."""
        maps = self.encoder.maps(self._scaled(images), self._scaled_scalars(scalars))
        if self.encoder.attention is None:
            weights = maps.new_full((len(maps), *maps.shape[2:]), 1 / maps[0, 0].numel())
        else:
            weights = self.encoder.attention.weights(maps)
        return weights.reshape(*images.shape[:2], *weights.shape[1:])

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

    def _scaled_scalars(self, scalars: WindowScalars) -> Float[Tensor, "frame scalar"]:
        return (scalars.flatten(0, 1) - self.scalar_mean) / self.scalar_std

    def _encode(self, frames: Tensor, scalars: Tensor) -> Float[Tensor, "frame patch map"]:
        if not self.training:
            return self.encoder(frames, scalars)  # type: ignore[no-any-return]
        size = self.config.frames_per_checkpoint or len(frames) // self.shape.num_frames
        pairs = zip(torch.split(frames, size), torch.split(scalars, size), strict=True)
        return torch.cat([self.encoder(group, beside) for group, beside in pairs])
