"""Writes the files of an evaluated regression: predictions, errors by group, and pictures.

Pictures show predictions against targets, errors by group, and attention maps.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.image_sequences.errors import RegressionResult


def predictions_file(split: str) -> str:
    return f"{split}_predictions.parquet"


def write_regression_report(result: RegressionResult, split: str, unit: str, folder: Path) -> None:
    """Write Parquet, JSON and two pictures into an existing folder."""
    result.write(folder / predictions_file(split))
    text = json.dumps(result.by_group(), indent=1) + "\n"
    (folder / f"{split}_groups.json").write_text(text, encoding="utf-8")
    draw_predictions(result, unit, folder / f"{split}_predicted_against_true.png")
    draw_groups(result, unit, folder / f"{split}_error_by_group.png")


def draw_predictions(result: RegressionResult, unit: str, path: Path) -> None:
    """Draw predictions against targets, with the diagonal on which both are equal."""
    figure = _figure((5.0, 5.0))
    axes = figure.subplots()
    for group in dict.fromkeys(result.group.tolist()):
        own = result.group == group
        axes.plot(result.target[own], result.prediction[own], ".", markersize=4, label=group)
    ends = [min(result.target.min(), result.prediction.min()), result.target.max()]
    axes.axline((ends[0], ends[0]), slope=1, color="gray", linewidth=1)
    axes.set(xlabel=_with_unit("true", unit), ylabel=_with_unit("predicted", unit))
    axes.legend(fontsize=7, title="group")
    figure.savefig(path, dpi=120)


def draw_groups(result: RegressionResult, unit: str, path: Path) -> None:
    """Draw the mean absolute errors of the network and the baselines for each group."""
    rows = result.by_group()
    series = {"network": [row[names.MAE] for row in rows]}
    series |= {name: [row[f"{name}_mae"] for row in rows] for name in result.baselines}
    figure = _figure((max(5.0, 0.9 * len(rows)), 3.5))
    axes = figure.subplots()
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        axes.bar(np.arange(len(rows)) + place * width, values, width, label=name)
    axes.set_xticks(np.arange(len(rows)) + 0.4 - width / 2, [row["group"] for row in rows])
    axes.tick_params(axis="x", labelrotation=30)
    axes.set(ylabel=_with_unit("mean absolute error", unit))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def draw_attention(images: np.ndarray, maps: np.ndarray, titles: list[str], path: Path) -> None:
    """Draw frames above their attention maps, with one row of each for every window.

    Args:
        images: First channel of each frame, `(window, time, height, width)`.
        maps: Attention of each frame, `(window, time, row, column)`.
        titles: Title of each window.
        path: File of the picture.
    """
    num_windows, num_frames = images.shape[:2]
    size = (1.8 * num_frames, 3.2 * num_windows)
    figure = _figure(size)
    axes = figure.subplots(2 * num_windows, num_frames, squeeze=False)
    for window in range(num_windows):
        for time in range(num_frames):
            above, below = axes[2 * window, time], axes[2 * window + 1, time]
            above.imshow(images[window, time], cmap="gray")
            below.imshow(maps[window, time], cmap="viridis", vmin=0, vmax=maps[window].max())
            for each in (above, below):
                each.set_axis_off()
        axes[2 * window, 0].set_title(titles[window], fontsize=8, loc="left")
    figure.savefig(path, dpi=110)


def draw_windows(images: np.ndarray, titles: list[str], path: Path) -> None:
    """Draw the frames of windows, one row for each window.

    Args:
        images: First channel of each frame, `(window, time, height, width)`.
        titles: Title of each window.
        path: File of the picture.
    """
    num_windows, num_frames = images.shape[:2]
    figure = _figure((1.8 * num_frames, 1.7 * num_windows))
    axes = figure.subplots(num_windows, num_frames, squeeze=False)
    for window, row in enumerate(axes):
        for time, each in enumerate(row):
            each.imshow(images[window, time], cmap="gray")
            each.set_axis_off()
        row[0].set_title(titles[window], fontsize=8, loc="left")
    figure.savefig(path, dpi=110)


def _with_unit(text: str, unit: str) -> str:
    return f"{text} ({unit})" if unit else text


def _figure(size: tuple[float, float]) -> Any:
    """Return an empty figure; matplotlib is imported here because it takes 30 MiB of memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")
