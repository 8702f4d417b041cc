"""Predict, for image sequences: frames in, a Parquet of values with intervals out."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, UsageError
from clew.files import working_folder
from clew.image_sequences.errors import CONFIDENCE, HeldOutErrors
from clew.image_sequences.files import read_frames
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.model_folder import (
    HELD_OUT_FILE,
    SEQUENCES_FILE,
    SequencesRecord,
    load_sequence_model,
)
from clew.image_sequences.prediction import (
    predict_windows,
    windows_to_predict,
    write_predictions,
)
from clew.image_sequences.task import SequenceRegression
from clew.workflows.model_source import (
    ModelSource,
    device_of,
    open_model,
    own_task,
    recorded_file,
    require_task,
)
from clew.workflows.outputs import check_file


@dataclass(frozen=True)
class Intervals:
    """Split-conformal intervals: prediction plus and minus a half width."""

    confidence: float
    """Share of targets that they are meant to hold."""
    half_width: float
    """In the target's unit."""
    validation_windows: int
    """Number of held-out errors that the half width is from."""
    test_windows: int
    test_coverage: float
    """Share of the test windows' targets that they hold."""


@dataclass(frozen=True)
class FramesResult:
    """What was predicted, and how far it can be trusted."""

    model: str
    output: str
    num_windows: int
    target_name: str
    unit: str
    intervals: Intervals | None
    """None where nothing was held out to make them from."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)

    def table(self) -> str:
        """Return what was written, and what the intervals held when they were tested."""
        unit = f" {self.unit}" if self.unit else ""
        shown = [f"model: {self.model}"]
        shown += [f"note: {note}" for note in self.notes]
        shown.append(f"{self.output}: {self.target_name} of {self.num_windows:,} windows")
        if (found := self.intervals) is not None:
            shown.append(
                f"intervals of {found.confidence:.0%}: +- {found.half_width:.4g}{unit}, from "
                f"{found.validation_windows:,} validation windows; of {found.test_windows:,} test "
                f"windows they hold {found.test_coverage:.1%}"
            )
        return "\n".join(shown)


def predict_frames(
    model: str,
    frames: Path,
    output: Path,
    *,
    confidence: float = CONFIDENCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FramesResult:
    """Predict every complete window of new frames and write the values, whole or not at all.

    Half widths come from the errors on the validation windows, whose part in choosing the
    checkpoint may make them too small: how many test windows they hold is measured.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        frames: An HDF5 file or a folder of NumPy arrays, as for training, without targets.
        output: Parquet file; one row for each window.
        confidence: Share of targets that the intervals are meant to hold.
        progress: Called with the number of windows done and in total.

    Raises:
        UsageError: the model is none of image sequences, the frames are not such as it was trained
            on, or its validation windows are too few for the confidence.
    """
    check_file("--output", output)
    if not frames.exists():
        raise ConfigError(
            f"--frames {frames}: no such file or folder; expected an HDF5 file or a folder with "
            "images.npy"
        )
    with open_model(model) as source:
        require_task(
            source, names.TASK_SEQUENCE_REGRESSION, "only models of image sequences predict frames"
        )
        config = source.config
        assert isinstance(config.data, ImageSequenceData)
        device = device_of(config)
        regressor, record = open_regressor(source)
        regressor.to(device)
        windows = windows_to_predict(
            read_frames(frames, config.data.channels, needs_target=False),
            record,
            config.data,
            needs_present=regressor.config.predicts == "change",
        )
        errors, notes = held_out_errors(source, regressor, device)
        intervals = intervals_of(errors, confidence) if errors else None
        prediction = predict_windows(
            regressor,
            windows,
            batch_size=config.evaluation.batch_size,
            device=device,
            progress=progress,
        )
        width = intervals.half_width if intervals else None
        metadata = _metadata(source, record, intervals)
        write_predictions(output, windows, prediction, width, metadata)
        return FramesResult(
            model=source.title,
            output=str(output),
            num_windows=len(windows),
            target_name=record.target_name,
            unit=record.unit,
            intervals=intervals,
            notes=notes,
        )


def _metadata(
    source: ModelSource, record: SequencesRecord, intervals: Intervals | None
) -> dict[str, str]:
    """Return what the file says of its predictions, beside them."""
    said = {"target": record.target_name, "unit": record.unit, "model": source.title}
    if intervals:
        said |= {key: str(value) for key, value in asdict(intervals).items()}
    return {f"clew.{key}": value for key, value in said.items()}


def open_regressor(source: ModelSource) -> tuple[SequenceRegressor, SequencesRecord]:
    """Load a model of image sequences, on the CPU, and what its run recorded of its data."""
    with working_folder("sequences") as work:
        record = SequencesRecord.read(recorded_file(source, SEQUENCES_FILE, work))
    return load_sequence_model(source.checkpoint, record), record


def held_out_errors(
    source: ModelSource, model: SequenceRegressor, device: torch.device
) -> tuple[HeldOutErrors | None, tuple[str, ...]]:
    """Return the errors that a model keeps beside it, or measure them on its own data."""
    kept = source.checkpoint / HELD_OUT_FILE
    if kept.is_file():
        return HeldOutErrors.read(kept), ()
    try:
        task = own_task(source)
    except UsageError as error:
        return None, (
            f"no intervals, since the data that it was trained on cannot be read: {error}",
        )
    assert isinstance(task, SequenceRegression)
    errors = task.held_out_errors(model, device)
    if errors is None:
        return None, ("no intervals: no group was held out for validation in its training",)
    return errors, ()


def intervals_of(errors: HeldOutErrors, confidence: float) -> Intervals:
    """Return the intervals that errors give.

    Raises:
        ConfigError: there are too few validation windows for the confidence.
    """
    width = errors.half_width(confidence)
    return Intervals(confidence, width, len(errors.valid), len(errors.test), errors.coverage(width))
