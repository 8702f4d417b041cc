"""Computes the sun's zenith angle and azimuth to within a few tenths of a degree.

The declination and the equation of time are Spencer's Fourier series (1971), as in NOAA's general
solar position calculations. Refraction is ignored.
"""

from datetime import datetime

import numpy as np


def solar_angles(time: datetime, latitude: float, longitude: float) -> tuple[float, float]:
    """Return zenith angle and azimuth in degrees. The azimuth is clockwise from north.

    Args:
        time: In UTC.
        latitude: Degrees north.
        longitude: Degrees east.
    """
    hours = time.hour + time.minute / 60
    year = 2 * np.pi / 365 * (time.timetuple().tm_yday - 1 + (hours - 12) / 24)
    equation_minutes = 229.18 * (
        0.000075
        + 0.001868 * np.cos(year)
        - 0.032077 * np.sin(year)
        - 0.014615 * np.cos(2 * year)
        - 0.040849 * np.sin(2 * year)
    )
    declination = (
        0.006918
        - 0.399912 * np.cos(year)
        + 0.070257 * np.sin(year)
        - 0.006758 * np.cos(2 * year)
        + 0.000907 * np.sin(2 * year)
        - 0.002697 * np.cos(3 * year)
        + 0.00148 * np.sin(3 * year)
    )
    hour_angle = np.radians((60 * hours + equation_minutes + 4 * longitude) / 4 - 180)
    place = np.radians(latitude)
    height = np.sin(place) * np.sin(declination)
    height += np.cos(place) * np.cos(declination) * np.cos(hour_angle)
    east = -np.cos(declination) * np.sin(hour_angle)
    north = np.sin(declination) * np.cos(place)
    north -= np.cos(declination) * np.sin(place) * np.cos(hour_angle)
    zenith = np.degrees(np.arccos(np.clip(height, -1.0, 1.0)))
    return float(zenith), float(np.degrees(np.arctan2(east, north)) % 360.0)
