"""Reads frames and their columns from the data sets and attributes of an HDF5 file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import DataError, described, extra
from clew.image_sequences.stores import ChannelAxis, FrameLayout, StoredFrames, check_pixels
from clew.processes import ends_within

MAX_PROCESSOR_SECONDS = 10.0
"""Time limit for the columns and attributes of a file; an undamaged file takes milliseconds."""
PROBLEMS = (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError)
"""Errors that h5py raises for a damaged file."""


@dataclass
class HDF5Frames(StoredFrames):
    """The data set `images` of an HDF5 file, opened once in each process."""

    path: Path
    channels: ChannelAxis | None = None
    layout: FrameLayout = field(init=False)
    _file: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        with _opened(self.path) as file:
            images = _data_sets(self.path, file, ("images",)).get("images")
            if images is None or images.shape is None:
                raise _no_data_set(self.path, file, "images")
            check_pixels(self.path, images.dtype)
            self.layout = FrameLayout.of(self.path, tuple(images.shape), self.channels)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        with extra("images"):
            import h5py

        # h5py needs ascending indices without repetitions.
        ordered, place = np.unique(frames, return_inverse=True)
        try:
            if self._file is None:
                self._file = h5py.File(self.path, "r")
            return self.layout.frames(self._file["images"][ordered][place])
        except PROBLEMS as error:
            raise DataError(f"{self.path}: images cannot be read ({described(error)})") from None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


def read_columns(path: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that exist in a file, and the file's attributes.

    They are first read in a fork of this process. With a damaged heap of texts, HDF5 loops forever
    and cannot be interrupted (https://github.com/HDFGroup/hdf5/issues/1707).

    Raises:
        DataError: If a column or an attribute cannot be read.
    """
    if not ends_within(MAX_PROCESSOR_SECONDS, lambda: _read_columns(path, names)):
        raise DataError(f"{path}: HDF5 cannot read the file; it is damaged, copy it again")
    return _read_columns(path, names)


def _read_columns(path: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    with _opened(path) as file:
        columns = {name: found[()] for name, found in _data_sets(path, file, names).items()}
        return columns, dict(file.attrs.items())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; errors of h5py within the block become a DataError."""
    with extra("images"):
        import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: not a readable HDF5 file ({described(error)})") from None
    with file:
        try:
            yield file
        except DataError:
            raise
        except PROBLEMS as error:
            raise DataError(f"{path}: a data set cannot be read ({described(error)})") from None


def _data_sets(path: Path, file: Any, names: tuple[str, ...]) -> dict[str, Any]:
    import h5py

    links = set(file)  # includes links whose target does not exist
    found = {name: file.get(name) for name in names if name in links}
    for name, data_set in found.items():
        if not isinstance(data_set, h5py.Dataset):
            raise _no_data_set(path, file, name)
    return found


def _no_data_set(path: Path, file: Any, name: str) -> DataError:
    return DataError(f"{path}: no data set {name} (it has {', '.join(file)[:200] or 'nothing'})")
