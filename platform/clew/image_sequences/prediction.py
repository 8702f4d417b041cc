"""Predicts windows of frames, with intervals from the errors of held-out windows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from clew.config.image_sequences import ImageSequenceData
from clew.errors import DataError
from clew.files import replacing
from clew.image_sequences.files import FrameTable
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.model_folder import SequencesRecord
from clew.image_sequences.scalar_encoding import ScalarEncoding
from clew.image_sequences.windows import SequenceWindows, complete_window_ends


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

    Args:
        model: The model, in evaluation mode, on `device`.
        windows: Windows to predict.
        batch_size: Number of windows that go through the model at once.
        device: Device of the model.
        progress: Called with the number of finished windows and of all windows.
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
    table: FrameTable, record: SequencesRecord, config: ImageSequenceData, *, needs_present: bool
) -> SequenceWindows:
    """Return all complete windows of new frames, after checking that the frames fit the model.

    Args:
        table: New frames; their targets, if any, are ignored.
        record: Record of the training data.
        config: Section `data` of the training.
        needs_present: Whether the model predicts a change from the present value.

    Raises:
        DataError: If frames have another size or unit, if a scalar or a present value is missing,
            or if no window is complete.
    """
    own, trained = table.images.shape[1:], record.frames[1:]
    if own != trained:
        raise DataError(f"{table.source}: frames have {_size(own)}; expected {_size(trained)}")
    if table.unit and record.unit and table.unit != record.unit:
        raise DataError(
            f"{table.source}: the unit is {table.unit!r}; the model was trained on {record.unit!r}"
        )
    used = record.scalar_names if config.scalars is None else config.scalars
    missing = [name for name in used if name not in table.scalar_names]
    if missing:
        raise DataError(
            f"{table.source}: no scalar {missing[0]!r}, which the model was trained with; expected "
            f"{', '.join(used)}, given {', '.join(table.scalar_names) or 'none'}"
        )
    ends = complete_window_ends(
        table,
        num_frames=config.temporal_frames,
        max_gap=config.max_gap,
        cross_groups=config.windows_cross_groups,
    )
    if not len(ends):
        raise DataError(
            f"{table.source}: {table.images.shape[0]} frames, but no {config.temporal_frames} "
            "consecutive frames without a gap, which a window of the model needs"
        )
    if needs_present:
        _check_present(table, ends)
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
    columns = {
        "last_frame": pa.array(windows.ends, pa.int64()),
        "group": pa.array(windows.groups.tolist(), pa.string()),
    }
    if table.time is not None:
        columns["time"] = pa.array(table.time[windows.ends])
    columns["prediction"] = pa.array(prediction)
    for name, sign in (("lower", -1), ("upper", 1)):
        bound = None if half_width is None else prediction + sign * half_width
        columns[name] = pa.nulls(len(windows), pa.float64()) if bound is None else pa.array(bound)
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), temporary)


def _check_present(table: FrameTable, ends: np.ndarray) -> None:
    """Refuse windows without a present value."""
    if table.present is None:
        raise DataError(
            f"{table.source}: no present, which the model needs because it predicts the change "
            "from it; give the target's quantity at each frame"
        )
    missing = ends[~np.isfinite(table.present[ends])]
    if len(missing):
        raise DataError(f"{table.source}: present[{missing[0]}] is not a finite number")


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{channels} channel{'s' * (channels != 1)} of {height} x {width} pixels"
