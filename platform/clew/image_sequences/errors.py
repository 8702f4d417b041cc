"""Quality of a regression in the target's unit: errors, quantiles, intervals and coverage."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew import names
from clew.errors import ConfigError, DataError
from clew.files import write_json
from clew.input_files import read_columns

BASELINE_PREFIX = "baseline_"
QUANTILES = (0.5, 0.9, 0.95)
"""Quantiles of the absolute error that are reported."""
CONFIDENCE = 0.9
"""Default share of targets that the intervals should contain."""


@dataclass(frozen=True, eq=False)
class RegressionResult:
    """Predictions and targets, one entry for each window, in the target's unit."""

    prediction: np.ndarray
    target: np.ndarray
    group: np.ndarray
    last_frame: np.ndarray
    baselines: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Name of each baseline to its predictions."""
    interval: np.ndarray | None = None
    """Half width of the interval of each prediction."""

    @property
    def errors(self) -> np.ndarray:
        return np.asarray(self.prediction - self.target)

    def metrics(self, split: str) -> dict[str, float]:
        """Return MAE, RMSE, R2, error quantiles, bias, baselines' MAE and interval coverage."""
        values = self._quality(slice(None))
        for q in QUANTILES:
            key = names.ABS_ERROR_QUANTILE.format(k=round(100 * q))
            values[key] = float(np.quantile(abs(self.errors), q))
        if self.interval is not None:
            values[names.INTERVAL_COVERAGE] = float((abs(self.errors) <= self.interval).mean())
            values[names.INTERVAL_HALF_WIDTH] = float(self.interval.mean())
        return {names.metric(split, name): value for name, value in values.items()}

    def _quality(self, own: Any) -> dict[str, float]:
        """Return MAE, RMSE, R2, bias, and the baselines' MAE of some windows."""
        values = quality(self.prediction[own], self.target[own])
        values[names.BIAS] = float(self.errors[own].mean())
        for name, prediction in self.baselines.items():
            key = names.BASELINE_MAE.format(baseline=name)
            values[key] = quality(prediction[own], self.target[own])[names.MAE]
        return values

    def by_window(self, name: str) -> np.ndarray | None:
        """Return what each window adds to MAE or R2, `(window,)`; None for another metric."""
        squares = self.errors**2
        total = float(((self.target - self.target.mean()) ** 2).mean())
        values = {names.MAE: abs(self.errors), names.R2: 1.0 - squares / total if total else None}
        return values.get(name)

    def by_group(self) -> list[dict[str, Any]]:
        """Return one row for each group: windows, MAE, RMSE, R2, bias, and the baselines' MAE."""
        groups = {group: self.group == group for group in dict.fromkeys(self.group.tolist())}
        return [
            {"group": group, "windows": int(own.sum())} | self._quality(own)
            for group, own in groups.items()
        ]

    def write(self, path: Path) -> None:
        """Write predictions as Parquet, one row for each window."""
        columns: dict[str, Any] = {
            "last_frame": self.last_frame,
            "group": pa.array(self.group.tolist(), pa.string()),
            "target": self.target,
            "prediction": self.prediction,
            "error": self.errors,
        }
        if self.interval is not None:
            columns["lower"] = self.prediction - self.interval
            columns["upper"] = self.prediction + self.interval
        columns |= {f"{BASELINE_PREFIX}{name}": values for name, values in self.baselines.items()}
        pq.write_table(pa.table(columns), path)


def quality(prediction: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Return mean absolute error, root mean squared error, and R2 = 1 - SS_error / SS_total."""
    errors = prediction - target
    total = float(((target - target.mean()) ** 2).sum())
    squares = float((errors**2).sum())
    return {
        names.MAE: float(abs(errors).mean()),
        names.RMSE: math.sqrt(squares / len(errors)),
        names.R2: 1.0 - squares / total if total > 0 else 0.0,
    }


def conformal_half_width(errors: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Return the half width of a split-conformal interval; infinite if there are too few errors.

    It is the ceil((n + 1) confidence)-th smallest absolute error (Vovk et al., 2005; Lei et al.,
    2018, arXiv 1604.04173, section 2), which assumes exchangeable errors. Consecutive windows are
    not exchangeable, so check the measured coverage.
    """
    # Exact decimal arithmetic: the binary number nearest to 0.55, times 100, is above 55.
    rank = math.ceil((len(errors) + 1) * Fraction(str(confidence)))
    if rank > len(errors):
        return math.inf
    return float(np.partition(abs(errors), rank - 1)[rank - 1])


@dataclass(frozen=True)
class Intervals:
    """Split-conformal intervals: prediction plus and minus a half width."""

    confidence: float
    """Share of targets that the intervals should contain."""
    half_width: float
    """Half width in the target's unit."""
    validation_windows: int
    """Number of held-out errors from which the half width is computed."""
    test_windows: int
    test_coverage: float
    """Share of the test windows' targets that the intervals contain."""

    def describe(self, unit: str = "") -> str:
        return (
            f"intervals of {100 * self.confidence:g}%: +- {self.half_width:.4g}{' ' * bool(unit)}"
            f"{unit}, from {self.validation_windows:,} validation windows; of "
            f"{self.test_windows:,} test windows they contain {self.test_coverage:.1%}"
        )


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """Errors of a model on windows that it was not trained on, in the target's unit."""

    valid: np.ndarray
    test: np.ndarray

    def intervals(self, confidence: float) -> Intervals:
        """Return split-conformal intervals from the validation errors."""
        width, number = conformal_half_width(self.valid, confidence), len(self.valid)
        if not np.isfinite(width):
            raise ConfigError(
                f"confidence is {confidence:g}, but {number} validation windows give intervals of "
                f"at most {number / (number + 1):.3f}; ask for a smaller share"
            )
        coverage = float((abs(self.test) <= width).mean())
        return Intervals(confidence, width, number, len(self.test), coverage)

    def describe(self) -> str:
        return self.intervals(CONFIDENCE).describe()

    def tags(self) -> dict[str, str]:
        return {names.TAG_HALF_WIDTH: f"{self.intervals(CONFIDENCE).half_width:.6g}"}

    def write(self, path: Path) -> None:
        split = ["valid"] * len(self.valid) + ["test"] * len(self.test)
        columns = {"split": split, "error": np.concatenate([self.valid, self.test])}
        pq.write_table(pa.table(columns), path)

    @classmethod
    def read(cls, path: Path) -> "HeldOutErrors":
        types = {"split": pa.string(), "error": pa.float64()}
        table = read_columns(path, types, "a file of errors")
        split, values = np.array(table["split"]), table["error"].to_numpy()
        if not np.isfinite(values).all():
            raise DataError(f"{path}: not a file of errors (an error is missing or infinite)")
        return cls(values[split == "valid"], values[split == "test"])


def write_regression_report(result: RegressionResult, split: str, unit: str, folder: Path) -> None:
    """Write Parquet, JSON and two pictures into an existing folder."""
    result.write(folder / f"{split}_predictions.parquet")
    write_json(folder / f"{split}_groups.json", result.by_group())
    draw_predictions(result, unit, folder / f"{split}_predicted_against_true.png")
    draw_groups(result, unit, folder / f"{split}_error_by_group.png")


def draw_predictions(result: RegressionResult, unit: str, path: Path) -> None:
    """Draw predictions against targets, with the diagonal on which both are equal."""
    with _figure((5.0, 5.0), path) as figure:
        axes = figure.subplots()
        for group in dict.fromkeys(result.group.tolist()):
            own = result.group == group
            axes.plot(result.target[own], result.prediction[own], ".", markersize=4, label=group)
        least = min(result.target.min(), result.prediction.min())
        axes.axline((least, least), slope=1, color="gray", linewidth=1)
        axes.set(xlabel=_with_unit("true", unit), ylabel=_with_unit("predicted", unit))
        axes.legend(fontsize=7, title="group")


def draw_groups(result: RegressionResult, unit: str, path: Path) -> None:
    """Draw the mean absolute errors of the network and the baselines for each group."""
    rows = result.by_group()
    series = {"network": [row[names.MAE] for row in rows]}
    series |= {name: [row[f"{name}_mae"] for row in rows] for name in result.baselines}
    width = 0.8 / len(series)
    with _figure((max(5.0, 0.9 * len(rows)), 3.5), path) as figure:
        axes = figure.subplots()
        for place, (name, values) in enumerate(series.items()):
            axes.bar(np.arange(len(rows)) + place * width, values, width, label=name)
        axes.set_xticks(np.arange(len(rows)) + 0.4 - width / 2, [row["group"] for row in rows])
        axes.tick_params(axis="x", labelrotation=30)
        axes.set(ylabel=_with_unit("mean absolute error", unit))
        axes.legend(fontsize=8)


def draw_windows(images: np.ndarray, titles: list[str], path: Path) -> None:
    """Draw frames `(window, time, height, width)`, a row for each window."""
    num_windows, num_frames = images.shape[:2]
    with _figure((1.8 * num_frames, 1.7 * num_windows), path) as figure:
        axes = figure.subplots(num_windows, num_frames, squeeze=False)
        for place in np.ndindex(num_windows, num_frames):
            axes[place].set_axis_off()
            axes[place].imshow(images[place], cmap="gray")
        for window, title in enumerate(titles):
            axes[window, 0].set_title(title, fontsize=8, loc="left")


def _with_unit(text: str, unit: str) -> str:
    return f"{text} ({unit})" if unit else text


@contextmanager
def _figure(size: tuple[float, float], path: Path) -> Iterator[Any]:
    """Yield an empty figure, and write it; a `$` in the name of a group begins no formula."""
    import matplotlib  # here, because it takes 30 MiB of memory
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, dpi=120)
