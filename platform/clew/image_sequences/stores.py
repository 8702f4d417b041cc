"""Pixels of frames in their files: read when they are asked for, in any order."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import DataError


def frames_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return (frame, channel, height, width); frames without a channel axis have one channel."""
    if len(shape) not in (3, 4) or not all(shape):
        raise DataError(
            f"{path}: images have shape {shape}; expected (frame, height, width) or (frame, "
            "channel, height, width)"
        )
    num_frames, *channel, height, width = shape
    return num_frames, (channel[0] if channel else 1), height, width


def _as_frames(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    frames: np.ndarray = pixels.reshape(len(pixels), *shape[1:]).astype(np.float32)
    return frames


@dataclass
class ArrayFrames:
    """All frames in one `.npy` file, mapped into memory."""

    path: Path
    shape: tuple[int, int, int, int] = field(init=False)
    _array: np.ndarray | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.shape = frames_shape(self.path, self._open().shape)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        pixels = self._open()[frames]
        return _as_frames(pixels, self.shape)

    def _open(self) -> np.ndarray:
        if self._array is None:
            try:
                self._array = np.load(self.path, mmap_mode="r")
            except ValueError as error:
                raise DataError(f"{self.path}: not a plain NumPy array ({error})") from None
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapping behind: each process opens its own."""
        return self.__dict__ | {"_array": None}


@dataclass(frozen=True)
class FileFrames:
    """One `.npy` file for each frame."""

    paths: tuple[Path, ...]
    shape: tuple[int, int, int, int]

    @classmethod
    def of_folder(cls, folder: Path) -> "FileFrames":
        """Find the frames of a folder, in order of their names, all of one size."""
        paths = tuple(sorted(folder.glob("*.npy")))
        if not paths:
            raise DataError(f"{folder}: no .npy files; expected one for each frame")
        first = np.load(paths[0], mmap_mode="r").shape
        for index, path in enumerate(paths):
            shape = np.load(path, mmap_mode="r").shape
            if shape != first:
                raise DataError(
                    f"{path} (frame {index}): shape {shape}, but {paths[0].name} has {first}; "
                    "expected frames of one size"
                )
        return cls(paths, frames_shape(folder, (len(paths), *first)))

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        return _as_frames(np.stack([np.load(self.paths[int(i)]) for i in frames]), self.shape)


@dataclass
class HDF5Frames:
    """The data set `images` of an HDF5 file, opened once in each process."""

    path: Path
    file_shape: tuple[int, ...]
    shape: tuple[int, int, int, int] = field(init=False)
    _file: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.shape = frames_shape(self.path, self.file_shape)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        import h5py

        if self._file is None:
            self._file = h5py.File(self.path, "r")
        # HDF5 reads ascending indices, each once.
        ordered, place = np.unique(frames, return_inverse=True)
        pixels = self._file["images"][ordered][place]
        return _as_frames(pixels, self.shape)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file behind: each process opens its own."""
        return self.__dict__ | {"_file": None}
