"""Splits a data set into windows for training, validation and test, and fits their scalers."""

from dataclasses import dataclass, replace

import numpy as np

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError
from clew.image_sequences.files import FrameTable, find_frames, read_frames
from clew.image_sequences.windows import (
    ScalarEncoding,
    SequenceWindows,
    find_window_ends,
    reaches_another_split,
    read_checked,
)

FRAMES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class SequenceSplits:
    """Windows of each split; a group is in one split only."""

    table: FrameTable
    encoding: ScalarEncoding
    windows: dict[str, SequenceWindows]
    """`train`, `valid` and `test`."""
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Scalers:
    """Mean and standard deviation of pixels, scalars and targets of the training windows."""

    image_mean: np.ndarray
    image_std: np.ndarray
    scalar_mean: np.ndarray
    scalar_std: np.ndarray
    target_mean: float
    target_std: float


def load_sequences(config: ImageSequenceData) -> SequenceSplits:
    """Read a data set and split it by groups."""
    table = load_table(config)
    encoding = ScalarEncoding.from_config(table.scalar_names, config, table.source)
    ends = find_window_ends(table, config)
    test, valid = held_out_groups(table, config)
    split = np.where(table.group == test, "test", "train")
    held_out = "test" if valid is None else "valid"
    if valid is not None:
        split[table.group == valid] = held_out
    ahead = table.target_ahead if config.embargo is None else config.embargo
    if ahead:
        ends = ends[~reaches_another_split(table, ends, split, ahead=ahead)]
    every = SequenceWindows(
        table, encoding, ends, config.temporal_frames, config.nan_pixels == "refuse"
    )
    windows = {
        "train": every.only(split[ends] == "train"),
        "valid": every.only(split[ends] == held_out),
        "test": every.only(split[ends] == "test"),
    }
    for name, own in windows.items():
        if not len(own):
            raise DataError(
                f"{table.source}: no {name} window is left, because with targets {ahead:g} ahead "
                "all windows reach into another split; make larger groups, or lower data.embargo"
            )
    return SequenceSplits(table, encoding, windows, table.fingerprint)


def load_table(config: ImageSequenceData) -> FrameTable:
    """Read everything except the pixels; check targets, and make blocks if they are configured."""
    table = read_frames(find_frames(config), config.channels)
    if config.num_blocks is not None:
        table = replace(table, group=blocks(len(table.target), config.num_blocks))
    if config.target_range is not None:
        check_range(table, *config.target_range)
    return table


def group_names(table: FrameTable) -> list[str]:
    """Return the names of the groups in order of their first frames."""
    return list(dict.fromkeys(table.group.tolist()))


def blocks(num_frames: int, num_blocks: int) -> np.ndarray:
    """Return the block of each frame, `(frame,)`, as text: blocks of equal length, in order."""
    return (np.arange(num_frames) * num_blocks // num_frames).astype(str)


def held_out_groups(table: FrameTable, config: ImageSequenceData) -> tuple[str, str | None]:
    """Return the test group and the validation group (None if no group is for validation)."""
    groups = group_names(table)
    for key in ("test_group", "validation_group"):
        name = getattr(config, key)
        if name is not None and name not in groups:
            raise ConfigError(
                f"data.{key} is {name!r}; {table.source} has groups {', '.join(groups)}"
            )
    needed = 3 if config.hold_out_validation else 2
    if len(groups) < needed:
        raise ConfigError(
            f"{table.source}: {len(groups)} group(s), {needed} needed to hold some out; set "
            "data.num_blocks to make groups of consecutive frames"
        )
    test = config.test_group or next(g for g in reversed(groups) if g != config.validation_group)
    if not config.hold_out_validation:
        return test, None
    before = groups[groups.index(test) - 1]
    return test, config.validation_group or before


def check_range(table: FrameTable, smallest: float, largest: float) -> None:
    outside = np.flatnonzero((table.target < smallest) | (table.target > largest))
    if len(outside):
        frame = int(outside[0])
        raise DataError(
            f"{table.source}: target[{frame}] is {table.target[frame]:g}, outside "
            f"data.target_range [{smallest:g}, {largest:g}] ({len(outside)} such targets)"
        )


def fit_scalers(windows: SequenceWindows, *, change: bool) -> Scalers:
    """Return scalers of training windows, with every frame counted once.

    With `change`, the model predicts the target's difference from the present value.
    """
    table, frames = windows.table, windows.frames
    mean, std = _pixel_moments(table, frames, refuse_nan=windows.refuse_nan)
    scalars = windows.encoding.encode(table.scalars[frames]).astype(np.float64)
    targets = windows.targets
    if change:
        targets = targets - present_values(table)[windows.ends]
    return Scalers(
        mean,
        std,
        scalars.mean(0),
        _positive(scalars.std(0)),
        float(targets.mean()),
        float(_positive(np.array(targets.std()))),
    )


def present_values(table: FrameTable) -> np.ndarray:
    if table.present is None:
        raise DataError(
            f"{table.source}: no present, which model.predicts=change needs; give the target's "
            "quantity at each frame, or set model.predicts=value"
        )
    missing = np.flatnonzero(np.isfinite(table.target) & ~np.isfinite(table.present))
    if len(missing):
        raise DataError(f"{table.source}: present[{missing[0]}] is not a finite number")
    return table.present


def _pixel_moments(
    table: FrameTable, frames: np.ndarray, *, refuse_nan: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each channel's finite pixels, in float64."""
    sums = np.zeros((3, table.images.shape[1]))
    for start in range(0, len(frames), FRAMES_AT_ONCE):
        part = frames[start : start + FRAMES_AT_ONCE]
        pixels = read_checked(table, part, refuse_nan=refuse_nan).astype(np.float64)
        finite = np.isfinite(pixels)
        pixels = np.where(finite, pixels, 0.0)
        sums += [x.sum((0, 2, 3)) for x in (finite, pixels, pixels**2)]
    if not sums[0].all():
        raise DataError(f"{table.source}: a channel has no finite pixel in the training groups")
    mean = sums[1] / sums[0]
    return mean, _positive(np.sqrt(np.maximum(sums[2] / sums[0] - mean**2, 0.0)))


def _positive(deviation: np.ndarray) -> np.ndarray:
    """Return standard deviations, with 1 in place of 0."""
    return np.where(deviation > 1e-12, deviation, 1.0)
