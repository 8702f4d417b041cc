"""Reads pixels of frames from files, on demand and in any order."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clew.errors import DataError, described

ChannelAxis = Literal["first", "last"]
FrameShape = tuple[int, int, int, int]
"""(frame, channel, height, width)."""

SIDES_OVER_CHANNELS = 4
"""Smallest ratio of both sides of a frame to an axis that is recognised as the channel axis."""


def open_array(path: Path) -> np.ndarray:
    """Map a `.npy` file of plain values into memory.

    Raises:
        DataError: If the file is not a plain NumPy array, or its size does not fit its header.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises many error types for an invalid header
        raise DataError(f"{path}: not a plain NumPy array ({described(error)})") from None


def check_pixels(path: Path, dtype: np.dtype) -> None:
    """Check that pixels are real numbers.

    Raises:
        DataError: If they are not real numbers.
    """
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: images have type {dtype}; expected real numbers")


@dataclass(frozen=True)
class FrameLayout:
    """The shape of frames, and the position of the channel axis in their file."""

    shape: FrameShape
    channels: ChannelAxis = "first"

    @classmethod
    def of(cls, path: Path, shape: tuple[int, ...], channels: ChannelAxis | None) -> "FrameLayout":
        """Determine the layout from a file's shape; frames without a channel axis have one channel.

        Raises:
            DataError: If the shape is not one of frames, or does not show which axis is the channel
                axis.
        """
        if len(shape) not in {3, 4} or not all(shape):
            raise DataError(
                f"{path}: images have shape {shape}; expected (frame, height, width), (frame, "
                "channel, height, width) or (frame, height, width, channel)"
            )
        if len(shape) == 3:
            return cls((shape[0], 1, shape[1], shape[2]))
        count, first, middle, last = shape
        channels = channels or _channel_axis(path, shape)
        return cls(
            (count, last, first, middle) if channels == "last" else (count, first, middle, last),
            channels,
        )

    def frames(self, pixels: np.ndarray) -> np.ndarray:
        """Return frames of the file as float32, `(frame, channel, height, width)`."""
        if self.channels == "last":
            pixels = np.moveaxis(pixels, -1, 1)
        frames: np.ndarray = pixels.reshape(len(pixels), *self.shape[1:])
        return frames.astype(np.float32, order="C")


def _channel_axis(path: Path, shape: tuple[int, ...]) -> ChannelAxis:
    _, first, middle, last = shape
    if first * SIDES_OVER_CHANNELS <= min(middle, last):
        return "first"
    if last * SIDES_OVER_CHANNELS <= min(first, middle):
        return "last"
    raise DataError(
        f"{path}: images have shape {shape}: {first} channels of {middle} x {last} pixels, or "
        f"{last} channels of {first} x {middle}; set data.channels to first or last"
    )


class StoredFrames:
    """Frames with a layout in their file."""

    layout: FrameLayout

    @property
    def shape(self) -> FrameShape:
        """Return (frame, channel, height, width)."""
        return self.layout.shape


@dataclass
class ArrayFrames(StoredFrames):
    """All frames in one `.npy` file, mapped into memory."""

    path: Path
    channels: ChannelAxis | None = None
    layout: FrameLayout = field(init=False)
    _array: np.ndarray | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.layout = FrameLayout.of(self.path, self._open().shape, self.channels)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        return self.layout.frames(self._open()[frames])

    def _open(self) -> np.ndarray:
        if self._array is None:
            self._array = open_array(self.path)
            check_pixels(self.path, self._array.dtype)
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


@dataclass(frozen=True)
class FileFrames(StoredFrames):
    """One `.npy` file for each frame."""

    paths: tuple[Path, ...]
    layout: FrameLayout

    @classmethod
    def of_folder(cls, folder: Path, channels: ChannelAxis | None = None) -> "FileFrames":
        """Find the frames of a folder in the order of their names.

        Raises:
            DataError: If there are no frames, or they do not have the same size.
        """
        paths = tuple(sorted(folder.glob("*.npy")))
        if not paths:
            raise DataError(f"{folder}: no .npy files; expected one for each frame")
        first = open_array(paths[0]).shape
        for index, path in enumerate(paths):
            array = open_array(path)
            check_pixels(path, array.dtype)
            shape = array.shape
            if shape != first:
                raise DataError(
                    f"{path} (frame {index}): shape {shape}, but {paths[0].name} has {first}; "
                    "expected frames of one size"
                )
        return cls(paths, FrameLayout.of(folder, (len(paths), *first), channels))

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        return self.layout.frames(np.stack([open_array(self.paths[int(i)]) for i in frames]))
