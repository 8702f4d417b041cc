"""The files needed to predict new frames: a checkpoint and a record of its training data.

    model.safetensors  manifest.json      the checkpoint; scalers are buffers of the model
    sequences.json                        shape, unit and names of the training data
    held_out_errors.parquet               errors on validation and test windows, for intervals;
                                          written when the model is promoted

A run keeps `sequences.json` next to its checkpoints, so the training data are not needed.
"""

import shutil
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.config.image_sequences import ImageSequenceData, SequenceRegressionModel
from clew.config.load import from_mapping
from clew.errors import CheckpointError, DataError, described
from clew.image_sequences.errors import HeldOutErrors
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.image_sequences.scalar_encoding import ScalarEncoding
from clew.training.checkpoints import copy_weights, read_model
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

    @classmethod
    def read(cls, path: Path) -> "SequencesRecord":
        """Read the record of a run.

        Raises:
            DataError: If the file cannot be read or is not a record.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DataError(
                f"{path}: not a record of image sequences ({described(error)})"
            ) from None


def write_model_folder(
    folder: Path, *, checkpoint: Path, record: Path, errors: HeldOutErrors | None
) -> Path:
    """Copy a checkpoint and all other files that predictions need into a new folder.

    Args:
        folder: The new folder, which must not exist.
        checkpoint: The checkpoint's folder.
        record: The folder with the run's `sequences.json`.
        errors: Errors on held-out windows; None if there are none.
    """
    folder.mkdir(parents=True)
    copy_weights(checkpoint, folder)
    shutil.copy2(record / SEQUENCES_FILE, folder / SEQUENCES_FILE)
    if errors is not None:
        errors.write(folder / HELD_OUT_FILE)
    return folder


def load_sequence_model(checkpoint: Path, record: SequencesRecord) -> SequenceRegressor:
    """Load the model of a checkpoint in evaluation mode.

    Raises:
        CheckpointError: If the checkpoint belongs to another task or other data, or is incomplete.
    """
    manifest = read_manifest(checkpoint)
    config = from_mapping(manifest.config, source=str(checkpoint / MANIFEST_FILE))
    data, settings = config.data, config.model
    if not (isinstance(data, ImageSequenceData) and isinstance(settings, SequenceRegressionModel)):
        raise CheckpointError(
            f"{checkpoint}: a {settings.kind} model on {data.kind}, expected sequence_regression "
            "on image_sequences; only such models predict frames"
        )
    encoding = ScalarEncoding.from_config(record.scalar_names, data, str(checkpoint))
    shape = SequenceShape(
        num_frames=data.temporal_frames,
        num_channels=record.frames[1],
        num_scalars=encoding.size,
        mask_channels=data.nan_pixels == "mask",
    )
    return read_model(checkpoint, lambda: SequenceRegressor(shape, settings)).eval()
