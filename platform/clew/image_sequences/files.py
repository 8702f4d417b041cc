"""Reads frames and their columns from HDF5, a Zarr store, or a folder of NumPy arrays.

    images   (frame, height, width), (frame, channel, height, width) or (frame, height, width,
             channel), read when they are needed; in a folder also `images/` with one array file
             for each frame, in order of names
    target   (frame,), NaN for a frame without a target
    group    (frame,), whole numbers or text: frames that a split holds out together; one group if
             absent
    scalars  (frame, scalar), optional
    time     (frame,), optional: numbers that increase within a group; a jump or NaN is a gap
    present  (frame,), optional: the target's quantity as known at the frame

Names and units are attributes of the HDF5 file or of the Zarr group, or keys of `sequences.json` in
the folder: `unit`, `target_name`, `scalar_names`, and `target_ahead`, the time from a frame to its
target.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError, described, quoted
from clew.folders import DATA_VARIABLE, check_data_name, data_folder, expanded
from clew.image_sequences.stores import (
    HDF5_SUFFIXES,
    ZARR_SUFFIX,
    ChannelAxis,
    FrameFile,
    FrameLayout,
    Frames,
    check_numbers,
    check_size,
    opened,
)
from clew.processes import ends_within

COLUMNS = ("target", "group", "scalars", "time", "present")
MAX_GROUP = 2**53
MAX_PROCESSOR_SECONDS = 10.0
"""Time limit for the columns and attributes of a file; an undamaged file takes milliseconds."""
FINGERPRINT_FRAMES = 64
"""Number of frames whose pixels are part of the fingerprint; all other columns are complete."""


class FrameStore(Protocol):
    """Pixels of frames, read on demand; picklable for worker processes."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (frame, channel, height, width)."""
        ...

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames at `frames` as float32, `(frame, channel, height, width)`."""
        ...


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
    """Return the file or folder of a configuration.

    Raises:
        ConfigError: If the file or folder does not exist.
    """
    if config.path is not None:
        path = expanded(config.path)
        if not path.exists():
            raise ConfigError(
                f"data.path {config.path}: no such file or folder; expected an HDF5 file or a "
                "folder with images.npy and target.npy"
            )
        return path
    root = data_folder()
    if root is None:
        raise ConfigError(
            f"data.name is {config.name!r}; set {DATA_VARIABLE} to the folder of data sets"
        )
    name = check_data_name(str(config.name))
    candidates = [root / f"{name}{s}" for s in ("", *HDF5_SUFFIXES, ZARR_SUFFIX)]
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise ConfigError(
            f"data.name is {config.name!r}; expected one of "
            f"{', '.join(path.name for path in candidates)} in {root}"
        )
    return found


def read_frames(
    path: Path, channels: ChannelAxis | None = None, *, needs_target: bool = True
) -> FrameTable:
    """Read everything except the pixels, and check that the columns fit together.

    Args:
        path: HDF5 file, Zarr store or folder of arrays.
        channels: Which axis of a frame is the channel axis; None: determined by the shape.
        needs_target: Whether targets are required.

    Raises:
        DataError: If a column is missing, is malformed or has a wrong length.
    """
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
        target=_numbers(path, "target", columns["target"]),
        group=groups,
        recording=groups,
        scalars=scalars,
        scalar_names=_scalar_names(path, metadata, scalars.shape[1]),
        time=_numbers(path, "time", columns["time"]) if "time" in columns else None,
        present=_numbers(path, "present", columns["present"]) if "present" in columns else None,
        unit=str(metadata.get("unit", "")),
        target_name=str(metadata.get("target_name", "target")),
        target_ahead=_target_ahead(path, metadata.get("target_ahead", 0.0)),
    )


def _target_ahead(path: Path, value: Any) -> float:
    try:
        ahead = float(value)
    except (TypeError, ValueError):
        ahead = -1.0
    if not 0 <= ahead < math.inf:
        raise DataError(f"{path}: target_ahead is {quoted(value)}; expected a number, at least 0")
    return ahead


def _read(
    path: Path, channels: ChannelAxis | None
) -> tuple[FrameStore, dict[str, np.ndarray], dict[str, Any]]:
    with opened(path, ("images", *COLUMNS)) as file:
        layout = _layout(path, file, channels)
        present = [name for name in COLUMNS if name in file.arrays]
        for name in present:
            _check_column(path, name, file, layout.shape[0])
        columns = {name: _column(path, name, file) for name in present}
        metadata = {name: _plain(path, value) for name, value in file.attributes.items()}
        return Frames(path, layout), columns, metadata


def _column(path: Path, name: str, file: FrameFile) -> np.ndarray:
    try:
        values: np.ndarray = _plain(path, np.array(file.arrays[name][...]))
    except DataError:
        raise
    except Exception as error:  # codecs raise many error types for damaged chunks
        raise DataError(f"{path}: {name} cannot be read ({described(error)})") from None
    return values


def _layout(path: Path, file: FrameFile, channels: ChannelAxis | None) -> FrameLayout:
    images = file.arrays["images"]
    check_numbers(path, "images", images.dtype)
    layout = FrameLayout.of(path, tuple(images.shape), channels)
    check_size(path, "images", images, rows=1)
    return layout


def _check_column(path: Path, name: str, file: FrameFile, num_frames: int) -> None:
    """Check a column by its header: an array of any size can take no room in a file."""
    column = file.arrays[name]
    if not column.shape or column.shape[0] != num_frames:
        raise DataError(
            f"{path}: {name} has shape {tuple(column.shape)}, images has {num_frames} frames; "
            "expected one row for each frame"
        )
    check_size(path, name, column, rows=num_frames)


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
    try:
        if isinstance(value, bytes):
            return value.decode("utf-8")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OST":
            return np.array([v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in value])
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: text that is not UTF-8 ({error})") from None
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
