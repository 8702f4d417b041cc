"""Image sequences in Zarr stores: the same frames as in a folder, and invalid stores."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clew.errors import DataError, UsageError
from clew.image_sequences.files import FrameTable, read_frames
from tests.image_sequences.sequence_files import METADATA, Columns, sequence_columns, write_folder

zarr = pytest.importorskip("zarr", reason="pip install 'clew[zarr]'")
pytestmark = pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3")


def write_zarr(path: Path, columns: Columns, zarr_format: int = 3) -> Path:
    """Write columns as arrays of one group, several frames in a chunk."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name, column in columns.items():
        group.create_array(name, data=column, chunks=(5, *column.shape[1:]))
    group.attrs.update(METADATA)
    return path


def same(one: FrameTable, other: FrameTable) -> bool:
    """Return whether two tables are equal, pixel by pixel."""
    frames = np.array([7, 3, 3, 40])
    np.testing.assert_array_equal(one.images.read(frames), other.images.read(frames))
    return one.fingerprint == other.fingerprint and one.scalar_names == other.scalar_names


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("channels", [None, "last"])
def test_a_store_holds_what_a_folder_holds(
    tmp_path: Path, zarr_format: int, channels: str | None
) -> None:
    columns = sequence_columns()
    if channels:
        columns["images"] = np.stack([columns["images"], columns["images"] + 1], axis=-1)
    folder = read_frames(write_folder(tmp_path / "folder", columns), channels)
    store = read_frames(write_zarr(tmp_path / "x.zarr", columns, zarr_format), channels)
    assert same(folder, store)
    assert (store.unit, store.group.tolist()) == ("km", columns["group"].tolist())
    copied = pickle.loads(pickle.dumps(store.images))
    np.testing.assert_array_equal(copied.read(np.array([5])), folder.images.read(np.array([5])))


def damage_text(path: Path) -> None:
    (path / "images/zarr.json").write_text("{", encoding="utf-8")


def pickled(path: Path) -> None:
    file = path / "images/zarr.json"
    content = json.loads(file.read_bytes())
    content["codecs"].append({"name": "numcodecs.pickle", "configuration": {}})
    file.write_text(json.dumps(content), encoding="utf-8")


def endless(path: Path) -> None:
    file = path / "target/zarr.json"
    content = json.loads(file.read_bytes())
    file.write_text(json.dumps(content | {"shape": [10**13]}), encoding="utf-8")


def no_images(path: Path) -> None:
    (path / "images").rename(path / "pictures")


def group_for_images(path: Path) -> None:
    (path / "images").rename(path / "pictures")
    zarr.open_group(str(path / "images"), mode="w")


def damaged_chunk(path: Path) -> None:
    chunk = next(file for file in sorted((path / "target/c").rglob("*")) if file.is_file())
    chunk.write_bytes(b"no such chunk")


def complex_pixels(path: Path) -> None:
    write_zarr(path, sequence_columns() | {"images": np.zeros((48, 9, 13), dtype=np.complex64)})


def empty(path: Path) -> None:
    (path / "zarr.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_text, "images/zarr.json: not valid JSON"),
        (pickled, "images/zarr.json: the chunks are pickled, which is not allowed"),
        (endless, "target has shape (10000000000000,), images has 48 frames; expected one row"),
        (no_images, "no array images (it has"),
        (group_for_images, "no array images (it has"),
        (damaged_chunk, "target cannot be read ("),
        (complex_pixels, "images have type complex64; expected real numbers"),
        (empty, "not a readable Zarr group ("),
    ],
)
def test_a_store_that_is_none_is_one_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = write_zarr(tmp_path / "x.zarr", sequence_columns())
    damage(path)
    refused(path, message)


def test_pixels_in_a_damaged_chunk_are_one_line(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", sequence_columns())
    table = read_frames(path)
    for chunk in (path / "images/c").rglob("0"):
        if chunk.is_file():
            chunk.write_bytes(b"no such chunk")
    with pytest.raises(DataError) as error:
        table.images.read(np.arange(48))
    assert len(str(error.value).splitlines()) == 1


def test_a_pickle_of_the_second_format_is_not_opened(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", sequence_columns(), zarr_format=2)
    file = path / "group/.zarray"
    content = json.loads(file.read_bytes()) | {"filters": [{"id": "pickle"}], "dtype": "|O"}
    file.write_text(json.dumps(content), encoding="utf-8")
    refused(path, "group/.zarray: the chunks are pickled, which is not allowed")


def refused(path: Path, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_frames(path)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zarr(tmp_path / "x.zarr", sequence_columns())
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(UsageError):
        read_frames(path)


def test_numbers_that_stand_for_others_are_refused(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", sequence_columns())
    zarr.open_group(path)["images"].attrs["scale_factor"] = 0.01
    refused(path, "images has scale_factor 0.01")
