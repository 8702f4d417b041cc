"""Exports a model of image sequences as a program, whose inputs have the units of the data files.

    predictions.pt2     (images, scalars[, present]) of windows -> values in the target's unit

A model that predicts a change also gets `present` and adds it. There are no named embeddings.
"""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, UsageError
from clew.image_sequences.errors import CONFIDENCE
from clew.image_sequences.model import SequenceRegressor
from clew.image_sequences.prediction import SequencesRecord
from clew.image_sequences.windows import ScalarEncoding
from clew.workflows.exporting.program import Exported, Inputs, write_program
from clew.workflows.model_source import ModelSource
from clew.workflows.predicting.frames import held_out_errors, intervals_of, open_regressor

PROGRAM_FILE = "predictions.pt2"
NUM_CHECKED = 5


class ExportedWindows(nn.Module):
    """A model of image sequences with the encoding of its scalars and the scaling of its values."""

    def __init__(self, model: SequenceRegressor, encoding: ScalarEncoding) -> None:
        super().__init__()
        self.model, self.encoding = model, encoding

    def forward(self, images: Tensor, scalars: Tensor) -> Tensor:
        """Return `(window,)` values, float64, in the target's unit."""
        model = self.model
        scaled: Tensor = model(images, self.encoding.encode_tensor(scalars)).double()
        return scaled * model.target_std + model.target_mean


class ExportedChanges(ExportedWindows):
    """A model of the change from the present value, to which the present value is added."""

    def forward(self, images: Tensor, scalars: Tensor, present: Tensor) -> Tensor:  # type: ignore[override]
        """Return `(window,)` values, float64, in the target's unit."""
        return super().forward(images, scalars) + present


def export_frames(source: ModelSource, folder: Path) -> Exported:
    """Write a model of image sequences into a folder.

    Raises:
        ConfigError: PyTorch cannot export the program, and there are no other files to export.
    """
    data = source.config.data
    assert isinstance(data, ImageSequenceData)
    model, record = open_regressor(source)
    encoding = ScalarEncoding.from_config(record.scalar_names, data, source.title)
    change = model.config.predicts == "change"
    module = (ExportedChanges if change else ExportedWindows)(model, encoding)
    examples = [_example(model, record, count, change=change) for count in (NUM_CHECKED, 1)]
    window = torch.export.Dim("window", min=1)
    check = write_program(
        module,
        folder / PROGRAM_FILE,
        examples,
        dynamic={name: {0: window} for name in ("images", "scalars", "present")[: 2 + change]},
        longest=model.shape.num_frames if model.config.architecture == "ssm" else None,
    )
    if not check.exported:
        raise ConfigError(
            f"{source.title} cannot be exported ({check.reason}); ask it with clew predict, or "
            "promote and serve it"
        )
    said = {
        "inputs": _inputs(model, record, change=change),
        "outputs": {"values": f"(window,) float64: {record.target_name} in {record.unit or '1'}"},
        "scalar_names": list(record.scalar_names),
        "intervals": _intervals(source, model),
    }
    return Exported(files={}, program_file=PROGRAM_FILE, program=check, said=said)


def _example(
    model: SequenceRegressor, record: SequencesRecord, count: int, *, change: bool
) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    frames, *size = model.shape.num_frames, *record.frames[1:]
    noise = torch.randn(count, frames, *size, generator=generator)
    images = model.image_mean[:, None, None] + model.image_std[:, None, None] * noise
    names = len(record.scalar_names)
    scalars = torch.rand(count, frames, names, generator=generator, dtype=torch.float64)
    present = torch.rand(count, generator=generator, dtype=torch.float64)
    return (images, scalars, present) if change else (images, scalars)


def _inputs(model: SequenceRegressor, record: SequencesRecord, *, change: bool) -> dict[str, str]:
    frames, size = model.shape.num_frames, ", ".join(map(str, record.frames[1:]))
    said = {
        "images": f"(window, {frames}, {size}) float32: time, channel, height, width",
        "scalars": f"(window, {frames}, {len(record.scalar_names)}) float64: as in the data files",
    }
    return said | ({"present": "(window,) float64: of the last frame"} if change else {})


def _intervals(source: ModelSource, model: SequenceRegressor) -> dict[str, float] | None:
    """Return the intervals with the default confidence; None if they cannot be computed."""
    errors, _ = held_out_errors(source, model, torch.device("cpu"))
    try:
        return None if errors is None else asdict(intervals_of(errors, CONFIDENCE))
    except UsageError:  # too few validation windows for this confidence
        return None
