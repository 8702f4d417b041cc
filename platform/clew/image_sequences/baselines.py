"""What a network for image sequences has to beat: mean, persistence and ridge regression.

They see the same windows: fitted on those for training, applied to those for the test.
"""

import numpy as np

from clew.image_sequences.windows import SequenceWindows

RIDGE_PENALTIES: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(13))
RIDGE_PIXELS = 2048
"""Most pixels of a frame that ridge regression sees; larger frames are averaged in blocks."""
RIDGE_WINDOWS = 4096
"""Most training windows of ridge regression; of more, evenly spread ones are taken."""
WINDOWS_AT_ONCE = 64


def baseline_predictions(train: SequenceWindows, test: SequenceWindows) -> dict[str, np.ndarray]:
    """Return the predictions of each baseline for the test windows."""
    values = {"mean": np.full(len(test), train.targets.mean())}
    present = test.table.present
    if present is not None:
        values["persistence"] = present[test.ends]
    values["ridge"] = ridge_predictions(train, test)
    return values


def ridge_predictions(train: SequenceWindows, test: SequenceWindows) -> np.ndarray:
    """Return ridge regression from all pixels and scalars of a window.

    The penalty is the one with the least absolute error when each training group is left out in
    turn; features are standardised by the training windows.
    """
    if len(train) > RIDGE_WINDOWS:
        train = train.only(np.linspace(0, len(train) - 1, RIDGE_WINDOWS).astype(int))
    features, targets = _features(train), train.targets
    mean = features.mean(0)
    deviation = features.std(0)
    deviation[deviation < 1e-12] = 1.0
    features = (features - mean) / deviation
    kernel = features @ features.T
    penalty = _choose_penalty(kernel, targets, train.groups)
    weights = _dual(kernel, targets - targets.mean(), penalty)
    scaled = (_features(test) - mean) / deviation
    predictions: np.ndarray = scaled @ (features.T @ weights) + targets.mean()
    return predictions


def _choose_penalty(kernel: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> float:
    """Return the penalty with the least error over groups left out; of one group, the middle."""
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


def _dual(kernel: np.ndarray, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Return (K + penalty I)^-1 y."""
    weights: np.ndarray = np.linalg.solve(kernel + penalty * np.eye(len(kernel)), targets)
    return weights


def _features(windows: SequenceWindows) -> np.ndarray:
    """Return pixels of all frames and scalars of the last one, `(window, feature)`, float64."""
    parts = []
    for start in range(0, len(windows), WINDOWS_AT_ONCE):
        batch = windows.batch(np.arange(start, min(start + WINDOWS_AT_ONCE, len(windows))))
        images = np.nan_to_num(_averaged(batch.images.numpy()).astype(np.float64))
        scalars = batch.scalars[:, -1].numpy().astype(np.float64)
        parts.append(np.concatenate([images.reshape(len(images), -1), scalars], axis=1))
    return np.concatenate(parts)


def _averaged(images: np.ndarray) -> np.ndarray:
    """Return images averaged in square blocks, so that a frame has at most `RIDGE_PIXELS`."""
    height, width = images.shape[-2:]
    block = 1
    while (height // block) * (width // block) > RIDGE_PIXELS:
        block += 1
    if block == 1:
        return images
    rows, columns = height // block, width // block
    cut = images[..., : rows * block, : columns * block]
    blocks = cut.reshape(*cut.shape[:-2], rows, block, columns, block)
    means: np.ndarray = blocks.mean((-3, -1))
    return means
