"""The reader of GRIB-1, the sun's position, and the ERA5 file as image sequences."""

import os
import struct
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from clew.config.image_sequences import ImageSequenceData
from clew.image_sequences.windows import load_sequences
from experiments.image_sequences.era5 import convert
from experiments.image_sequences.grib import GribError, _ibm_float, read_grib
from experiments.image_sequences.solar import solar_angles

ROWS, COLUMNS = 33, 49
STEP = 2.0**-6


def message(time: datetime, steps: np.ndarray) -> bytes:
    """Return a message of 16-bit values 256 + steps / 64 on the grid of the ERA5 file."""
    product = bytearray(28)
    product[:3] = (28).to_bytes(3, "big")
    product[7], product[8] = 0x80, 167
    product[12:17] = bytes([time.year % 100, time.month, time.day, time.hour, time.minute])
    product[24] = time.year // 100 + 1
    grid = bytearray(32)
    grid[:3] = (32).to_bytes(3, "big")
    grid[6:10] = struct.pack(">HH", COLUMNS, ROWS)
    grid[10:16] = (58000).to_bytes(3, "big") + (0x800000 | 10000).to_bytes(3, "big")
    grid[17:23] = (50000).to_bytes(3, "big") + (2000).to_bytes(3, "big")
    reference = bytes([0x43, 0x10, 0, 0])  # 1/16 of 16^3
    data = bytes([0]) + (0x8000 | 6).to_bytes(2, "big") + reference + bytes([16])
    data += steps.astype(">u2").tobytes()
    body = bytes(product) + bytes(grid) + (len(data) + 3).to_bytes(3, "big") + data + b"7777"
    return b"GRIB" + (len(body) + 8).to_bytes(3, "big") + bytes([1]) + body


def write_month(path: Path, hours: int) -> np.ndarray:
    """Write hourly messages with padding between them, and return their values."""
    rng = np.random.default_rng(0)
    steps = rng.integers(0, 2**16, (hours, ROWS, COLUMNS))
    times = [datetime(2019, 3, 1 + h // 24, h % 24, tzinfo=UTC) for h in range(hours)]
    path.write_bytes(b"".join(message(t, s) + bytes(18) for t, s in zip(times, steps, strict=True)))
    return 256.0 + STEP * steps


def test_simple_packing_is_undone(tmp_path: Path) -> None:
    expected = write_month(tmp_path / "x.grib", 3)
    fields = read_grib(tmp_path / "x.grib")
    np.testing.assert_array_equal([field.values for field in fields], expected)
    assert fields[2].time == datetime(2019, 3, 1, 2, tzinfo=UTC)
    first = fields[0]
    assert (first.north, first.west, first.south, first.east) == (58.0, -10.0, 50.0, 2.0)
    assert first.parameter == 167


@pytest.mark.parametrize(
    ("octets", "value"), [("42640000", 100.0), ("c276a000", -118.625), ("40800000", 0.5)]
)
def test_floats_of_another_age(octets: str, value: float) -> None:
    assert _ibm_float(bytes.fromhex(octets)) == value


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.grib"
    good = message(datetime(2019, 3, 1, tzinfo=UTC), np.zeros((ROWS, COLUMNS)))
    path.write_bytes(good + good[:-9])
    with pytest.raises(GribError, match=r"x\.grib: message 1: edition 1 or cut off"):
        read_grib(path)
    path.write_bytes(b"no weather")
    with pytest.raises(GribError, match="no GRIB message"):
        read_grib(path)


def test_the_sun_stands_where_it_does() -> None:
    noon = datetime(2019, 3, 20, 12, 7, tzinfo=UTC)
    zenith, azimuth = solar_angles(noon, 51.5, 0.0)
    assert zenith == pytest.approx(51.5, abs=0.5), "at an equinox the zenith angle is the latitude"
    assert azimuth == pytest.approx(180.0, abs=1.0)
    assert solar_angles(noon.replace(hour=7), 51.5, 0.0)[1] < 120 < 240
    assert solar_angles(noon.replace(hour=0), 51.5, 0.0)[0] > 120


def test_the_target_is_three_hours_ahead(tmp_path: Path) -> None:
    values = write_month(tmp_path / "x.grib", 120)
    convert(tmp_path / "x.grib", tmp_path / "era5")
    config = ImageSequenceData(
        path=str(tmp_path / "era5"),
        hold_out_validation=False,
        zenith_scalars=("solar_zenith",),
        azimuth_scalars=("solar_azimuth",),
    )
    splits = load_sequences(config)
    assert splits.table.unit == "K"
    # The targets of the first block's last three windows are in the second block.
    assert [len(splits.windows[s]) for s in ("train", "test")] == [89, 17]
    batch = splits.windows["train"].batch(np.array([0]))
    np.testing.assert_array_equal(batch.images[0, :, 0], values[:5].astype(np.float32))
    assert batch.target[0] == values[7, 26, 40]
    assert batch.present[0] == values[4, 26, 40]


@pytest.mark.data
def test_the_real_file_has_the_values_that_its_note_says(tmp_path: Path) -> None:
    root = os.environ.get("CLEW_DATA", "")
    path = Path(root) / "era5_uk_t2m_2019_03" / "era5-2mt-2019-03-uk.grib"
    if not root or not path.is_file():
        pytest.skip("needs era5_uk_t2m_2019_03 under CLEW_DATA")
    convert(path, tmp_path)
    images = np.load(tmp_path / "images.npy")
    assert images.shape == (744, 33, 49)
    assert images.min() == pytest.approx(265.68, abs=0.005)
    assert images.max() == pytest.approx(291.56, abs=0.005)
    windows = load_sequences(
        ImageSequenceData(path=str(tmp_path), windows_cross_groups=True, embargo=0)
    ).windows
    assert sum(map(len, windows.values())) == 737
