"""Image sequences: folders of arrays, HDF5 files, names and units."""

import io
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.image_sequences.files import COLUMNS, read_frames
from tests.attack.cases import attempt, fuzz, replaced
from tests.attack.damage import damaged_bytes, damaged_json, values
from tests.image_sequences.sequence_files import (
    METADATA,
    sequence_columns,
    write_folder,
    write_hdf5,
)

pytestmark = pytest.mark.slow

NAMES = ("images", *COLUMNS)
COUNT = 48
TYPES = ("f4", "f8", "i8", "u1", "b1", "c16", "M8[s]", "S3", "U3", "O", "f2", "i4,f4")
SPARSE = ((2**40,), (COUNT, 2**36), (COUNT, 1, 2**20, 2**20), (2**40, 1, 9, 13))


def read(path: Path) -> None:
    """Read every column and the pixels of some frames, as a training does first."""
    table = read_frames(path)
    table.images.read(np.array([0, len(table.target) - 1]))
    _ = table.fingerprint


def drawn_array(draw: DrawFn) -> np.ndarray:
    """Return an array of any type and shape that could be one of the columns."""
    kind = draw(st.sampled_from(TYPES))
    shape = draw(st.sampled_from([(), (0,), (COUNT,), (COUNT - 1,), (COUNT, 3), (COUNT, 1, 9, 13)]))
    array: Any = np.zeros(shape, kind)
    if kind.startswith("f") and array.size:
        array.flat[draw(st.integers(0, array.size - 1))] = draw(st.floats(width=16))
    return np.asarray(array)


def test_folders_of_arrays(place: Path) -> None:
    columns = sequence_columns()
    folder = write_folder(place / "frames", columns)

    def damaged(draw: DrawFn, name: str) -> bytes:
        written = io.BytesIO()
        other = draw(st.booleans())
        np.save(written, drawn_array(draw) if other else columns[name], allow_pickle=True)
        content = written.getvalue()
        head = draw(damaged_bytes(content[:128])) if draw(st.booleans()) else content[:128]
        return head + content[128:]

    def case(draw: DrawFn) -> None:
        chosen = st.lists(
            st.sampled_from([*NAMES, "metadata"]), min_size=1, max_size=2, unique=True
        )
        with ExitStack() as stack:
            for name in draw(chosen):
                if name == "metadata":
                    path, content = folder / "sequences.json", draw(damaged_json(METADATA))
                else:
                    path, content = folder / f"{name}.npy", damaged(draw, name)
                stack.enter_context(replaced(path, content))
            attempt(lambda: read(folder))

    fuzz(0.03, case)


def test_one_file_for_each_frame(place: Path) -> None:
    columns = sequence_columns()
    folder = write_folder(place / "frame by frame", columns)
    (folder / "images.npy").unlink()
    (folder / "images").mkdir()
    for index, image in enumerate(columns["images"]):
        np.save(folder / f"images/{index:03}.npy", image)

    def case(draw: DrawFn) -> None:
        path = folder / f"images/{draw(st.integers(0, COUNT - 1)):03}.npy"
        content = path.read_bytes()
        with replaced(path, draw(damaged_bytes(content[:140])) + content[140:]):
            attempt(lambda: read(folder))

    fuzz(0.005, case)


def test_hdf5_files(place: Path) -> None:
    path = place / "frames.h5"
    columns = {name: column[:COUNT] for name, column in sequence_columns().items()}
    whole = write_hdf5(path, columns).read_bytes()

    def case(draw: DrawFn) -> None:
        path.unlink(missing_ok=True)  # HDF5 identifies a file that is still open by its inode
        if draw(st.booleans()):
            path.write_bytes(draw(damaged_bytes(whole)))
        else:
            written = io.BytesIO(whole)
            with h5py.File(written, "a") as file:
                name = draw(st.sampled_from(NAMES))
                del file[name]
                array = drawn_array(draw)
                if draw(st.integers(0, 3)) == 0:  # larger than any disk
                    shape = draw(st.sampled_from(SPARSE))
                    file.create_dataset(name, shape=shape, dtype="f4", chunks=(1,) * len(shape))
                elif array.dtype.kind in "fiub":
                    file[name] = array
                said = draw(st.sampled_from(["unit", "scalar_names", "target_ahead", "other"]))
                value = draw(values)
                if isinstance(value, int | float | str) and not _unusable(value):
                    file.attrs[said] = value
            path.write_bytes(written.getvalue())
        attempt(lambda: read(path))

    fuzz(0.03, case)


def _unusable(value: object) -> bool:
    """Return whether HDF5 cannot store the value."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return True
    if isinstance(value, str):
        return "\0" in value
    return isinstance(value, int) and not -(2**63) <= value < 2**63
