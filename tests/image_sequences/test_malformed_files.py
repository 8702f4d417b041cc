"""Files that are not image sequences: each gives a one-line error, whatever its content."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from clew.errors import DataError
from clew.image_sequences.files import COLUMNS, read_frames
from tests.image_sequences.sequence_files import sequence_columns, write_folder, write_hdf5

COUNT = 48
NAMES = ("images", *COLUMNS)


def header_of_a_giant() -> bytes:
    """Return a valid header of an array of 8 TB without data."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**40},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "text": b"not an array",
    "only a header": b"\x93NUMPY\x01\x00",
    "a giant": header_of_a_giant(),
    "a broken header": b"\x93NUMPY\x01\x00\x10\x00" + b"(((((((((((((((\n",
    "an archive": b"PK\x03\x04" + bytes(40),
    "zeros": bytes(200),
}
ARRAYS: dict[str, Any] = {
    "objects": np.array([{"a": 1}] * COUNT, dtype=object),
    "one number": np.array(3.0),
    "complex": np.zeros(COUNT, complex),
    "dates": np.zeros(COUNT, "datetime64[s]"),
    "records": np.zeros(COUNT, [("a", float)]),
    "no rows": np.zeros((0,)),
    "five axes": np.zeros((COUNT, 1, 1, 1, 1)),
    "bytes that are no text": np.array([b"\xff\xfe"] * COUNT),
}
IN_HDF5 = [what for what in ARRAYS if what not in {"objects", "dates"}]  # HDF5 has neither type


def refused(path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_frames(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert len(line.splitlines()) == 1


def harmless(name: str, what: str) -> bool:
    """Return whether such an array is valid as this column: scalars can have any shape."""
    return name == "scalars" and what == "five axes"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", [*CONTENTS, *ARRAYS])
def test_columns_that_are_none(tmp_path: Path, name: str, what: str) -> None:
    folder = write_folder(tmp_path / "frames", sequence_columns())
    file = folder / f"{name}.npy"
    if what in CONTENTS:
        file.write_bytes(CONTENTS[what])
    else:
        np.save(file, ARRAYS[what], allow_pickle=True)
    if not harmless(name, what):
        refused(folder)


def test_an_archive_under_another_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "frames", sequence_columns())
    with (folder / "target.npy").open("wb") as file:
        np.savez(file, target=np.zeros(COUNT))
    with pytest.raises(DataError, match=r"target\.npy"):
        read_frames(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", [*IN_HDF5, "group", "dangling link", "nothing", "text"])
def test_data_sets_that_are_none(tmp_path: Path, name: str, what: str) -> None:
    path = write_hdf5(tmp_path / "frames.h5", sequence_columns())
    with h5py.File(path, "a") as file:
        del file[name]
        match what:
            case "group":
                file.create_group(name)
            case "dangling link":
                file[name] = h5py.SoftLink("/nowhere")
            case "nothing":
                file[name] = h5py.Empty("f8")
            case "text":
                file[name] = "a text"
            case _:
                file[name] = ARRAYS[what]
    if not harmless(name, what):
        refused(path)


@pytest.mark.parametrize(
    "metadata",
    [7, None, [], "text", {"scalar_names": 5}, {"scalar_names": "abc"}, {"target_ahead": None}],
)
def test_names_and_units_that_are_none(tmp_path: Path, metadata: Any) -> None:
    folder = write_folder(tmp_path / "frames", sequence_columns(), metadata)
    refused(folder)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, " " * (2**20 + 1)])
def test_metadata_that_is_no_json(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path / "frames", sequence_columns())
    (folder / "sequences.json").write_text(content)
    refused(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 0.5])
def test_groups_that_are_no_whole_numbers(tmp_path: Path, value: float) -> None:
    columns = sequence_columns() | {"group": np.full(COUNT, value)}
    folder = write_folder(tmp_path / "frames", columns)
    with pytest.raises(DataError):
        read_frames(folder)


def test_a_table_without_columns_is_one(tmp_path: Path) -> None:
    columns = sequence_columns() | {"scalars": np.zeros((COUNT, 0))}
    assert read_frames(write_folder(tmp_path, columns, {})).scalars.shape == (COUNT, 0)
