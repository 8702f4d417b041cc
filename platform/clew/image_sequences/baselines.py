"""Baselines for image sequences: mean, persistence and ridge regression.

The baselines use the same data as the network. They are fitted on the training windows and applied
to the test windows, with the scalars of all frames, and with the present value if the network
predicts a change from it. For ridge regression, a missing pixel becomes the mean of this pixel over
the training frames.

Persistence predicts that the target's quantity stays at its present value. The present value is the
column `present`, if there is one. Otherwise it is a scalar with the target's name. Otherwise, if
targets are ahead of their frames, it is the target of an earlier frame whose target time is the
time of the present frame.
"""

import logging

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from clew.image_sequences.files import FrameTable
from clew.image_sequences.windows import SequenceWindows, present_values

logger = logging.getLogger(__name__)

RIDGE_PENALTIES: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(13))
RIDGE_PIXELS = 2048
"""Largest number of pixels per frame for ridge regression; larger frames are averaged in blocks."""
RIDGE_WINDOWS = 4096
"""Largest number of training windows for ridge regression; more windows are sampled evenly."""
WINDOWS_AT_ONCE = 64


def baseline_predictions(
    train: SequenceWindows, test: SequenceWindows, *, change: bool
) -> dict[str, np.ndarray]:
    """Return the predictions of each baseline for the test windows.

    With `change`, the network predicts differences from the present value.
    """
    mean = train.targets.mean()
    values = {"mean": np.full(len(test), mean)}
    known, _ = known_values(test.table)
    if known is not None:
        values["persistence"] = _last_known(test, known, otherwise=mean)
    values["ridge"] = ridge_predictions(train, test, change=change)
    return values


def known_values(table: FrameTable) -> tuple[np.ndarray | None, str]:
    """Return each frame's present value, and a line that says where the values come from.

    The values are `(frame,)`, NaN if unknown. They are None if all are unknown, and the line says
    why.
    """
    name = table.target_name
    if table.present is not None:
        return table.present, "persistence predicts the last value of present"
    if name in table.scalar_names:
        values = table.scalars[:, table.scalar_names.index(name)]
        return values, f"persistence predicts the last value of scalar {name!r}"
    past = _past_targets(table) if table.target_ahead > 0 else None
    if past is not None and np.isfinite(past).any():
        return past, (
            "persistence predicts the target whose time is that of a window's last frame "
            f"(targets are {table.target_ahead:g} ahead)"
        )
    return None, (
        f"no persistence baseline: the data have neither present nor a scalar named {name!r}, and "
        "no target's time is that of a later frame of its group"
    )


def _past_targets(table: FrameTable) -> np.ndarray:
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


def _last_known(windows: SequenceWindows, present: np.ndarray, *, otherwise: float) -> np.ndarray:
    """Return the last known present value in each window, or `otherwise` if there is none."""
    values = np.full(len(windows), otherwise)
    for age in reversed(range(windows.num_frames)):
        known = present[windows.ends - age]
        values = np.where(np.isfinite(known), known, values)
    return values


def ridge_predictions(
    train: SequenceWindows, test: SequenceWindows, *, change: bool = False
) -> np.ndarray:
    """Return predictions of ridge regression from all pixels and scalars of a window.

    The penalty is the one with the smallest absolute error when each training group is left out in
    turn. Features are standardised with the training windows. With `change`, the regression
    predicts the difference from the present value, as the network does.
    """
    pixel_means = None if train.refuse_nan else _pixel_means(train)
    if len(train) > RIDGE_WINDOWS:
        logger.warning(
            "ridge regression is fitted on %d of %d training windows", RIDGE_WINDOWS, len(train)
        )
        train = train.only(np.linspace(0, len(train) - 1, RIDGE_WINDOWS).astype(int))
    features = _features(train, pixel_means)
    targets, start = train.targets, np.zeros(len(test))
    if change:
        targets, start = targets - present_values(train), present_values(test)
    mean = features.mean(0)
    deviation = features.std(0)
    deviation[deviation < 1e-12] = 1.0
    features = (features - mean) / deviation
    kernel = features @ features.T
    penalty = _choose_penalty(kernel, targets, train.groups)
    weights = np.linalg.solve(kernel + penalty * np.eye(len(kernel)), targets - targets.mean())
    scaled = (_features(test, pixel_means) - mean) / deviation
    return np.asarray(scaled @ (features.T @ weights) + targets.mean() + start)


def _pixel_means(windows: SequenceWindows) -> np.ndarray:
    """Return each pixel's mean over the frames in which it is finite, `(channel, height, width)`.

    A pixel that is finite in no frame gets the mean of its channel.
    """
    total = np.zeros(windows.table.images.shape[1:])
    count = np.zeros(total.shape)
    for pixels in windows.pixels():
        finite = np.isfinite(pixels)
        total += np.where(finite, pixels.astype(np.float64), 0.0).sum(0)
        count += finite.sum(0)
    channels = total.sum((1, 2), keepdims=True) / count.sum((1, 2), keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), channels).astype(np.float32)


def _choose_penalty(kernel: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> float:
    names = np.unique(groups)
    if len(names) < 2:
        return RIDGE_PENALTIES[len(RIDGE_PENALTIES) // 2]
    errors = np.zeros(len(RIDGE_PENALTIES))
    for name in names:
        out, kept = groups == name, groups != name
        mean = targets[kept].mean()
        values, vectors = np.linalg.eigh(kernel[np.ix_(kept, kept)])
        rotated = vectors.T @ (targets[kept] - mean)
        across = kernel[np.ix_(out, kept)] @ vectors
        for place, penalty in enumerate(RIDGE_PENALTIES):
            prediction = across @ (rotated / (values + penalty)) + mean
            errors[place] += abs(prediction - targets[out]).sum()
    return RIDGE_PENALTIES[int(errors.argmin())]


def _features(windows: SequenceWindows, pixel_means: np.ndarray | None) -> np.ndarray:
    """Return scalars and pixels of all frames, `(window, feature)`, float64.

    If pixels can be missing, `pixel_means` replace them, and the share of finite pixels in each
    channel is also a feature, because a network can see which pixels are finite.
    """
    parts = []
    for start in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = windows.batch(np.arange(start, min(start + WINDOWS_AT_ONCE, len(windows))))
        images, seen = batch.images.numpy(), [batch.scalars.numpy()]
        if pixel_means is not None:
            finite = np.isfinite(images)
            images = np.where(finite, images, pixel_means)
            seen.append(finite.mean((-2, -1)))
        seen.append(_averaged(images))
        flat = [values.reshape(len(values), -1).astype(np.float64) for values in seen]
        parts.append(np.concatenate(flat, axis=1))
    return np.concatenate(parts)


def _averaged(images: np.ndarray) -> np.ndarray:
    """Return images averaged in square blocks, so that a frame has at most `RIDGE_PIXELS` pixels.

    Blocks at the lower and right edges are smaller if the sides are not multiples of the block.
    """
    height, width = images.shape[-2:]
    block = 1
    while -(-height // block) * -(-width // block) > RIDGE_PIXELS:
        block += 1
    if block == 1:
        return images
    stacked = torch.from_numpy(images.reshape(-1, height, width))
    averaged = avg_pool2d(stacked, block, ceil_mode=True).numpy()
    return averaged.reshape(*images.shape[:-2], *averaged.shape[-2:])
