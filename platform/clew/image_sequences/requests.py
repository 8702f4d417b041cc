"""Predicts a window of frames given as nested lists, as in HTTP requests."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.config.image_sequences import ImageSequenceData
from clew.config.load import from_mapping
from clew.errors import ConfigError, DataError
from clew.image_sequences.errors import CONFIDENCE, HeldOutErrors
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.model_folder import (
    HELD_OUT_FILE,
    SEQUENCES_FILE,
    SequencesRecord,
    load_sequence_model,
)
from clew.image_sequences.scalar_encoding import ScalarEncoding
from clew.training.manifest import read_manifest


class WindowPredictor:
    """Predicts one window at a time, on the CPU.

    Args:
        model: The model, in evaluation mode.
        record: Record of the training data.
        config: Section `data` of the training.
        errors: Errors on held-out windows, for intervals; None if there are none.
    """

    def __init__(
        self,
        model: SequenceRegressor,
        record: SequencesRecord,
        config: ImageSequenceData,
        errors: HeldOutErrors | None,
    ) -> None:
        self._model, self._record, self._errors = model, record, errors
        self._encoding = ScalarEncoding.from_config(record.scalar_names, config, "the model")
        self._refuses_nan = config.nan_pixels == "refuse"

    @classmethod
    def load(cls, folder: Path) -> "WindowPredictor":
        """Load a model folder.

        Raises:
            UsageError: If the folder cannot be read; the message says what is wrong.
        """
        record = SequencesRecord.read(folder / SEQUENCES_FILE)
        config = from_mapping(read_manifest(folder).config, source=str(folder)).data
        model, errors = load_sequence_model(folder, record), folder / HELD_OUT_FILE
        assert isinstance(config, ImageSequenceData)
        return cls(model, record, config, HeldOutErrors.read(errors) if errors.is_file() else None)

    def predict(
        self,
        images: Sequence[Any],
        scalars: Sequence[Any] = (),
        present: float | None = None,
        *,
        confidence: float = CONFIDENCE,
    ) -> dict[str, float]:
        """Return `prediction`, and `lower` and `upper` if there are intervals, in target units.

        Args:
            images: Pixels, `(time, channel, height, width)`.
            scalars: Scalars in the order of the training data, `(time, scalar)`.
            present: The target's quantity at the last frame, for a model that predicts its change.
            confidence: Share of targets that the intervals should contain.

        Raises:
            DataError: If a shape differs from the training data, if a value is missing, or if the
                prediction is not finite.
            ConfigError: If there are too few held-out windows for the confidence.
        """
        shape = (self._model.shape.num_frames, *self._record.frames[1:])
        pixels = self._array("images", images, shape, finite=self._refuses_nan)
        beside = self._array("scalars", scalars, (shape[0], len(self._record.scalar_names)))
        with torch.no_grad():
            encoded = torch.from_numpy(self._encoding.encode(beside)).unsqueeze(0)
            scaled = self._model(torch.from_numpy(pixels.astype(np.float32)).unsqueeze(0), encoded)
        value = float(scaled.double() * self._model.target_std + self._model.target_mean)
        if self._model.config.predicts == "change":
            value += float(self._array("present", [present], (1,))[0])
        if not math.isfinite(value):
            raise DataError("the prediction is not finite; a pixel or a scalar is far too large")
        if self._errors is None:
            if confidence != CONFIDENCE:
                raise ConfigError(
                    f"confidence is {confidence:g}, but this model has too few held-out windows "
                    "for intervals; leave confidence out"
                )
            return {"prediction": value}
        width = self._errors.half_width(confidence)
        return {"prediction": value, "lower": value - width, "upper": value + width}

    @staticmethod
    def _array(
        name: str, values: Sequence[Any], shape: tuple[int, ...], *, finite: bool = True
    ) -> np.ndarray:
        if 0 in shape:
            return np.zeros(shape)
        try:
            found = np.array(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            found = np.zeros(0)
        is_finite = np.isfinite(found)
        too_large = is_finite & (np.abs(found) > np.finfo(np.float32).max)
        if found.shape != shape or too_large.any() or (finite and not is_finite.all()):
            raise DataError(
                f"{name} is not an array of {' x '.join(map(str, shape))} finite numbers, which "
                "the model needs"
            )
        return found
