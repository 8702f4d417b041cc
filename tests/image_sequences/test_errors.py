"""Errors in units, baselines on the same windows, and intervals whose coverage is measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import Ridge

from clew.config.image_sequences import ImageSequenceData
from clew.image_sequences import baselines as regression_baselines
from clew.image_sequences.baselines import (
    baseline_predictions,
    known_values,
    ridge_predictions,
)
from clew.image_sequences.errors import (
    HeldOutErrors,
    RegressionResult,
    conformal_half_width,
    draw_windows,
    quality,
    write_regression_report,
)
from clew.image_sequences.windows import SequenceWindows, load_sequences
from experiments.benchmarks.era5_temperature import (
    group_half_widths,
    read_predictions,
    together,
)
from tests.image_sequences.sequence_files import (
    METADATA,
    Columns,
    sequence_columns,
    write_folder,
)


@pytest.fixture
def windows(tmp_path: Path) -> dict[str, SequenceWindows]:
    config = ImageSequenceData(path=str(write_folder(tmp_path, sequence_columns(groups=6))))
    return load_sequences(config).windows


def test_quality_in_closed_form() -> None:
    values = quality(np.array([1.0, 2.0, 6.0]), np.array([1.0, 3.0, 5.0]))
    assert values["mae"] == pytest.approx(2 / 3)
    assert values["rmse"] == pytest.approx((2 / 3) ** 0.5)
    assert values["r2"] == pytest.approx(1 - 2 / 8)
    assert quality(np.zeros(2), np.ones(2))["r2"] == 0.0


def test_metrics_rows_and_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=40)
    result = RegressionResult(
        prediction=target + np.linspace(-1, 1, 40),
        target=target,
        group=np.repeat(["a", "b"], 20),
        last_frame=np.arange(40),
        baselines={"mean": np.zeros(40)},
        interval=np.full(40, 0.5),
    )
    metrics = result.metrics("test")
    assert metrics["test/abs_error_q50"] == pytest.approx(np.median(abs(result.errors)))
    assert metrics["test/mean_mae"] == pytest.approx(abs(target).mean())
    assert metrics["test/interval_coverage"] == pytest.approx(0.5)
    rows = result.by_group()
    assert [row["windows"] for row in rows] == [20, 20]
    assert rows[0]["bias"] == pytest.approx(-rows[1]["bias"])
    json.dumps(rows)
    result.write(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet").to_pandas()
    assert list(table["group"]) == list(result.group)
    np.testing.assert_allclose(table["upper"] - table["lower"], 1.0)
    np.testing.assert_allclose(table["baseline_mean"], 0.0)
    again = read_predictions(tmp_path / "p.parquet")
    np.testing.assert_array_equal(again.prediction, result.prediction)
    np.testing.assert_array_equal(again.group, result.group)
    assert set(again.baselines) == {"mean"}
    both = together([again, again])
    assert both.metrics("test")["test/mae"] == pytest.approx(metrics["test/mae"])
    assert both.interval is not None


def test_pictures_are_drawn(tmp_path: Path) -> None:
    result = RegressionResult(
        np.arange(4.0),
        np.ones(4),
        np.array(["a", "a", "b", "b"]),
        np.arange(4),
        {"mean": np.ones(4)},
    )
    write_regression_report(result, "test", "$km\\per$", tmp_path)  # no formula of matplotlib
    images = np.random.default_rng(0).normal(size=(2, 3, 5, 6))
    draw_windows(images, ["one", "two"], tmp_path / "looks.png")
    written = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert len(written) == 5
    assert all(size > 100 for size in written.values())


def test_intervals_hold_the_share_that_they_promise() -> None:
    rng = np.random.default_rng(1)
    coverage = [
        abs(rng.normal()) <= conformal_half_width(rng.normal(size=39), 0.9) for _ in range(4000)
    ]
    assert np.mean(coverage) == pytest.approx(0.9, abs=0.02)
    assert conformal_half_width(np.arange(9.0), 0.9) == 8.0
    assert conformal_half_width(np.arange(8.0), 0.9) == np.inf
    assert conformal_half_width(np.arange(99.0), 0.55) == 54.0


def test_a_groups_interval_comes_from_the_others() -> None:
    errors = np.concatenate([np.full(30, 0.1), np.full(30, 5.0)])
    widths = group_half_widths(errors, np.repeat(["a", "b"], 30))
    assert (widths[:30] == 5.0).all()
    assert (widths[30:] == 0.1).all()


def test_ridge_is_ridge(
    windows: dict[str, SequenceWindows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression_baselines, "RIDGE_PENALTIES", (100.0,))
    train, test = windows["train"], windows["test"]
    features = []
    for part in (train, test):
        batch = part.batch(np.arange(len(part)))
        flat = batch.images.flatten(1).double().numpy()
        scalars = batch.scalars.flatten(1).double().numpy()
        features.append(np.concatenate([flat, scalars], axis=1))
    mean, deviation = features[0].mean(0), features[0].std(0)
    model = Ridge(alpha=100.0).fit((features[0] - mean) / deviation, train.targets)
    expected = model.predict((features[1] - mean) / deviation)
    np.testing.assert_allclose(ridge_predictions(train, test), expected, rtol=1e-6)


def test_the_penalty_is_chosen_without_the_test(windows: dict[str, SequenceWindows]) -> None:
    found = baseline_predictions(windows["train"], windows["test"], change=False)
    errors = {k: abs(v - windows["test"].targets).mean() for k, v in found.items()}
    assert set(errors) == {"mean", "persistence", "ridge"}
    assert errors["ridge"] < 0.5 * errors["mean"]
    assert errors["persistence"] == pytest.approx(0.4, abs=0.25)
    np.testing.assert_array_equal(found["mean"], windows["train"].targets.mean())


def test_large_frames_are_averaged(
    windows: dict[str, SequenceWindows], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.arange(2 * 4 * 6.0).reshape(2, 4, 6)
    monkeypatch.setattr(regression_baselines, "RIDGE_PIXELS", 6)
    averaged = regression_baselines._averaged(images)
    assert averaged.shape == (2, 2, 3)
    assert averaged[0, 0, 0] == images[0, :2, :2].mean()
    odd = np.arange(2 * 5 * 7.0).reshape(2, 5, 7)
    averaged = regression_baselines._averaged(odd)
    assert averaged.shape == (2, 2, 3)
    assert averaged[0, 1, 2] == odd[0, 3:, 6:].mean(), "edges count as well"


def with_columns(
    folder: Path, windows: dict[str, Any], metadata: dict[str, Any] = METADATA, **options: Any
) -> dict[str, Any]:
    """Return windows over columns of which some have been changed."""
    config = ImageSequenceData(path=str(write_folder(folder, windows, metadata)), **options)
    return load_sequences(config).windows


def baseline_errors(
    windows: dict[str, SequenceWindows], *, change: bool = False
) -> dict[str, float]:
    found = baseline_predictions(windows["train"], windows["test"], change=change)
    target = windows["test"].targets
    return {name: float(abs(values - target).mean()) for name, values in found.items()}


@pytest.mark.parametrize("block", [1, 2])
def test_missing_pixels_do_not_cripple_ridge(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing pixels among values near 280 K would dominate ridge if they were filled with 0."""
    monkeypatch.setattr(regression_baselines, "RIDGE_PIXELS", 117 // block)
    columns = sequence_columns(groups=6)
    columns["images"] += np.linspace(-20, 20, 13, dtype=np.float32)
    whole = baseline_errors(with_columns(tmp_path / "whole", columns))
    rng = np.random.default_rng(0)
    columns["images"][rng.random(columns["images"].shape) < 0.01] = np.nan
    columns["images"][5, 0, 0] = np.inf
    windows = with_columns(tmp_path / "holes", columns, nan_pixels="mean")
    holes = baseline_errors(windows)
    assert holes["ridge"] < 1.25 * whole["ridge"]
    assert whole["ridge"] < 0.5 * whole["mean"]
    assert holes["mean"] == whole["mean"]
    assert holes["persistence"] == whole["persistence"]


def test_a_missing_pixel_is_its_mean_over_training_frames(tmp_path: Path) -> None:
    columns = sequence_columns()
    images = columns["images"]
    images[:, 2, 3] += np.arange(48)  # a pixel with higher values in held-out frames
    images[7, 2, 3] = images[30, 2, 3] = np.nan
    images[:, 8, 12] = np.nan
    train = with_columns(tmp_path, columns, nan_pixels="mean")["train"]
    means = regression_baselines._pixel_means(train)
    np.testing.assert_allclose(means[0, 2, 3], np.nanmean(images[:24, 2, 3]), rtol=1e-6)
    np.testing.assert_allclose(means[0, 8, 12], np.nanmean(images[:24]), rtol=1e-6)
    filled = train.batch(np.arange(len(train))).images[0, 0, 0]
    features = regression_baselines._features(train, means)
    assert np.isfinite(features).all()
    assert features.shape == (len(train), 5 * (3 + 1 + filled.numel()))


def test_ridge_sees_the_scalars_of_every_frame(tmp_path: Path) -> None:
    """The target is the change of a scalar over the window, which the network can see."""
    columns = sequence_columns(groups=6)
    columns["images"][:] = 280.0
    height = np.random.default_rng(0).normal(size=72)
    columns["scalars"][:, 2] = height
    columns["target"][4:] = (height[4:] - height[:-4]) * 3
    found = baseline_errors(with_columns(tmp_path, columns))
    assert found["ridge"] < 0.2 * found["mean"]


def test_with_a_network_of_changes_ridge_knows_the_present_too(tmp_path: Path) -> None:
    """The target is the present value, which pixels do not show, plus a value that they show."""
    columns = sequence_columns(groups=6)
    columns["present"] = np.random.default_rng(0).normal(size=72) * 50
    columns["target"] = columns["target"] + columns["present"]
    windows = with_columns(tmp_path, columns)
    assert baseline_errors(windows, change=True)["ridge"] < 1.0
    assert baseline_errors(windows)["ridge"] > 20


def test_persistence_takes_the_last_value_that_is_known(tmp_path: Path) -> None:
    columns = sequence_columns(groups=6)
    columns["present"][[70, 71]] = np.nan  # the last two frames of the test group
    columns["present"][60:65] = np.nan  # all frames of its first window
    windows = with_columns(tmp_path, columns)
    found = baseline_predictions(windows["train"], windows["test"], change=False)["persistence"]
    np.testing.assert_array_equal(found[-3:], columns["present"][69])
    assert found[0] == windows["train"].targets.mean()


def test_persistence_without_present_takes_a_scalar_of_the_targets_name(tmp_path: Path) -> None:
    columns = sequence_columns(groups=6)
    columns["scalars"][:, 2] = columns.pop("present")
    names = {"scalar_names": ["zenith", "azimuth", "depth"], "target_name": "depth"}
    windows = with_columns(tmp_path, columns, METADATA | names)
    found = baseline_predictions(windows["train"], windows["test"], change=False)["persistence"]
    ends = windows["test"].ends
    np.testing.assert_array_equal(found, columns["scalars"][ends, 2])
    said = known_values(windows["test"].table)[1]
    assert said == "persistence predicts the last value of scalar 'depth'"


@pytest.mark.parametrize("timed", [True, False])
def test_persistence_of_targets_ahead_takes_those_whose_time_has_come(
    tmp_path: Path, timed: bool
) -> None:
    columns = sequence_columns(groups=6)
    del columns["present"]
    step = 1.0
    if timed:  # half a day in seconds since 1970, one frame in ten minutes
        step = 600.0
        columns["time"] = 1.7e9 + step * columns["time"]
        columns["time"][66:72] += step  # a frame is missing before the last six
    else:
        del columns["time"]
    metadata = METADATA | {"target_ahead": 4 * step}
    windows = with_columns(tmp_path, columns, metadata, temporal_frames=3, embargo=0.0)
    found = baseline_predictions(windows["train"], windows["test"], change=False)["persistence"]
    test, target = windows["test"], columns["target"]
    mean = windows["train"].targets.mean()
    for end, value in zip(test.ends.tolist(), found, strict=True):
        assert value == slow_truth(columns, end, test.num_frames, 4 * step, mean)
    assert (found == target[60]).any()
    assert (found == mean).any()
    assert "the target whose time is that of" in known_values(test.table)[1]


def slow_truth(
    columns: Columns, end: int, num_frames: int, ahead: float, otherwise: float
) -> float:
    """Return the newest target whose moment is that of a frame in the window, or `otherwise`."""
    time = columns.get("time", np.arange(len(columns["target"]), dtype=float))
    for frame in range(end, end - num_frames, -1):
        for before in range(frame):
            same = columns["group"][before] == columns["group"][frame]
            if same and time[before] + ahead == time[frame]:
                return float(columns["target"][before])
    return otherwise


def test_where_no_present_value_is_known_there_is_no_persistence(tmp_path: Path) -> None:
    columns = sequence_columns(groups=6)
    del columns["present"]
    windows = with_columns(tmp_path, columns)
    found = baseline_predictions(windows["train"], windows["test"], change=False)
    assert set(found) == {"mean", "ridge"}
    said = known_values(windows["test"].table)[1]
    assert said.startswith("no persistence baseline: the data have neither present nor a scalar")
    table = replace(windows["test"].table, target_ahead=1000.0)
    assert known_values(table)[1] == said


def test_a_ridge_that_is_fitted_on_a_part_says_so(
    windows: dict[str, SequenceWindows],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(regression_baselines, "RIDGE_WINDOWS", 20)
    ridge_predictions(windows["train"], windows["test"])
    assert "ridge regression is fitted on 20 of 32 training windows" in caplog.text


def test_a_confidence_is_not_rounded_up_to_certainty() -> None:
    errors = HeldOutErrors(np.linspace(-1, 1, 1999), np.zeros(4))
    assert "99.9%" in errors.intervals(0.999).describe("km")
    assert "90%" in errors.describe()
