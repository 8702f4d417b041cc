"""The present value of a target's quantity: what persistence predicts that it stays.

It is the column `present`; else a scalar with the target's name; else, where targets lie ahead, the
target of the frame that lies so far back: its time is the present one.
"""

import numpy as np

from clew.image_sequences.files import FrameTable


def known_values(table: FrameTable) -> np.ndarray | None:
    """Return each frame's present value, `(frame,)`, NaN where none is known; None: nowhere."""
    if table.present is not None:
        return table.present
    if table.target_name in table.scalar_names:
        scalar: np.ndarray = table.scalars[:, table.scalar_names.index(table.target_name)]
        return scalar
    past = _past_targets(table) if table.target_ahead > 0 else None
    return past if past is not None and np.isfinite(past).any() else None


def source_of(table: FrameTable) -> str:
    """Say in one line where present values are from, or why there are none."""
    if table.present is not None:
        return "persistence predicts the last value of present"
    if table.target_name in table.scalar_names:
        return f"persistence predicts the last value of scalar {table.target_name!r}"
    if known_values(table) is not None:
        return (
            "persistence predicts the last target whose time has come at a window's last frame "
            f"(targets lie {table.target_ahead:g} ahead)"
        )
    return (
        "no persistence baseline: the data have neither present nor a scalar named "
        f"{table.target_name!r}, and no target's time has come at a later frame of its group"
    )


def _past_targets(table: FrameTable) -> np.ndarray:
    """Return the target that was to come true at each frame's time, within a recording."""
    values = np.full(len(table.target), np.nan)
    time = np.arange(len(values), dtype=np.float64) if table.time is None else table.time
    changes = np.flatnonzero(table.recording[1:] != table.recording[:-1]) + 1
    for frames in np.split(np.arange(len(values)), changes):
        own = frames[np.isfinite(time[frames])]
        if not len(own):
            continue
        times, wanted = time[own], time[own] - table.target_ahead
        slack = 1e-6 * table.target_ahead + 4 * np.spacing(np.abs(times).max())
        place = np.minimum(np.searchsorted(times, wanted - slack), len(own) - 1)
        found = np.abs(times[place] - wanted) <= slack
        values[own[found]] = table.target[own[place[found]]]
    return values
