"""Reads GRIB edition 1 files with simple packing and a regular grid.

A message has four sections: indicator, product definition, grid definition and binary data (WMO
Manual on Codes, FM 92 GRIB edition 1). A packed value is (R + X 2^E) / 10^D. R is an IBM System/360
float, X an unsigned integer of a fixed width, and E and D are scale factors with a sign bit.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

MARK = b"GRIB"
HAS_GRID, HAS_BITMAP = 0x80, 0x40


class GribError(ValueError):
    """Raised for a message that this reader cannot decode; names file, message and reason."""


@dataclass(frozen=True, eq=False)
class GribField:
    """A field on a regular grid. The first row is in the north, the first column in the west."""

    time: datetime
    parameter: int
    north: float
    south: float
    west: float
    east: float
    values: np.ndarray
    """`(latitude, longitude)`, float64."""


def read_grib(path: Path) -> list[GribField]:
    """Read all messages of a file, in order.

    Raises:
        GribError: When a message is cut off or uses an unsupported feature.
    """
    raw = path.read_bytes()
    fields: list[GribField] = []
    start = raw.find(MARK)
    while start >= 0:
        length = int.from_bytes(raw[start + 4 : start + 7], "big")
        message = raw[start : start + length]
        try:
            fields.append(_decode(message))
        except (GribError, IndexError, ValueError) as error:
            raise GribError(f"{path}: message {len(fields)}: {error}") from None
        start = raw.find(MARK, start + length)
    if not fields:
        raise GribError(f"{path}: no GRIB message in this file")
    return fields


def _decode(message: bytes) -> GribField:
    if message[7] != 1 or message[-4:] != b"7777":
        raise GribError(f"edition {message[7]} or cut off; expected a complete message, edition 1")
    product, rest = _section(message[8:])
    flags = product[7]
    if not flags & HAS_GRID or flags & HAS_BITMAP:
        raise GribError("no grid or a bitmap; expected a grid without a bitmap")
    grid, rest = _section(rest)
    data, _ = _section(rest)
    if grid[5] != 0 or grid[27] != 0:
        raise GribError("expected a regular latitude-longitude grid scanned from the north-west")
    columns, rows = _whole(grid[6:8]), _whole(grid[8:10])
    north, west, south, east = (_signed(grid[i : i + 3]) / 1000 for i in (10, 13, 17, 20))
    return GribField(
        time=_time(product),
        parameter=product[8],
        north=north,
        south=south,
        west=west,
        east=east,
        values=_unpack(data, rows * columns, _signed(product[26:28])).reshape(rows, columns),
    )


def _unpack(data: bytes, count: int, decimal_scale: int) -> np.ndarray:
    """Return the values of a binary data section, `(count,)`."""
    if data[3] & 0xF0:
        raise GribError("expected grid-point values with simple packing")
    binary_scale, reference, bits = _signed(data[4:6]), _ibm_float(data[6:10]), data[10]
    if bits == 0:
        return np.full(count, reference / 10.0**decimal_scale)
    if bits not in (8, 16, 32):
        raise GribError(f"{bits} bits per value; expected 8, 16 or 32")
    packed = np.frombuffer(data, dtype=f">u{bits // 8}", offset=11, count=count)
    return (reference + packed.astype(np.float64) * 2.0**binary_scale) / 10.0**decimal_scale


def _section(data: bytes) -> tuple[bytes, bytes]:
    """Split `data` into its first section and the rest."""
    length = _whole(data[:3])
    if length < 11 or length > len(data):
        raise GribError(f"a section of {length} bytes, but only {len(data)} bytes are left")
    return data[:length], data[length:]


def _time(product: bytes) -> datetime:
    century, year, month, day, hour, minute = product[24], *product[12:17]
    return datetime(100 * (century - 1) + year, month, day, hour, minute, tzinfo=UTC)


def _whole(octets: bytes) -> int:
    return int.from_bytes(octets, "big")


def _signed(octets: bytes) -> int:
    """Return a sign-and-magnitude integer, whose first bit is the sign."""
    sign_bit = 1 << (8 * len(octets) - 1)
    value = _whole(octets)
    return -(value ^ sign_bit) if value & sign_bit else value


def _ibm_float(octets: bytes) -> float:
    """Return a System/360 float: sign, exponent of base 16 with bias 64, fraction of 24 bits."""
    sign = -1.0 if octets[0] & 0x80 else 1.0
    return float(sign * _whole(octets[1:4]) / 2**24 * 16.0 ** ((octets[0] & 0x7F) - 64))
