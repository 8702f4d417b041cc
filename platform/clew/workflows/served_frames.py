"""Image-sequence regression as promotion and serving see it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from clew.image_sequences.errors import HeldOutErrors, conformal_half_width
from clew.image_sequences.model_folder import write_model_folder
from clew.image_sequences.requests import WindowPredictor
from clew.image_sequences.task import SequenceRegression

NUM_EXAMPLES = 2
TOLERANCE = 1e-4
"""How far a served value may lie from the checkpoint's own, as a share of it."""


class ServedFrames:
    """Image sequences: requests are windows of frames, answers are values with intervals."""

    examples = "windows"
    uncalibrated = "no intervals: too few windows, or none, are held out for validation"
    serving_code = Path(__file__).with_name("serving_frames.py")

    def __init__(self, task: SequenceRegression) -> None:
        self.task = task

    def num_examples(self, split: str) -> int:
        """Return the number of windows of a split."""
        return len(self.task.splits.windows[split])

    def calibrate(self, model: nn.Module) -> HeldOutErrors | None:
        """Return the errors on validation and test windows, on the CPU; None if too few."""
        errors = self.task.held_out_errors(model.eval(), torch.device("cpu"))
        enough = errors is not None and math.isfinite(conformal_half_width(errors.valid))
        return errors if enough else None

    def write_folder(
        self, folder: Path, *, checkpoint: Path, calibration: HeldOutErrors | None, work: Path
    ) -> Path:
        """Gather checkpoint, what its data were, and its errors on held-out windows."""
        self.task.write_artifacts(work)
        return write_model_folder(folder, checkpoint=checkpoint, record=work, errors=calibration)

    def example_rows(self) -> list[dict[str, Any]]:
        """Return windows of the training data, in the units of the files."""
        windows = self.task.train_examples()
        chosen = np.linspace(0, len(windows) - 1, min(NUM_EXAMPLES, len(windows))).astype(int)
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

    def answer(self, folder: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the value of each window, with its interval."""
        predictor = WindowPredictor.load(folder)
        return [predictor.predict(**row) for row in rows]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Compare values and bounds."""
        return one.keys() == other.keys() and all(
            math.isclose(one[key], other[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for key in one
        )
