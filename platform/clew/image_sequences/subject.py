"""Image sequences as a subject: requests are windows of frames, answers values with intervals."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.image_sequences.errors import HeldOutErrors, conformal_half_width
from clew.image_sequences.prediction import HELD_OUT_FILE, WindowPredictor
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import load_sequences
from clew.subject import Forms, Row, Settings, Subject
from clew.training.checkpoints import copy_weights

NUM_WINDOWS = 2
"""Number of windows that a candidate must predict before it is promoted."""
TOLERANCE = 1e-4
"""Allowed difference between a served value and the checkpoint's, absolute or relative."""


class WindowSettings(Settings):
    """Share of targets that the intervals should contain."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9


class ImageSequences(Subject[SequenceRegression, WindowPredictor, WindowSettings]):
    """Regression on windows of frames."""

    asked_with = "--frames and --output"
    examples = "windows"
    uncalibrated = "no intervals: too few windows, or none, are held out for validation"
    expects = (
        "rows with images (time, channel, height, width) and, if the model needs them, scalars "
        "(time, scalar) and the number present, and among params confidence (between 0 and 1)"
    )
    intended_use = (
        "estimates the target of sequences recorded as its training data were; elsewhere its "
        "errors and intervals are not known"
    )
    columns: ClassVar[Mapping[str, str]] = dict.fromkeys(("images", "scalars", "target"), "double")
    inputs: ClassVar[Forms] = {
        "images": [[[["double"]]]],
        "scalars?": [["double"]],
        "present?": "double",
    }
    outputs: ClassVar[Forms] = {"prediction": "double", "lower?": "double", "upper?": "double"}
    settings = WindowSettings

    def build_task(self, config: RunConfig) -> SequenceRegression:
        assert isinstance(config.data, ImageSequenceData)
        return SequenceRegression(load_sequences(config.data), config)

    def describe_data(self, task: SequenceRegression) -> str:
        sizes = {split: len(windows) for split, windows in task.splits.windows.items()}
        table, groups = task.splits.table, task.describe()
        unit = f" in {table.unit}" if table.unit else ""
        if groups["clew.validation_group"] == "none":  # then its windows are those of the test
            sizes["valid"] = 0
        return (
            f"{sizes['train']:,} windows to train, {sizes['valid']:,} to validate "
            f"(group {groups['clew.validation_group']}), {sizes['test']:,} to test "
            f"(group {groups['clew.test_group']}); target {table.target_name}{unit}"
        )

    def summary(
        self, task: SequenceRegression, metrics: Mapping[str, float], split: str
    ) -> list[str]:
        error, r2 = (metrics[names.metric(split, name)] for name in (names.MAE, names.R2))
        unit = f" {task.splits.table.unit}".rstrip()
        baselines = {
            name: metrics[key]
            for name in ("persistence", "ridge", "mean")
            if (key := names.metric(split, names.BASELINE_MAE.format(baseline=name))) in metrics
        }
        better = [name for name, value in baselines.items() if value <= error]
        worth = "better than all of them"
        if better:
            worth = f"worse than {' and '.join(better)}: do not use this model"
        shown = ", ".join(f"{name} {value:.3g}" for name, value in baselines.items())
        return [
            f"quality: mean absolute error {error:.3g}{unit} on the {split} windows, R2 {r2:.3f}",
            f"against {shown}{unit}: {worth}",
        ]

    def verbs(self, task: SequenceRegression) -> list[list[str]]:
        asked = ["--frames", task.splits.table.source, "--output", "predictions.parquet"]
        return [["predict", *asked], ["trace-sequence"]]

    def num_test_examples(self, task: SequenceRegression) -> int:
        return len(task.splits.windows["test"])

    def calibrate(self, task: SequenceRegression, model: Any) -> HeldOutErrors | None:
        """Return the errors on validation and test windows; None if too few."""
        errors = task.held_out_errors(model.eval(), torch.device("cpu"))
        enough = errors is not None and math.isfinite(conformal_half_width(errors.valid))
        return errors if enough else None

    def write_folder(
        self,
        task: SequenceRegression,
        folder: Path,
        checkpoint: Path,
        calibration: HeldOutErrors | None,
    ) -> None:
        folder.mkdir(parents=True)
        copy_weights(checkpoint, folder)
        task.write_artifacts(folder)
        if calibration is not None:
            calibration.write(folder / HELD_OUT_FILE)

    def example_rows(self, task: SequenceRegression) -> list[dict[str, Any]]:
        """Return windows of the training data, in the units of the files."""
        windows = task.train_examples()
        chosen = np.linspace(0, len(windows) - 1, min(NUM_WINDOWS, len(windows))).astype(int)
        rows = []
        for index, images in zip(chosen, windows.batch(chosen).images, strict=True):
            end = windows.ends[index]
            frames = np.arange(end - windows.num_frames + 1, end + 1)
            row: dict[str, Any] = {"images": torch.nan_to_num(images).tolist()}
            if windows.table.scalars.shape[1]:
                row["scalars"] = windows.table.scalars[frames].tolist()
            if windows.table.present is not None:
                row["present"] = float(np.nan_to_num(windows.table.present[end]))
            rows.append(row)
        return rows

    def load(self, folder: Path) -> WindowPredictor:
        return WindowPredictor(folder)

    def answer(
        self, loaded: WindowPredictor, rows: Sequence[Row], settings: WindowSettings
    ) -> list[dict[str, Any]]:
        if any("images" not in row for row in rows):
            raise ConfigError(f"a row has no images; expected {self.expects}")
        return [loaded.predict(**row, confidence=settings.confidence) for row in rows]

    def agree(self, one: Row, other: Row) -> bool:
        return one.keys() == other.keys() and all(
            math.isclose(one[key], other[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for key in one
        )
