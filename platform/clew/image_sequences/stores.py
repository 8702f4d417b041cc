"""Opens the arrays of frames in an HDF5 file, a Zarr store or a folder of NumPy arrays.

Only the named file or folder is opened. What leads out of it is refused: external raw storage,
virtual data sets and external links of HDF5, links in a Zarr store. So are pickled values.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clew.errors import DataError, extra, refusing

ChannelAxis = Literal["first", "last"]
FrameShape = tuple[int, int, int, int]
"""(frame, channel, height, width)."""

ATTRIBUTES = ("unit", "target_name", "scalar_names", "target_ahead")
HDF5_SUFFIXES = (".h5", ".hdf5")
ZARR_SUFFIX = ".zarr"
ZARR_GROUPS, ZARR_ARRAYS = ("zarr.json", ".zgroup"), ("zarr.json", ".zarray")
METADATA_FILE = "sequences.json"
MAX_METADATA_BYTES = 2**20
MAX_FRAMES = 10_000_000
MAX_COLUMN_BYTES = 2**30
"""Largest size of a column in memory."""
MAX_CHUNK_BYTES = 2**28
"""Largest part of an array that is decompressed at once, which a header of a few bytes can name."""
MAX_LINKS = 8
SIDES_OVER_CHANNELS = 4
"""Smallest ratio of both sides of a frame to an axis that is recognised as the channel axis."""


StoredArray = Any
"""A data set of h5py, an array of Zarr or a memory map: `shape`, `dtype` and indexing are used."""


@dataclass(frozen=True)
class FrameFile:
    """The opened arrays of a file or folder, by name, and its names and units."""

    arrays: Mapping[str, StoredArray]
    attributes: Mapping[str, Any]


@contextmanager
def opened(path: Path, names: tuple[str, ...]) -> Iterator[FrameFile]:
    """Open those of the named arrays that exist; `images` must.

    What the libraries raise for damaged files, also within the block, becomes a `DataError`.
    """
    is_zarr = path.suffix == ZARR_SUFFIX or any((path / name).is_file() for name in ZARR_GROUPS)
    kinds = OSError, RuntimeError, LookupError, TypeError, ValueError, MemoryError
    with refusing(f"{path}: a data set cannot be read", *kinds):
        if path.is_dir():
            yield (_of_zarr if is_zarr else _of_folder)(path, names)
            return
        with extra("images"):
            import h5py
        with refusing(f"{path}: not a readable HDF5 file", OSError):
            file = h5py.File(path, "r")
        with file:
            links = set(file)  # includes links whose target does not exist
            arrays = {name: _data_set(path, file, name) for name in names if name in links}
            if "images" not in arrays:
                raise _none(path, "data set images", file)
            said = {name: file.attrs[name] for name in ATTRIBUTES if name in file.attrs}
            yield FrameFile(arrays, said)


def _data_set(path: Path, file: Any, name: str) -> Any:
    import h5py

    found = _within(path, file, name, MAX_LINKS)
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise _none(path, f"data set {name}", file)
    for outside, what in ((found.external, "an external file"), (found.is_virtual, "other data")):
        if outside:
            raise DataError(
                f"{path}: the values of {name} are in {what}, which is not read; copy them into "
                "this file (h5repack)"
            )
    if found.dtype.kind == "O" and h5py.check_string_dtype(found.dtype) is None:
        raise DataError(f"{path}: {name} has type {found.dtype}; expected numbers or text")
    _refuse_coded(path, name, found.attrs)
    return found


PLAIN = {"scale_factor": 1.0, "add_offset": 0.0, "_FillValue": math.nan, "missing_value": math.nan}
"""Attributes by which numbers of netCDF stand for others, and the values that change nothing."""


def _refuse_coded(path: Path, name: str, attributes: Any) -> None:
    for key, plain in PLAIN.items():
        given = np.ravel(attributes.get(key, plain))
        if given.dtype.kind in "fiu" and not np.allclose(given, plain, 0, 0, equal_nan=True):
            raise DataError(
                f"{path}: {name} has {key} {given[0]:g}, which is not applied; write plain values, "
                "and NaN where one is missing"
            )


def _within(path: Path, group: Any, name: str, links: int) -> Any:
    """Return what a name stands for, or None; links out of the file are not followed.

    h5py follows all links, also those of the groups in between, so each part is looked at first.
    """
    import h5py

    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise DataError(
                f"{path}: {part} is a link to another file, which is not followed; copy the data "
                "into this file"
            )
        if isinstance(link, h5py.SoftLink):
            start = group.file if link.path.startswith("/") else group
            group = _within(path, start, link.path, links - 1) if links else None
        else:
            group = None if link is None else group[part]
    return group


def _of_zarr(path: Path, names: tuple[str, ...]) -> FrameFile:
    """Open a Zarr store of format 2 or 3; consolidated metadata are ignored."""
    with extra("zarr"):
        import zarr

    for name in ("", *names):
        _refuse_links(path / name, deep=bool(name))
        for file in (path / name / array for array in ZARR_ARRAYS if name):
            content = _json(file) if file.is_file() else None
            if isinstance(content, dict):
                content.pop("attributes", None)
            if "pickle" in json.dumps(content).lower():
                raise DataError(
                    f"{file}: the chunks are pickled, which is not allowed; store numbers"
                )
    # Zarr raises many error types for invalid metadata.
    with refusing(f"{path}: not a readable Zarr group", Exception):
        # A path as text could be the address of another machine.
        store = zarr.storage.LocalStore(path, read_only=True)
        group = zarr.open_group(store, mode="r", use_consolidated=False)
        arrays: dict[str, Any] = {name: group[name] for name in names if name in group}
        attributes = dict(group.attrs)
    wrong = [name for name, found in arrays.items() if not isinstance(found, zarr.Array)]
    if wrong or "images" not in arrays:
        found = sorted(entry.name for entry in path.iterdir())
        raise _none(path, f"array {(*wrong, 'images')[0]}", found)
    for name, array in arrays.items():
        _refuse_coded(path, name, array.attrs)
    return FrameFile(arrays, attributes)


def _refuse_links(folder: Path, *, deep: bool) -> None:
    # The file behind a link would be read as values.
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (Path(place) / name).is_symlink():
                raise DataError(
                    f"{Path(place) / name}: is a link, which is not followed; copy the data into "
                    "the store"
                )
        if not deep:
            return


def _json(path: Path) -> Any:
    if path.stat().st_size > MAX_METADATA_BYTES:
        raise DataError(f"{path}: larger than {MAX_METADATA_BYTES:,} bytes; expected metadata")
    with refusing(f"{path}: not valid JSON", ValueError, RecursionError):
        return json.loads(path.read_bytes())


def _of_folder(path: Path, names: tuple[str, ...]) -> FrameFile:
    files = {name: path / f"{name}.npy" for name in names}
    arrays: dict[str, StoredArray] = {n: open_array(f) for n, f in files.items() if f.is_file()}
    if "images" not in arrays and (path / "images").is_dir():
        arrays["images"] = FileFrames(path / "images")
    if "images" not in arrays:
        raise DataError(f"{path}: no images.npy and no folder images/; expected frames in one")
    metadata = path / METADATA_FILE
    attributes = _json(metadata) if metadata.is_file() else {}
    if not isinstance(attributes, dict):
        kind = type(attributes).__name__
        raise DataError(f'{metadata}: is a {kind}; expected keys, {{"unit": "K"}}')
    return FrameFile(arrays, attributes)


def open_array(path: Path) -> np.ndarray:
    """Map a `.npy` file of plain values into memory."""
    # NumPy raises many error types for an invalid header.
    with refusing(f"{path}: not a plain NumPy array", Exception):
        return np.lib.format.open_memmap(path, mode="r")


class FileFrames:
    """One `.npy` file for each frame, in the order of their names, as one array."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.npy"))
        paths.sort(key=lambda path: re.sub("[0-9]+", lambda number: f"{number[0]:0>20}", path.name))
        self._paths = tuple(paths)
        if not self._paths:
            raise DataError(f"{folder}: no .npy files; expected one for each frame")
        first = open_array(self._paths[0])
        for index, path in enumerate(self._paths):
            array = open_array(path)
            check_numbers(path, "images", array.dtype)
            if array.shape != first.shape:
                raise DataError(
                    f"{path} (frame {index}): shape {array.shape}, but {self._paths[0].name} has "
                    f"{first.shape}; expected frames of one size"
                )
        self.shape, self.dtype = (len(self._paths), *first.shape), first.dtype

    def __getitem__(self, frames: np.ndarray) -> np.ndarray:
        return np.stack([open_array(self._paths[int(i)]) for i in frames])


def _none(path: Path, what: str, names: Any) -> DataError:
    return DataError(f"{path}: no {what} (it has {', '.join(names)[:200] or 'nothing'})")


def values_of(path: Path, name: str, array: StoredArray, place: Any) -> np.ndarray:
    # Codecs raise many error types for damaged chunks.
    with refusing(f"{path}: {name} cannot be read", Exception):
        return np.asarray(array[place])


def check_numbers(path: Path, name: str, dtype: np.dtype) -> None:
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: {name} have type {dtype}; expected real numbers")


def check_size(path: Path, name: str, array: StoredArray, rows: int) -> None:
    """Refuse an array of which too much is read at once, from its header: `rows`, or a chunk."""
    shapes = [(MAX_COLUMN_BYTES, (rows, *array.shape[1:]))]
    for pieces in (getattr(array, "chunks", None), getattr(array, "shards", None)):
        shapes += [(MAX_CHUNK_BYTES, pieces)] if pieces else []
    for most, shape in shapes:
        size = math.prod(shape) * max(1, array.dtype.itemsize)
        if size > most:
            raise DataError(
                f"{path}: {name} has shape {array.shape}; {size / 2**30:,.1f} GiB of it would be "
                f"read at once, and the limit is {most / 2**30:g} GiB: write smaller parts"
            )


@dataclass(frozen=True)
class FrameLayout:
    """The shape of frames, and the position of the channel axis in their file."""

    shape: FrameShape
    channels: ChannelAxis = "first"

    @classmethod
    def of(cls, path: Path, shape: tuple[int, ...], channels: ChannelAxis | None) -> "FrameLayout":
        """Determine the layout; frames without a channel axis have one channel."""
        if len(shape) not in {3, 4} or not all(shape):
            raise DataError(
                f"{path}: images have shape {shape}; expected (frame, height, width), (frame, "
                "channel, height, width) or (frame, height, width, channel)"
            )
        if shape[0] > MAX_FRAMES:
            raise DataError(
                f"{path}: images have shape {shape}; the limit is {MAX_FRAMES:,} frames: split them"
            )
        if len(shape) == 3:
            return cls((shape[0], 1, shape[1], shape[2]))
        count, first, middle, last = shape
        channels = channels or _channel_axis(path, shape)
        sizes = (count, last, first, middle) if channels == "last" else (count, first, middle, last)
        return cls(sizes, channels)

    def frames(self, pixels: np.ndarray) -> np.ndarray:
        """Return frames of the file as float32, `(frame, channel, height, width)`."""
        if self.channels == "last":
            pixels = np.moveaxis(pixels, -1, 1)
        with np.errstate(over="ignore"):  # infinite, so not finite for data.nan_pixels
            return pixels.reshape(len(pixels), *self.shape[1:]).astype(np.float32, order="C")


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


@dataclass
class Frames:
    """Pixels of frames, read on demand and in any order; each process opens the file once."""

    path: Path
    layout: FrameLayout
    _opened: Any = field(default=None, init=False, repr=False)

    @property
    def shape(self) -> FrameShape:
        """(frame, channel, height, width)."""
        return self.layout.shape

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames at `frames` as float32, `(frame, channel, height, width)`."""
        if self._opened is None:
            context = opened(self.path, ("images",))
            self._opened = context, context.__enter__().arrays["images"]
        # h5py needs ascending indices without repetitions.
        ordered, place = np.unique(frames, return_inverse=True)
        pixels = values_of(self.path, "images", self._opened[1], ordered)
        return self.layout.frames(pixels[place])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}
