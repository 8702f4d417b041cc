"""Reads frames that someone hands in, through a child process with limits (`clew.untrusted`)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.image_sequences.files import FrameTable, read_frames
from clew.image_sequences.stores import ChannelAxis, FrameShape
from clew.untrusted import LimitedReader

PART_BYTES = 2**25
"""Size of the pixels that the child reads at once."""
NUMBERS = ("target", "time", "present")
SAID = ("scalar_names", "unit", "target_name", "target_ahead")


@contextmanager
def handed_in_frames(path: Path, channels: ChannelAxis | None) -> Iterator[FrameTable]:
    """Open new frames, which need no targets; their pixels can be read within the block.

    Raises:
        DataError: If a column is missing, is malformed or has a wrong length, or if reading takes
            more memory or time than the child may use.
    """
    with LimitedReader(__name__, of=str(path)) as reader:
        request = {"path": str(path), "channels": channels}
        columns = reader.ask(**request)
        said = json.loads(columns.schema.metadata[b"said"])
        shape = tuple(said["shape"])
        scalars = [columns[f"scalar {i}"].to_numpy() for i in range(len(said["scalar_names"]))]
        group = np.array(columns["group"].to_pylist())
        yield FrameTable(
            str(path),
            _Pixels(reader, request, shape),
            group=group,
            recording=group,
            scalars=np.stack(scalars, axis=1) if scalars else np.zeros((shape[0], 0)),
            **{name: columns[name].to_numpy() for name in NUMBERS if name in columns.column_names},
            **{name: said[name] for name in SAID if name != "scalar_names"},
            scalar_names=tuple(said["scalar_names"]),
        )


@dataclass(frozen=True)
class _Pixels:
    """Pixels of frames, read by the child a part at a time."""

    reader: LimitedReader
    request: dict[str, Any]
    shape: FrameShape

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames at `frames` as float32, `(frame, channel, height, width)`."""
        pixels = np.empty((len(frames), *self.shape[1:]), np.float32)
        step = max(1, PART_BYTES // max(1, pixels[:1].nbytes))
        for start in range(0, len(frames), step):
            part = frames[start : start + step]
            found = self.reader.ask(**self.request, frames=part.tolist())["pixels"]
            values = found.combine_chunks().flatten().to_numpy()
            pixels[start : start + step] = values.reshape(len(part), *self.shape[1:])
        return pixels


@lru_cache(maxsize=1)
def _table(path: str, channels: ChannelAxis | None) -> FrameTable:
    return read_frames(Path(path), channels, needs_target=False)


def answer(path: str, channels: ChannelAxis | None, frames: list[int] | None = None) -> pa.Table:
    """Return the columns of frames, or the pixels of some, in the child."""
    table = _table(path, channels)
    if frames is not None:
        pixels = table.images.read(np.array(frames))
        return pa.table(
            {"pixels": pa.FixedSizeListArray.from_arrays(pixels.ravel(), pixels[0].size)}
        )
    columns: dict[str, Any] = {name: getattr(table, name) for name in ("group", *NUMBERS)}
    columns |= {f"scalar {i}": column for i, column in enumerate(table.scalars.T)}
    said = {"shape": table.images.shape} | {name: getattr(table, name) for name in SAID}
    given = {name: column for name, column in columns.items() if column is not None}
    return pa.table(given).replace_schema_metadata({"said": json.dumps(said)})
