"""Windows of consecutive frames, the examples of image-sequence regression, and their splits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError, counted
from clew.image_sequences.files import FrameTable, find_frames, read_frames
from clew.training.loaders import TensorBatch


@dataclass(frozen=True)
class ScalarEncoding:
    """Which scalars of the file are used, and how each scalar is encoded."""

    columns: tuple[int, ...]
    """Column of each used scalar in the file."""
    kinds: tuple[str, ...]
    """`plain`, `azimuth` or `zenith`, one for each used scalar."""

    @classmethod
    def from_config(
        cls, names: tuple[str, ...], config: ImageSequenceData, source: str
    ) -> "ScalarEncoding":
        """Select the scalars of a file by name."""
        used = names if config.scalars is None else config.scalars
        for key, valid in (("scalars", names), ("azimuth_scalars", used), ("zenith_scalars", used)):
            for name in getattr(config, key) or ():
                if name not in valid:
                    raise ConfigError(
                        f"data.{key} names {name!r}; expected one of "
                        f"{', '.join(valid) or 'none'} ({source})"
                    )
        kinds = {name: "plain" for name in used}
        kinds |= dict.fromkeys(config.azimuth_scalars, "azimuth")
        kinds |= dict.fromkeys(config.zenith_scalars, "zenith")
        return cls(tuple(names.index(name) for name in used), tuple(kinds[name] for name in used))

    @property
    def size(self) -> int:
        return sum(2 if kind == "azimuth" else 1 for kind in self.kinds)

    def encode(self, scalars: np.ndarray) -> np.ndarray:
        """Return encoded scalars `(..., size)`, float32, for a file's rows `(..., scalar)`."""
        parts = []
        for column, kind in zip(self.columns, self.kinds, strict=True):
            value = scalars[..., column]
            match kind:
                case "azimuth":
                    parts += [np.sin(np.radians(value)), np.cos(np.radians(value))]
                case "zenith":
                    parts.append(np.cos(np.radians(value)))
                case _:
                    parts.append(value)
        if not parts:
            return np.zeros((*scalars.shape[:-1], 0), dtype=np.float32)
        with np.errstate(over="ignore"):  # infinite; the prediction is then refused
            return np.stack(parts, axis=-1).astype(np.float32)


@dataclass(frozen=True)
class SequenceBatch(TensorBatch):
    """Windows that go through the model at once."""

    images: Float[Tensor, "window time channel height width"]
    scalars: Float[Tensor, "window time scalar"]
    target: Float[Tensor, "window"]
    present: Float[Tensor, "window"]
    """The target's quantity as known at the window's last frame; NaN if unknown."""
    last_frame: Int[Tensor, "window"]

    @property
    def num_examples(self) -> int:
        return len(self.target)

    @property
    def count(self) -> int:
        return len(self.target)

    def units(self) -> dict[str, int]:
        return {"examples": len(self.target), "frames": self.images.shape[:2].numel()}

    def describe(self) -> str:
        shown = self.last_frame[:8].tolist()
        more = f" and {len(self.target) - 8} more" if len(self.target) > 8 else ""
        return f"windows that end at frames {shown}{more}"


@dataclass(frozen=True, eq=False)
class SequenceWindows:
    """Windows addressed by index; the pixels are read with each batch."""

    table: FrameTable
    encoding: ScalarEncoding
    ends: np.ndarray
    """Last frame of each window, `(window,)`."""
    num_frames: int
    refuse_nan: bool = True

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def groups(self) -> np.ndarray:
        return np.asarray(self.table.group[self.ends])

    @property
    def targets(self) -> np.ndarray:
        return np.asarray(self.table.target[self.ends])

    @property
    def frames(self) -> np.ndarray:
        """Indices of all frames in the windows, without repetitions, `(frame,)`."""
        return np.unique(self.ends[:, None] - np.arange(self.num_frames))

    def pixels(self) -> Iterator[np.ndarray]:
        """Yield the pixels of all frames, `(frame, channel, height, width)`, a few at once."""
        frames = self.frames
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            yield self._read(frames[start : start + FRAMES_AT_ONCE])

    def _read(self, frames: np.ndarray) -> np.ndarray:
        pixels = self.table.images.read(frames)
        if self.refuse_nan and not np.isfinite(pixels).all():
            place, *pixel = np.argwhere(~np.isfinite(pixels))[0].tolist()
            raise DataError(
                f"{self.table.source}: frame {frames[place]} has a pixel that is not finite "
                f"(channel, row, column {pixel}); repair it, or set data.nan_pixels to mean or mask"
            )
        return pixels

    def only(self, chosen: np.ndarray) -> "SequenceWindows":
        return replace(self, ends=self.ends[chosen])

    def batch(self, indices: np.ndarray) -> SequenceBatch:
        ends = self.ends[indices]
        frames = ends[:, None] + np.arange(1 - self.num_frames, 1)
        # Windows overlap, so each distinct frame is read only once.
        distinct, place = np.unique(frames, return_inverse=True)
        pixels = self._read(distinct)
        present = self.table.present
        return SequenceBatch(
            images=torch.from_numpy(pixels[place.reshape(frames.shape)]),
            scalars=torch.from_numpy(self.encoding.encode(self.table.scalars[frames])),
            target=_single(self.table.target[ends]),
            present=_single(np.full(len(ends), np.nan) if present is None else present[ends]),
            last_frame=torch.from_numpy(ends.astype(np.int64)),
        )


def complete_window_ends(table: FrameTable, config: ImageSequenceData) -> np.ndarray:
    """Return the last frames of all windows that cross no gap and, unless allowed, no group."""
    breaks = _breaks(table, max_gap=config.max_gap, cross_groups=config.windows_cross_groups)
    starts = np.maximum.accumulate(np.where(breaks, np.arange(len(breaks)), 0))
    long_enough = np.arange(len(breaks)) - starts >= config.temporal_frames - 1
    return np.flatnonzero(long_enough)


def find_window_ends(table: FrameTable, config: ImageSequenceData) -> np.ndarray:
    """Return the last frames of the complete windows that end at a target."""
    complete = complete_window_ends(table, config)
    ends: np.ndarray = complete[np.isfinite(table.target[complete])]
    ended = set(table.group[ends].tolist())
    for group in group_names(table.group):
        if group not in ended:
            own = np.flatnonzero(table.group == group)
            raise DataError(
                f"{table.source}: group {group!r} (frames {own[0]} to {own[-1]}) has no "
                f"{config.temporal_frames} consecutive frames without a gap that end at a target; "
                "lower data.temporal_frames, raise data.max_gap, or remove the group"
            )
    return ends


def _breaks(table: FrameTable, *, max_gap: float | None, cross_groups: bool) -> np.ndarray:
    """Return whether a sequence begins at each frame, `(frame,)`."""
    breaks = np.zeros(len(table.target), dtype=bool)
    breaks[0] = True
    changed = (table.group[1:] != table.group[:-1]) | (table.recording[1:] != table.recording[:-1])
    if not cross_groups:
        breaks[1:] |= changed
    if table.time is not None and len(table.time) > 1:
        _check_times(table, recordings=np.concatenate([[0], np.cumsum(changed)]))
        steps = np.diff(table.time)
        grows = steps > 0
        if max_gap is None:
            max_gap = 1.5 * (table.step or 0.0)
        # For NaN times, both comparisons are false, so there is a break on both sides.
        breaks[1:] |= ~(grows & (steps <= max_gap))
    return breaks


def _check_times(table: FrameTable, *, recordings: np.ndarray) -> None:
    """Refuse times that do not increase within a recording; NaN times are ignored."""
    assert table.time is not None
    known = np.flatnonzero(np.isfinite(table.time))
    backward = (np.diff(table.time[known]) <= 0) & (np.diff(recordings[known]) == 0)
    if backward.any():
        before, frame = known[np.flatnonzero(backward)[0] :][:2].tolist()
        raise DataError(
            f"{table.source}: time[{frame}] is {table.time[frame]:g} after "
            f"{table.time[before]:g}; expected times that increase within a group"
        )


def reaches_another_split(
    table: FrameTable, ends: np.ndarray, split: np.ndarray, *, ahead: float
) -> np.ndarray:
    """Return for each window whether its target is in or beyond frames of another split.

    A target is `ahead` after its window's last frame, in units of `time`, or in frames if the data
    has no time. The frames after a window are checked in order, up to the target's time and as long
    as time increases; if time decreases, another recording starts. If the last frame of a window
    has no time, the time of the target is unknown, and the window counts as reaching another split.
    `ends` are the last frames of the windows, and `split` has the split of each frame.
    """
    time = table.time if table.time is not None else np.arange(len(split), dtype=np.float64)
    reaches: np.ndarray = ~np.isfinite(time[ends])
    # Last known time after each window's end, and whether the check of its frames continues.
    latest, going = time[ends].copy(), ~reaches
    for frames_ahead in range(1, len(split)):
        going &= ends + frames_ahead < len(split)
        frame = np.where(going, ends + frames_ahead, 0)
        known = np.isfinite(time[frame])
        going &= ~known | ((time[frame] > latest) & (time[frame] <= time[ends] + ahead))
        if not going.any():
            break
        latest = np.where(going & known, time[frame], latest)
        reaches |= going & (split[frame] != split[ends])
    return reaches


def _single(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


FRAMES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class SequenceSplits:
    """Windows of each split; a group is in one split only."""

    table: FrameTable
    encoding: ScalarEncoding
    windows: dict[str, SequenceWindows]
    """`train`, `valid` and `test`."""
    fingerprint: str

    @property
    def groups(self) -> dict[str, list[str]]:
        return {split: group_names(windows.groups) for split, windows in self.windows.items()}


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
    parts = {"train": "train", "valid": held_out, "test": "test"}
    windows = {name: every.only(split[ends] == part) for name, part in parts.items()}
    for name, own in windows.items():
        if not len(own):
            raise DataError(
                f"{table.source}: no {name} window is left, because with targets {ahead:g} ahead "
                "all windows reach into another split; make larger groups, or lower data.embargo"
            )
    return SequenceSplits(table, encoding, windows, table.fingerprint)


def load_table(config: ImageSequenceData) -> FrameTable:
    """Read everything except the pixels, and make blocks if they are configured."""
    table = read_frames(find_frames(config), config.channels)
    if config.num_blocks is not None:
        table = replace(table, group=blocks(len(table.target), config.num_blocks))
    return table


def group_names(groups: np.ndarray) -> list[str]:
    """Return the distinct groups, in the order in which they begin."""
    return list(dict.fromkeys(groups.tolist()))


def blocks(num_frames: int, num_blocks: int) -> np.ndarray:
    """Return the block of each frame, `(frame,)`, as text: blocks of equal length, in order."""
    return (np.arange(num_frames) * num_blocks // num_frames).astype(str)


def held_out_groups(table: FrameTable, config: ImageSequenceData) -> tuple[str, str | None]:
    """Return the test group and the validation group (None if no group is for validation)."""
    groups = group_names(table.group)
    for key in ("test_group", "validation_group"):
        name = getattr(config, key)
        if name is not None and name not in groups:
            raise ConfigError(
                f"data.{key} is {name!r}; {table.source} has groups {', '.join(groups)}"
            )
    needed = 2 + config.hold_out_validation
    if len(groups) < needed:
        raise ConfigError(
            f"{table.source}: {counted(len(groups), 'group')}, {needed} needed to hold some out; "
            "set data.num_blocks to make groups of consecutive frames"
        )
    test = config.test_group or next(g for g in reversed(groups) if g != config.validation_group)
    before = groups[groups.index(test) - 1]
    return test, (config.validation_group or before) if config.hold_out_validation else None


def fit_scalers(windows: SequenceWindows, *, change: bool) -> Scalers:
    """Return scalers of training windows, with every frame counted once.

    With `change`, the model predicts the target's difference from the present value.
    """
    table, frames = windows.table, windows.frames
    mean, std = _pixel_moments(windows)
    scalars = windows.encoding.encode(table.scalars[frames]).astype(np.float64)
    targets = windows.targets
    if change:
        targets = targets - present_values(windows)
    of_targets = float(targets.mean()), float(_positive(np.array(targets.std())))
    return Scalers(mean, std, scalars.mean(0), _positive(scalars.std(0)), *of_targets)


def present_values(windows: SequenceWindows) -> np.ndarray:
    """Return the target's quantity at the last frame of each window, `(window,)`."""
    table = windows.table
    if table.present is None:
        raise DataError(
            f"{table.source}: no present, which a model of changes (model.predicts=change) needs; "
            "give the target's quantity at each frame"
        )
    found = np.asarray(table.present[windows.ends])
    if len(unknown := windows.ends[~np.isfinite(found)]):
        raise DataError(f"{table.source}: present[{unknown[0]}] is not a finite number")
    return found


def _pixel_moments(windows: SequenceWindows) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each channel's finite pixels, in float64."""
    sums = np.zeros((3, windows.table.images.shape[1]))
    for read in windows.pixels():
        finite = np.isfinite(read)
        pixels = np.where(finite, read.astype(np.float64), 0.0)
        sums += [x.sum((0, 2, 3)) for x in (finite, pixels, pixels**2)]
    if not sums[0].all():
        raise DataError(
            f"{windows.table.source}: a channel has no finite pixel in the training groups"
        )
    mean = sums[1] / sums[0]
    return mean, _positive(np.sqrt(np.maximum(sums[2] / sums[0] - mean**2, 0.0)))


def _positive(deviation: np.ndarray) -> np.ndarray:
    """Return standard deviations, with 1 in place of 0."""
    return np.where(deviation > 1e-12, deviation, 1.0)
