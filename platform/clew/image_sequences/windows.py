"""Windows of consecutive frames, the examples of image-sequence regression."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError
from clew.image_sequences.files import FrameTable


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
        return np.stack(parts, axis=-1).astype(np.float32)

    def mirrored(self, encoded: Tensor) -> Tensor:
        """Return encoded scalars of images mirrored left to right.

        A direction a, clockwise from the top of the image, becomes 360 degrees - a. Its sine
        changes sign; its cosine and all other scalars stay the same.
        """
        signs = [
            sign for kind in self.kinds for sign in ((-1.0, 1.0) if kind == "azimuth" else (1.0,))
        ]
        return encoded * torch.tensor(signs, dtype=encoded.dtype, device=encoded.device)


@dataclass(frozen=True)
class SequenceBatch:
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

    def to(self, device: torch.device) -> "SequenceBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "SequenceBatch":
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        return SequenceBatch(**{name: change(tensor) for name, tensor in vars(self).items()})

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
        groups: np.ndarray = self.table.group[self.ends]
        return groups

    @property
    def targets(self) -> np.ndarray:
        targets: np.ndarray = self.table.target[self.ends]
        return targets

    @property
    def frames(self) -> np.ndarray:
        """Indices of all frames in the windows, without repetitions, `(frame,)`."""
        return np.unique(self.ends[:, None] - np.arange(self.num_frames))

    def only(self, chosen: np.ndarray) -> "SequenceWindows":
        return replace(self, ends=self.ends[chosen])

    def batch(self, indices: np.ndarray) -> SequenceBatch:
        ends = self.ends[indices]
        frames = ends[:, None] + np.arange(1 - self.num_frames, 1)
        # Windows overlap, so each distinct frame is read only once.
        distinct, place = np.unique(frames, return_inverse=True)
        pixels = read_checked(self.table, distinct, refuse_nan=self.refuse_nan)
        present = self.table.present
        return SequenceBatch(
            images=torch.from_numpy(pixels[place.reshape(frames.shape)]),
            scalars=torch.from_numpy(self.encoding.encode(self.table.scalars[frames])),
            target=_single(self.table.target[ends]),
            present=_single(np.full(len(ends), np.nan) if present is None else present[ends]),
            last_frame=torch.from_numpy(ends.astype(np.int64)),
        )


def read_checked(table: FrameTable, frames: np.ndarray, *, refuse_nan: bool) -> np.ndarray:
    """Return pixels of frames, `(frame, channel, height, width)`."""
    pixels = table.images.read(frames)
    if refuse_nan and not np.isfinite(pixels).all():
        place, *pixel = np.argwhere(~np.isfinite(pixels))[0].tolist()
        raise DataError(
            f"{table.source}: frame {frames[place]} has a pixel that is not finite (channel, row, "
            f"column {pixel}); repair it, or set data.nan_pixels to mean or mask"
        )
    return pixels


def complete_window_ends(table: FrameTable, config: ImageSequenceData) -> np.ndarray:
    """Return the last frames of all windows that cross no gap and, unless allowed, no group."""
    breaks = _breaks(table, max_gap=config.max_gap, cross_groups=config.windows_cross_groups)
    starts = np.maximum.accumulate(np.where(breaks, np.arange(len(breaks)), 0))
    long_enough = np.arange(len(breaks)) - starts >= config.temporal_frames - 1
    ends: np.ndarray = np.flatnonzero(long_enough)
    return ends


def find_window_ends(table: FrameTable, config: ImageSequenceData) -> np.ndarray:
    """Return the last frames of the complete windows that end at a target."""
    complete = complete_window_ends(table, config)
    ends: np.ndarray = complete[np.isfinite(table.target[complete])]
    for group in dict.fromkeys(table.group.tolist()):
        if group not in table.group[ends]:
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
        limit = max_gap
        if limit is None:
            limit = 1.5 * float(np.median(steps[grows])) if grows.any() else 0.0
        # For NaN times, both comparisons are false, so there is a break on both sides.
        breaks[1:] |= ~(grows & (steps <= limit))
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
