"""Converts the ERA5 file into image sequences for predicting the temperature three hours ahead.

    python -m experiments.image_sequences.era5 FILE.grib FOLDER

The output is a folder of NumPy arrays. Frames are hourly 2 m temperatures over Britain. The target
of a frame is the temperature at 51.5 N, 0 E three hours later, and its present value is the current
temperature at this place. The scalars are the sun's zenith angle and azimuth at this place at the
hour of the target. Groups are blocks of four days.

Generated using Copernicus Climate Change Service information [2019].
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

from experiments.image_sequences.grib import GribField, read_grib
from experiments.image_sequences.solar import solar_angles

LATITUDE, LONGITUDE = 51.5, 0.0
HOURS_AHEAD, DAYS_IN_GROUP = 3, 4


def convert(grib: Path, folder: Path) -> None:
    """Convert a GRIB file into the arrays and the names of a folder of image sequences."""
    fields = read_grib(grib)
    images = np.stack([field.values for field in fields]).astype(np.float32)
    hours = np.array([(f.time - fields[0].time) / timedelta(hours=1) for f in fields])
    present = images[:, *_grid_point(fields[0])].astype(np.float64)
    target = np.full(len(fields), np.nan)
    target[:-HOURS_AHEAD] = present[HOURS_AHEAD:]
    ahead = timedelta(hours=HOURS_AHEAD)
    scalars = [solar_angles(field.time + ahead, LATITUDE, LONGITUDE) for field in fields]
    columns = {
        "images": images,
        "target": target,
        "present": present,
        "scalars": np.array(scalars),
        "time": hours,
        "group": np.array([_block(h) for h in hours]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    names = {
        "unit": "K",
        "target_name": f"2 m temperature {HOURS_AHEAD} h ahead",
        "target_ahead": HOURS_AHEAD,
        "scalar_names": ["solar_zenith", "solar_azimuth"],
    }
    (folder / "sequences.json").write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")


def _grid_point(field: GribField) -> tuple[int, int]:
    """Return the row and column of the grid point whose temperature is predicted."""
    rows, columns = field.values.shape
    row = (field.north - LATITUDE) / (field.north - field.south) * (rows - 1)
    column = (LONGITUDE - field.west) / (field.east - field.west) * (columns - 1)
    return round(row), round(column)


def _block(hour: float) -> str:
    first = int(hour // (24 * DAYS_IN_GROUP)) * DAYS_IN_GROUP + 1
    return f"{first:02d}-{min(first + DAYS_IN_GROUP - 1, 31):02d}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m experiments.image_sequences.era5 FILE.grib FOLDER")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
