"""Encodes scalars for a network: directions as sine and cosine, zenith angles as cosine."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError


@dataclass(frozen=True)
class ScalarEncoding:
    """Which scalars of the file are used, and how each scalar is encoded."""

    columns: tuple[int, ...]
    """Column of each used scalar in the file."""
    kinds: tuple[str, ...]
    """`plain`, `azimuth` or `zenith`, one for each used scalar."""

    @classmethod
    def from_config(
        cls, names: tuple[str, ...], config: ImageSequenceData, source: str
    ) -> "ScalarEncoding":
        """Select the scalars of a file by name.

        Raises:
            ConfigError: If the configuration names a scalar that the file does not have.
        """
        used = names if config.scalars is None else config.scalars
        for key, valid in (("scalars", names), ("azimuth_scalars", used), ("zenith_scalars", used)):
            for name in getattr(config, key) or ():
                if name not in valid:
                    raise ConfigError(
                        f"data.{key} names {name!r}; expected one of "
                        f"{', '.join(valid) or 'none'} ({source})"
                    )
        kinds = {name: "plain" for name in used}
        kinds |= dict.fromkeys(config.azimuth_scalars, "azimuth")
        kinds |= dict.fromkeys(config.zenith_scalars, "zenith")
        return cls(tuple(names.index(name) for name in used), tuple(kinds[name] for name in used))

    @property
    def size(self) -> int:
        return sum(2 if kind == "azimuth" else 1 for kind in self.kinds)

    def encode(self, scalars: np.ndarray) -> np.ndarray:
        """Return encoded scalars `(..., size)`, float32, for a file's rows `(..., scalar)`."""
        parts = []
        for column, kind in zip(self.columns, self.kinds, strict=True):
            value = scalars[..., column]
            match kind:
                case "azimuth":
                    parts += [np.sin(np.radians(value)), np.cos(np.radians(value))]
                case "zenith":
                    parts.append(np.cos(np.radians(value)))
                case _:
                    parts.append(value)
        if not parts:
            return np.zeros((*scalars.shape[:-1], 0), dtype=np.float32)
        return np.stack(parts, axis=-1).astype(np.float32)

    def mirrored(self, encoded: Tensor) -> Tensor:
        """Return encoded scalars of images mirrored left to right.

        A direction a, clockwise from the top of the image, becomes 360 degrees - a. Its sine
        changes sign; its cosine and all other scalars stay the same.
        """
        signs = [
            sign for kind in self.kinds for sign in ((-1.0, 1.0) if kind == "azimuth" else (1.0,))
        ]
        return encoded * torch.tensor(signs, dtype=encoded.dtype, device=encoded.device)
