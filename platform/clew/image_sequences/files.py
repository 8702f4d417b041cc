"""Reads frames and their columns from HDF5, a Zarr store, or a folder of NumPy arrays.

docs/data.md lists the arrays, their shapes, and the names and units beside them.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError, quoted, refusing
from clew.files import DATA_VARIABLE, check_data_name, data_folder, expanded
from clew.image_sequences import stores
from clew.processes import ends_within
from clew.untrusted import LimitedReader

NUMBERS = ("target", "time", "present")
COLUMNS = (*NUMBERS, "group", "scalars")
MAX_GROUP = 2**53
MAX_PROCESSOR_SECONDS = 10.0
"""Time limit for the columns and attributes of a file; an undamaged file takes milliseconds."""
FINGERPRINT_FRAMES = 64
"""Number of frames whose pixels are part of the fingerprint; all other columns are complete."""


class FrameStore(Protocol):
    """Pixels of frames, read on demand; picklable for worker processes."""

    @property
    def shape(self) -> stores.FrameShape:
        """(frame, channel, height, width)."""

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames at `frames` as float32, `(frame, channel, height, width)`."""


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Frames in order with scalars, target, group and time; pixels stay in their file."""

    source: str
    images: FrameStore
    target: np.ndarray
    """`(frame,)`, float64, NaN for a frame without a target."""
    group: np.ndarray
    """Group that a split holds out together, `(frame,)`, text."""
    recording: np.ndarray
    """Groups of the file, `(frame,)`; time starts again in each group."""
    scalars: np.ndarray
    """`(frame, scalar)`, float64."""
    scalar_names: tuple[str, ...]
    time: np.ndarray | None = None
    present: np.ndarray | None = None
    unit: str = ""
    target_name: str = "target"
    target_ahead: float = 0.0
    """Time from a frame to its target, in units of `time`, or in frames if there is no `time`."""

    @property
    def step(self) -> float | None:
        """The usual time from a frame to the next, the median; None without times that grow."""
        steps = np.diff([] if self.time is None else self.time)
        return float(np.median(steps[steps > 0])) if (steps > 0).any() else None

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over all columns and the pixels of evenly spread frames."""
        digest = hashlib.sha256(repr((self.images.shape, self.scalar_names, self.unit)).encode())
        digest.update("\n".join(self.group.tolist()).encode())
        for column in (self.target, self.scalars, self.time, self.present):
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        chosen = np.unique(np.linspace(0, len(self.target) - 1, FINGERPRINT_FRAMES).astype(int))
        digest.update(self.images.read(chosen).tobytes())
        return digest.hexdigest()[:16]


def find_frames(config: ImageSequenceData) -> Path:
    if config.path is not None:
        path = expanded(config.path)
        if not path.exists():
            raise ConfigError(
                f"data.path {config.path}: no such file or folder; expected HDF5, a Zarr store or "
                "a folder with images.npy and target.npy"
            )
        return path
    root = data_folder()
    if root is None:
        raise ConfigError(
            f"data.name is {config.name!r}; set {DATA_VARIABLE} to the folder of data sets"
        )
    name = check_data_name(str(config.name))
    candidates = [root / f"{name}{s}" for s in ("", *stores.HDF5_SUFFIXES, stores.ZARR_SUFFIX)]
    for path in candidates:
        if path.exists():
            return path
    raise ConfigError(
        f"data.name is {config.name!r}; expected one of "
        f"{', '.join(path.name for path in candidates)} in {root}"
    )


def read_frames(
    path: Path, channels: stores.ChannelAxis | None = None, *, needs_target: bool = True
) -> FrameTable:
    """Read everything except the pixels; without `channels`, the shape says which axis they are."""
    # With a damaged heap of texts, HDF5 loops forever and cannot be interrupted
    # (https://github.com/HDFGroup/hdf5/issues/1707), so a fork of this process reads first.
    if path.is_file() and not ends_within(MAX_PROCESSOR_SECONDS, lambda: _read(path, channels)):
        raise DataError(f"{path}: HDF5 cannot read the file; it is damaged, copy it again")
    images, columns, metadata = _read(path, channels)
    num_frames = images.shape[0]
    if not needs_target:
        columns.setdefault("target", np.full(num_frames, np.nan))
    if "target" not in columns:
        raise DataError(f"{path}: no target; expected one number for each frame")
    scalars = _scalars(path, columns.get("scalars"), num_frames)
    groups = _groups(path, columns.get("group"), num_frames)
    return FrameTable(
        str(path),
        images,
        **{name: _numbers(path, name, columns[name]) for name in NUMBERS if name in columns},
        group=groups,
        recording=groups,
        scalars=scalars,
        scalar_names=_scalar_names(path, metadata, scalars.shape[1]),
        unit=_text(path, metadata, "unit", ""),
        target_name=_text(path, metadata, "target_name", "target"),
        target_ahead=_target_ahead(path, _single(metadata.get("target_ahead", 0.0))),
    )


def _text(path: Path, metadata: dict[str, Any], name: str, otherwise: str) -> str:
    text = _single(metadata.get(name, otherwise))
    if not isinstance(text, str):
        raise DataError(f"{path}: {name} is {quoted(text)}; expected text")
    return text


def _single(value: Any) -> Any:
    """Return the only element of an array; R and netCDF write an attribute as such an array."""
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value


def _target_ahead(path: Path, value: Any) -> float:
    try:
        ahead = float(value)
    except (TypeError, ValueError):
        ahead = -1.0
    if not 0 <= ahead < math.inf:
        raise DataError(f"{path}: target_ahead is {quoted(value)}; expected a number, at least 0")
    return ahead


def _read(
    path: Path, channels: stores.ChannelAxis | None
) -> tuple[stores.Frames, dict[str, np.ndarray], dict[str, Any]]:
    with stores.opened(path, ("images", *COLUMNS)) as file:
        images = file.arrays["images"]
        stores.check_numbers(path, "images", images.dtype)
        layout = stores.FrameLayout.of(path, tuple(images.shape), channels)
        stores.check_size(path, "images", images, rows=1)
        columns: dict[str, np.ndarray] = {}
        for name in (name for name in COLUMNS if name in file.arrays):
            column, rows = file.arrays[name], layout.shape[0]
            # From the header alone: an array of any size can take no room in a file.
            if not column.shape or column.shape[0] != rows:
                raise DataError(
                    f"{path}: {name} has shape {tuple(column.shape)}, images has {rows} frames; "
                    "expected one row for each frame"
                )
            stores.check_size(path, name, column, rows)
            columns[name] = _plain(path, stores.values_of(path, name, column, ...))
        metadata = {name: _plain(path, value) for name, value in file.attributes.items()}
        return stores.Frames(path, layout), columns, metadata


def _scalar_names(path: Path, metadata: dict[str, Any], count: int) -> tuple[str, ...]:
    names = metadata.get("scalar_names")
    if names is None:
        return tuple(f"scalar_{i}" for i in range(count))
    if isinstance(names, str) or not hasattr(names, "__len__"):
        raise DataError(f"{path}: scalar_names is {str(names)[:60]!r}; expected a list of names")
    if len(names) != count:
        raise DataError(f"{path}: scalar_names has {len(names)} names for {count} scalars")
    return tuple(map(str, names))


def _plain(path: Path, value: Any) -> Any:
    with refusing(f"{path}: text that is not UTF-8", UnicodeDecodeError):
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OST":
            return np.array([v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in value])
    return value


def _numbers(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    if column.ndim != 1 or column.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: {name} has shape {column.shape} and type {column.dtype}; expected one number "
            "for each frame"
        )
    return column.astype(np.float64)


def _groups(path: Path, column: np.ndarray | None, num_frames: int) -> np.ndarray:
    if column is None:
        return np.full(num_frames, "0")
    if column.ndim != 1 or column.dtype.kind not in "fiubU":
        raise DataError(
            f"{path}: group has shape {column.shape} and type {column.dtype}; expected a whole "
            "number or a text for each frame"
        )
    if column.dtype.kind == "f":
        column = column.astype(np.float64)  # MAX_GROUP is too large for half precision
        broken = np.flatnonzero(~(np.abs(column) < MAX_GROUP) | (column != np.trunc(column)))
        if len(broken):
            raise DataError(
                f"{path}: group[{broken[0]}] is {column[broken[0]]:g}; groups are whole numbers or "
                "text"
            )
        column = column.astype(np.int64)
    return column.astype(str)


def _scalars(path: Path, column: np.ndarray | None, num_frames: int) -> np.ndarray:
    """Return scalars as a table `(frame, scalar)`; all values must be finite."""
    if column is None:
        return np.zeros((num_frames, 0))
    if column.dtype.kind not in "fiub":
        raise DataError(f"{path}: scalars have type {column.dtype}; expected numbers")
    table = column.reshape(num_frames, -1).astype(np.float64)
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        frame, place = bad[0]
        raise DataError(
            f"{path}: scalars[{frame}, {place}] is {table[frame, place]}; expected a finite number "
            "for every frame"
        )
    return table


PART_BYTES = 2**25
"""Size of the pixels that the child reads at once."""
SAID = ("scalar_names", "unit", "target_name", "target_ahead")


@contextmanager
def handed_in_frames(path: Path, channels: stores.ChannelAxis | None) -> Iterator[FrameTable]:
    """Open new frames, which need no targets; their pixels can be read within the block."""
    with LimitedReader(__name__, of=str(path)) as reader:
        request = {"path": str(path), "channels": channels}
        columns = reader.ask(**request)
        said = json.loads(columns.schema.metadata[b"said"])
        shape = tuple(said["shape"])
        scalars = [columns[f"scalar {i}"].to_numpy() for i in range(len(said["scalar_names"]))]
        group = np.array(columns["group"].to_pylist())
        yield FrameTable(
            str(path),
            _Pixels(reader, request, shape),
            group=group,
            recording=group,
            scalars=np.stack(scalars, axis=1) if scalars else np.zeros((shape[0], 0)),
            **{name: columns[name].to_numpy() for name in NUMBERS if name in columns.column_names},
            **{name: said[name] for name in SAID if name != "scalar_names"},
            scalar_names=tuple(said["scalar_names"]),
        )


@dataclass(frozen=True)
class _Pixels:
    """Pixels of frames, read by the child a part at a time."""

    reader: LimitedReader
    request: dict[str, Any]
    shape: stores.FrameShape

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames at `frames` as float32, `(frame, channel, height, width)`."""
        pixels = np.empty((len(frames), *self.shape[1:]), np.float32)
        step = max(1, PART_BYTES // max(1, pixels[:1].nbytes))
        for start in range(0, len(frames), step):
            part = frames[start : start + step]
            found = self.reader.ask(**self.request, frames=part.tolist())["pixels"].to_numpy()
            pixels[start : start + step] = found.reshape(len(part), *self.shape[1:])
        return pixels


@lru_cache(maxsize=1)
def _table(path: str, channels: stores.ChannelAxis | None) -> FrameTable:
    return read_frames(Path(path), channels, needs_target=False)


def answer(
    path: str, channels: stores.ChannelAxis | None, frames: list[int] | None = None
) -> pa.Table:
    """Return the columns of frames, or the pixels of some, in the child."""
    table = _table(path, channels)
    if frames is not None:
        return pa.table({"pixels": table.images.read(np.array(frames)).ravel()})
    columns: dict[str, Any] = {name: getattr(table, name) for name in ("group", *NUMBERS)}
    columns |= {f"scalar {i}": column for i, column in enumerate(table.scalars.T)}
    said = {"shape": table.images.shape} | {name: getattr(table, name) for name in SAID}
    given = {name: column for name, column in columns.items() if column is not None}
    return pa.table(given).replace_schema_metadata({"said": json.dumps(said)})
