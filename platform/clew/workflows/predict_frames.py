"""Predicts values with intervals for new image sequences, and writes them as Parquet."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, UsageError, counted
from clew.files import working_folder
from clew.image_sequences.errors import CONFIDENCE, HeldOutErrors, Intervals
from clew.image_sequences.files import handed_in_frames
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.prediction import (
    HELD_OUT_FILE,
    SEQUENCES_FILE,
    SequencesRecord,
    load_sequence_model,
    predict_windows,
    windows_to_predict,
    write_predictions,
)
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import present_values
from clew.workflows.model_source import (
    ModelSource,
    device_of,
    open_model,
    own_task,
    recorded,
    require_data,
)
from clew.workflows.outputs import check_file


@dataclass(frozen=True)
class FramesResult:
    """The file of predictions, and their intervals."""

    model: str
    output: str
    num_windows: int
    target_name: str
    unit: str
    intervals: Intervals | None
    """None if no errors on held-out windows are available."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """Return the output file and the coverage of the intervals, one per line."""
        shown = [f"model: {self.model}"]
        shown += [f"note: {note}" for note in self.notes]
        shown.append(f"{self.output}: {self.target_name} of {counted(self.num_windows, 'window')}")
        if self.intervals is not None:
            shown.append(self.intervals.describe(self.unit))
        return "\n".join(shown)


def predict_frames(
    model: str,
    frames: Path,
    output: Path,
    *,
    confidence: float = CONFIDENCE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FramesResult:
    """Predict every complete window of new frames and write the values atomically.

    Half widths come from the errors on the validation windows. They can be too small, because these
    windows also chose the checkpoint; the coverage of the test windows is therefore measured.
    A child process reads the frames (`clew.untrusted`).
    """
    check_file("--output", output)
    if not frames.exists():
        raise ConfigError(
            f"--frames {frames}: no such file or folder; expected HDF5, a Zarr store or a folder "
            "with images.npy"
        )
    with open_model(model) as source:
        only = "only models of image sequences predict frames"
        config, data = source.config, require_data(source, ImageSequenceData, only)
        device = device_of(config)
        with working_folder("sequences") as work:
            record = SequencesRecord.read(recorded(source, SEQUENCES_FILE, work))
        regressor, _ = load_sequence_model(source.checkpoint, record)
        regressor.to(device)
        errors, notes = _held_out_errors(source, regressor, device)
        intervals = None if errors is None else errors.intervals(confidence)
        with handed_in_frames(frames, data.channels) as table:
            windows = windows_to_predict(table, record, data)
            if regressor.config.predicts == "change":
                present_values(windows)
            prediction = predict_windows(
                regressor,
                windows,
                batch_size=config.evaluation.batch_size,
                device=device,
                progress=progress,
            )
        said = {"target": record.target_name, "unit": record.unit, "model": source.title}
        if intervals:
            said |= {key: str(value) for key, value in asdict(intervals).items()}
        metadata = {f"clew.{key}": value for key, value in said.items()}
        width = None if intervals is None else intervals.half_width
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


def _held_out_errors(
    source: ModelSource, model: SequenceRegressor, device: torch.device
) -> tuple[HeldOutErrors | None, tuple[str, ...]]:
    """Return a model's errors on held-out windows, from its file or measured on its data.

    The second value contains a note if there are no errors.
    """
    kept = source.checkpoint / HELD_OUT_FILE
    if kept.is_file():
        return HeldOutErrors.read(kept), ()
    try:
        task = own_task(source)
    except UsageError as error:
        return None, (f"no intervals, because the training data cannot be read: {error}",)
    assert isinstance(task, SequenceRegression)
    errors = task.held_out_errors(model, device)
    if errors is None:
        return None, ("no intervals, because no group was held out for validation in training",)
    return errors, ()
