"""Reads frames and their columns from a Zarr store: a folder with a group of arrays, format 2 or 3.

Arrays and attributes have the same names as the data sets and attributes of an HDF5 file. A codec
that unpickles is refused before anything is read. Consolidated metadata are ignored.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import DataError, described, extra
from clew.image_sequences.stores import ChannelAxis, FrameLayout, StoredFrames, check_pixels

ZARR_SUFFIX = ".zarr"
GROUP_FILES = ("zarr.json", ".zgroup")
ARRAY_FILES = ("zarr.json", ".zarray")
MAX_METADATA_BYTES = 2**20


def is_zarr(path: Path) -> bool:
    return path.suffix == ZARR_SUFFIX or any((path / name).is_file() for name in GROUP_FILES)


@dataclass
class ZarrFrames(StoredFrames):
    """The array `images` of a Zarr store, opened once in each process."""

    path: Path
    channels: ChannelAxis | None = None
    layout: FrameLayout = field(init=False)
    _array: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        array = self._open()
        check_pixels(self.path, array.dtype)
        self.layout = FrameLayout.of(self.path, tuple(array.shape), self.channels)

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return frames as float32, `(frame, channel, height, width)`."""
        ordered, place = np.unique(frames, return_inverse=True)
        try:
            pixels = self._open().get_orthogonal_selection((ordered,))
        except DataError:
            raise
        except Exception as error:  # codecs raise many error types for damaged chunks
            raise DataError(f"{self.path}: images cannot be read ({described(error)})") from None
        return self.layout.frames(np.asarray(pixels)[place])

    def _open(self) -> Any:
        if self._array is None:
            self._array = open_arrays(self.path, ("images",))[0]["images"]
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


def open_arrays(path: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays that exist in a store, and the store's attributes.

    Raises:
        DataError: If the store cannot be read, has no array `images`, or contains pickled chunks.
    """
    with extra("zarr"):
        import zarr
    for name in names:
        _refuse_pickle(path / name)
    try:
        group = zarr.open_group(str(path), mode="r", use_consolidated=False)
        arrays = {name: group[name] for name in names if name in group}
        attributes = dict(group.attrs)
    except Exception as error:  # Zarr raises many error types for invalid metadata
        raise DataError(f"{path}: not a readable Zarr group ({described(error)})") from None
    wrong = [name for name, found in arrays.items() if not isinstance(found, zarr.Array)]
    if wrong or "images" not in arrays:
        has = ", ".join(sorted(entry.name for entry in path.iterdir()))[:200]
        raise DataError(f"{path}: no array {(*wrong, 'images')[0]} (it has {has or 'nothing'})")
    return arrays, attributes


def read_columns(path: Path, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns that exist in a store, and the store's attributes.

    Raises:
        DataError: If a column cannot be read, or does not have one row for each frame.
    """
    arrays, attributes = open_arrays(path, ("images", *names))
    num_frames = arrays.pop("images").shape[:1]
    columns = {}
    for name, array in arrays.items():
        # Checked before reading, because an array of any size needs no space for missing chunks.
        if array.shape[:1] != num_frames or array.ndim > 2:
            raise DataError(
                f"{path}: {name} has shape {array.shape}, images has {num_frames[0]} frames; "
                "expected one row for each frame"
            )
        try:
            values = np.asarray(array[...])
        except Exception as error:
            raise DataError(f"{path}: {name} cannot be read ({described(error)})") from None
        is_text = values.dtype.kind == "T"
        columns[name] = np.array([str(value) for value in values]) if is_text else values
    return columns, attributes


def _refuse_pickle(array: Path) -> None:
    """Refuse an array with pickled chunks."""
    for name in ARRAY_FILES:
        file = array / name
        if not file.is_file():
            continue
        if file.stat().st_size > MAX_METADATA_BYTES:
            raise DataError(f"{file}: larger than {MAX_METADATA_BYTES:,} bytes; expected metadata")
        try:
            texts = _texts(json.loads(file.read_bytes()))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}: not valid JSON ({described(error)})") from None
        if any("pickle" in text.lower() for text in texts):
            raise DataError(f"{file}: the chunks are pickled, which is not allowed; store numbers")


def _texts(content: object) -> list[str]:
    """Return all texts in JSON values, except those of attributes."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, dict):
        inner = [value for key, value in content.items() if key != "attributes"]
    else:
        inner = content if isinstance(content, list) else []
    return [text for value in inner for text in _texts(value)]
