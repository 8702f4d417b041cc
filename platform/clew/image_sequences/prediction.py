"""Predicts windows of frames, with intervals from the errors of held-out windows.

A model folder has what predictions need, so that the training data are not needed:

    model.safetensors  manifest.json      the checkpoint; scalers are buffers of the model
    sequences.json                        shape, unit and names of the training data; a run keeps
                                          it next to its checkpoints
    held_out_errors.parquet               errors on validation and test windows, for intervals;
                                          written when the model is promoted
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.config.image_sequences import ImageSequenceData, SequenceRegressionModel
from clew.config.load import from_mapping
from clew.errors import CheckpointError, ConfigError, DataError, counted, refusing
from clew.files import replacing
from clew.image_sequences.errors import CONFIDENCE, HeldOutErrors
from clew.image_sequences.files import FrameTable
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.image_sequences.windows import ScalarEncoding, SequenceWindows, complete_window_ends
from clew.training.checkpoints import read_model
from clew.training.manifest import MANIFEST_FILE, read_manifest

SEQUENCES_FILE = "sequences.json"
HELD_OUT_FILE = "held_out_errors.parquet"
Size = Annotated[int, Field(strict=True, ge=1, lt=2**31)]


class SequencesRecord(BaseModel):
    """The record of a run's training data."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    frames: tuple[Size, Size, Size, Size]
    """(frame, channel, height, width)."""
    unit: str
    target_name: str
    scalar_names: tuple[str, ...]
    step: float | None = None
    """The usual time from a frame to the next; None without times, and in older runs."""

    @classmethod
    def read(cls, path: Path) -> "SequencesRecord":
        with refusing(f"{path}: not a record of image sequences", OSError, ValidationError):
            return cls.model_validate_json(path.read_bytes())


def load_sequence_model(
    checkpoint: Path, record: SequencesRecord
) -> tuple[SequenceRegressor, ImageSequenceData]:
    manifest = read_manifest(checkpoint)
    config = from_mapping(manifest.config, source=str(checkpoint / MANIFEST_FILE))
    data, settings = config.data, config.model
    if not (isinstance(data, ImageSequenceData) and isinstance(settings, SequenceRegressionModel)):
        raise CheckpointError(
            f"{checkpoint}: a {settings.kind} model on {data.kind}, expected sequence_regression "
            "on image_sequences; only such models predict frames"
        )
    encoding = ScalarEncoding.from_config(record.scalar_names, data, str(checkpoint))
    channels, mask = record.frames[1], data.nan_pixels == "mask"
    shape = SequenceShape(data.temporal_frames, channels, encoding.size, mask)
    return read_model(checkpoint, lambda: SequenceRegressor(shape, settings)).eval(), data


@torch.no_grad()
def predict_windows(
    model: SequenceRegressor,
    windows: SequenceWindows,
    *,
    batch_size: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """Return predictions in the target's unit, `(window,)`, float64.

    `progress` is called with the number of finished windows and of all windows.
    """
    parts = []
    for start in range(0, len(windows), batch_size):
        stop = min(start + batch_size, len(windows))
        batch = windows.batch(np.arange(start, stop)).to(device)
        scaled = model(batch.images, batch.scalars).double()
        value = scaled * model.target_std + model.target_mean
        if model.config.predicts == "change":
            value = value + batch.present
        parts.append(value.cpu().numpy())
        progress(stop, len(windows))
    return np.concatenate(parts)


def windows_to_predict(
    table: FrameTable, record: SequencesRecord, config: ImageSequenceData
) -> SequenceWindows:
    """Return all complete windows of new frames, which must fit the model and its settings."""
    own, trained = table.images.shape[1:], record.frames[1:]
    if own != trained:
        raise DataError(f"{table.source}: frames have {_size(own)}; expected {_size(trained)}")
    if table.unit and record.unit and table.unit != record.unit:
        raise DataError(
            f"{table.source}: the unit is {table.unit!r}; the model was trained on {record.unit!r}"
        )
    if table.step and record.step and not 0.5 < table.step / record.step < 2:
        raise DataError(
            f"{table.source}: a frame follows the one before it by {table.step:g} in `time`; "
            f"expected about {record.step:g}, as the model was trained on"
        )
    used = record.scalar_names if config.scalars is None else config.scalars
    missing = [name for name in used if name not in table.scalar_names]
    if missing:
        raise DataError(
            f"{table.source}: no scalar {missing[0]!r}, which the model was trained with; expected "
            f"{', '.join(used)}, given {', '.join(table.scalar_names) or 'none'}"
        )
    ends = complete_window_ends(table, config)
    if not len(ends):
        raise DataError(
            f"{table.source}: {table.images.shape[0]} frames, but no {config.temporal_frames} "
            "consecutive frames without a gap, which a window of the model needs"
        )
    encoding = ScalarEncoding.from_config(
        table.scalar_names, config.model_copy(update={"scalars": tuple(used)}), table.source
    )
    refuse_nan = config.nan_pixels == "refuse"
    return SequenceWindows(table, encoding, ends, config.temporal_frames, refuse_nan)


def write_predictions(
    path: Path,
    windows: SequenceWindows,
    prediction: np.ndarray,
    half_width: float | None,
    metadata: dict[str, str],
) -> None:
    """Write a Parquet file with a row for each window, completely or not at all.

    The columns are `last_frame`, `group`, `time` (if the frames have it), and, in the target's
    unit, `prediction`, `lower` and `upper`. Without intervals, `lower` and `upper` are null.
    `metadata` is written to the file's schema.
    """
    table = windows.table
    if len(bad := windows.ends[~np.isfinite(prediction)]):
        raise DataError(
            f"{table.source}: the prediction at frame {bad[0]} is not finite; a pixel or a scalar "
            "of its window is far too large"
        )
    columns = {
        "last_frame": pa.array(windows.ends, pa.int64()),
        "group": pa.array(windows.groups.tolist(), pa.string()),
    }
    if table.time is not None:
        columns["time"] = pa.array(table.time[windows.ends])
    width = np.nan if half_width is None else half_width  # NaN becomes null
    columns["prediction"] = pa.array(prediction)
    columns["lower"] = pa.array(prediction - width, from_pandas=True)
    columns["upper"] = pa.array(prediction + width, from_pandas=True)
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), temporary)


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{counted(channels, 'channel')} of {height} x {width} pixels"


class WindowPredictor:
    """Predicts one window at a time, on the CPU, with the model of a folder."""

    def __init__(self, folder: Path) -> None:
        self._record = SequencesRecord.read(folder / SEQUENCES_FILE)
        self._model, config = load_sequence_model(folder, self._record)
        errors = folder / HELD_OUT_FILE
        self._errors = HeldOutErrors.read(errors) if errors.is_file() else None
        names = self._record.scalar_names
        self._encoding = ScalarEncoding.from_config(names, config, "the model")
        self._refuses_nan = config.nan_pixels == "refuse"

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
        width = self._errors.intervals(confidence).half_width
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
