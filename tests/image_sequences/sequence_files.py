"""Small image sequences with a learnable target, written as arrays or as HDF5."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Columns = dict[str, np.ndarray]
METADATA: dict[str, Any] = {"unit": "km", "scalar_names": ["zenith", "azimuth", "height"]}


def sequence_columns(
    *, groups: int = 4, frames_in_group: int = 12, size: tuple[int, int] = (9, 13), seed: int = 0
) -> Columns:
    """Return frames whose target is their brightness, in the mean level and in stripes."""
    rng = np.random.default_rng(seed)
    count = groups * frames_in_group
    # Slow, so that the last frame's level is nearly that of the window.
    phase = np.repeat(rng.uniform(0, 6, groups), frames_in_group)
    level = 1.5 * np.sin(phase + np.tile(np.arange(frames_in_group), groups) / 5)
    pattern = np.sin(np.arange(size[1]))
    scalars = np.stack(
        [rng.uniform(0, 90, count), rng.uniform(0, 360, count), rng.normal(10, 2, count)], axis=1
    )
    images = 280 + 5 * level[:, None, None] * (1 + pattern) + rng.normal(size=(count, *size))
    target = 3.0 + level
    return {
        "images": images.astype(np.float32),
        "target": target,
        "group": np.repeat([f"flight {i}" for i in range(groups)], frames_in_group),
        "scalars": scalars,
        "time": np.tile(np.arange(frames_in_group, dtype=float), groups),
        "present": target + rng.normal(scale=0.5, size=count),
    }


def write_folder(folder: Path, columns: Columns, metadata: dict[str, Any] = METADATA) -> Path:
    """Write columns as `.npy` files with names and units."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    (folder / "sequences.json").write_text(json.dumps(metadata))
    return folder


def write_hdf5(path: Path, columns: Columns, metadata: dict[str, Any] = METADATA) -> Path:
    """Write columns as one HDF5 file with attributes."""
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            text = column.dtype.kind == "U"
            file[name] = column.astype("S") if text else column
        for name, value in metadata.items():
            file.attrs[name] = value
    return path
