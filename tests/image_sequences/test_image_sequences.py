"""Frames from files, windows within groups, splits by group, scalers, and refused input."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError, DataError
from clew.image_sequences.files import read_frames
from clew.image_sequences.windows import (
    ScalarEncoding,
    fit_scalers,
    load_sequences,
    reaches_another_split,
)
from tests.image_sequences.sequence_files import (
    METADATA,
    Columns,
    sequence_columns,
    write_folder,
    write_hdf5,
)


def settings(path: Path, **values: Any) -> ImageSequenceData:
    return ImageSequenceData(path=str(path), temporal_frames=3, **values)


def changed(**columns: Any) -> Columns:
    return sequence_columns() | columns


def test_a_folder_and_a_file_hold_the_same(tmp_path: Path) -> None:
    columns = sequence_columns()
    folder = load_sequences(settings(write_folder(tmp_path / "arrays", columns)))
    file = load_sequences(settings(write_hdf5(tmp_path / "frames.h5", columns)))
    assert folder.table.unit == file.table.unit == "km"
    assert folder.table.scalar_names == ("zenith", "azimuth", "height")
    assert folder.fingerprint == file.fingerprint
    chosen = np.array([7, 0, 7])
    a, b = (s.windows["train"].batch(chosen) for s in (folder, file))
    for name in ("images", "scalars", "target", "present", "last_frame"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert a.images.shape == (3, 3, 1, 9, 13)


def test_one_file_for_each_frame(tmp_path: Path) -> None:
    columns = sequence_columns()
    folder = write_folder(tmp_path / "a", columns)
    (folder / "images.npy").unlink()
    (folder / "images").mkdir()
    for i, frame in enumerate(columns["images"]):
        np.save(folder / "images" / f"{i:05d}.npy", frame)
    read = read_frames(folder).images.read(np.array([5, 2]))
    np.testing.assert_array_equal(read[:, 0], columns["images"][[5, 2]])
    np.save(folder / "images" / "00007.npy", np.zeros((4, 4)))
    with pytest.raises(DataError, match=r"00007.npy \(frame 7\): shape \(4, 4\), but 00000"):
        read_frames(folder)


@pytest.mark.parametrize("write", [write_folder, write_hdf5])
def test_windows_travel_to_other_processes(tmp_path: Path, write: Any) -> None:
    windows = load_sequences(settings(write(tmp_path / "x.h5", sequence_columns()))).windows
    expected = windows["train"].batch(np.array([1]))
    again = pickle.loads(pickle.dumps(windows["train"])).batch(np.array([1]))
    assert torch.equal(again.images, expected.images)
    none = windows["train"].batch(np.array([], dtype=int))
    assert none.images.shape == (0, 3, 1, 9, 13)


def test_a_window_holds_consecutive_frames_and_the_last_ones_target(tmp_path: Path) -> None:
    columns = sequence_columns()
    windows = load_sequences(settings(write_folder(tmp_path, columns))).windows["train"]
    batch = windows.batch(np.array([4]))
    end = int(batch.last_frame[0])
    np.testing.assert_array_equal(batch.images[0, :, 0], columns["images"][end - 2 : end + 1])
    assert batch.target[0] == pytest.approx(columns["target"][end])
    assert batch.units() == {"examples": 1, "frames": 3}


def test_no_window_crosses_a_group_or_a_gap(tmp_path: Path) -> None:
    columns = sequence_columns()
    columns["time"][5:12] += 3.0  # a gap in the first group, between frames 4 and 5
    splits = load_sequences(settings(write_folder(tmp_path, columns)))
    ends = np.concatenate([w.ends for w in splits.windows.values()])
    assert sorted(ends) == [2, 3, 4, *range(7, 12)] + [
        start + i for start in (12, 24, 36) for i in range(2, 12)
    ]
    wide = load_sequences(settings(tmp_path, max_gap=10.0))
    assert {5, 6} <= set(wide.windows["train"].ends.tolist())


def test_windows_may_cross_groups_if_asked_to(tmp_path: Path) -> None:
    columns = changed(time=np.arange(48.0))
    windows = load_sequences(
        settings(write_folder(tmp_path, columns), windows_cross_groups=True)
    ).windows
    assert sum(map(len, windows.values())) == 46
    assert set(windows["test"].groups) == {"flight 3"}


def test_a_time_that_is_no_number_is_a_gap_on_both_sides(tmp_path: Path) -> None:
    columns = sequence_columns()
    columns["time"][16] = np.nan  # fifth frame of the second group
    windows = load_sequences(settings(write_folder(tmp_path, columns))).windows["train"]
    assert sorted(windows.ends) == [*range(2, 12), 14, 15, *range(19, 24)]
    columns["time"][17] = columns["time"][15]
    write_folder(tmp_path, columns)
    with pytest.raises(DataError, match=r"time\[17\] is 3 after 3; expected times that increase"):
        load_sequences(settings(tmp_path))


def test_frames_without_a_target_end_no_window(tmp_path: Path) -> None:
    columns = sequence_columns()
    columns["target"][[2, 20]] = np.nan
    windows = load_sequences(settings(write_folder(tmp_path, columns))).windows["train"]
    assert not {2, 20} & set(windows.ends.tolist())


def test_splits_are_whole_groups(tmp_path: Path) -> None:
    write_folder(tmp_path, sequence_columns())
    groups = {k: set(w.groups) for k, w in load_sequences(settings(tmp_path)).windows.items()}
    assert groups == {
        "train": {"flight 0", "flight 1"},
        "valid": {"flight 2"},
        "test": {"flight 3"},
    }
    chosen = settings(tmp_path, test_group="flight 0", validation_group="flight 3")
    groups = {k: set(w.groups) for k, w in load_sequences(chosen).windows.items()}
    assert groups["train"] == {"flight 1", "flight 2"}
    alone = settings(tmp_path, test_group="flight 1", hold_out_validation=False)
    splits = load_sequences(alone).windows
    assert set(splits["train"].groups) == {"flight 0", "flight 2", "flight 3"}
    assert set(splits["valid"].groups) == {"flight 1"}


def test_blocks_of_consecutive_frames_are_groups(tmp_path: Path) -> None:
    columns = sequence_columns(groups=1, frames_in_group=40)
    write_folder(tmp_path, columns)
    with pytest.raises(ConfigError, match=r"1 group, 3 needed .* data.num_blocks"):
        load_sequences(settings(tmp_path))
    windows = load_sequences(settings(tmp_path, num_blocks=5)).windows
    assert [len(windows[s]) for s in ("train", "valid", "test")] == [18, 6, 6]
    assert windows["test"].ends.min() == 34
    write_folder(tmp_path / "flights", sequence_columns())
    windows = load_sequences(settings(tmp_path / "flights", num_blocks=3)).windows
    assert windows["train"].ends.tolist() == [*range(2, 12), 14, 15]


def ends(path: Path, **values: Any) -> dict[str, list[int]]:
    windows = load_sequences(settings(path, **values)).windows
    return {split: own.ends.tolist() for split, own in windows.items()}


def test_targets_ahead_reach_into_no_other_split(tmp_path: Path) -> None:
    """One recording in four blocks; a target is two and a half time units after its frame."""
    columns = sequence_columns(groups=1, frames_in_group=40) | {"time": np.arange(40.0)}
    write_folder(tmp_path, columns)
    every, kept = ends(tmp_path, num_blocks=4), ends(tmp_path, num_blocks=4, embargo=2.5)
    assert set(every["train"]) - set(kept["train"]) == {18, 19}, "their targets lie in validation"
    assert set(every["valid"]) - set(kept["valid"]) == {28, 29}, "their targets lie in the test"
    assert kept["test"] == every["test"], "after the last frame there is no other split"
    middle = ends(tmp_path, num_blocks=4, embargo=2.5, test_group="1", validation_group="3")
    assert {8, 9}.isdisjoint(middle["train"])
    assert {18, 19}.isdisjoint(middle["test"]), "a test target may not lie where training looks"
    with pytest.raises(DataError, match=r"no train window is left, .* 90 ahead .*data.embargo"):
        ends(tmp_path, num_blocks=4, embargo=90)


def test_the_data_may_say_how_far_ahead_its_targets_lie(tmp_path: Path) -> None:
    columns = sequence_columns(groups=1, frames_in_group=40) | {"time": np.arange(40.0)}
    for write, path in ((write_folder, tmp_path / "folder"), (write_hdf5, tmp_path / "x.h5")):
        write(path, columns, METADATA | {"target_ahead": 2})
        assert ends(path, num_blocks=4) == ends(path, num_blocks=4, embargo=2)
        assert len(ends(path, num_blocks=4, embargo=0)["train"]) == 16
    write_folder(tmp_path / "folder", columns, METADATA | {"target_ahead": "soon"})
    with pytest.raises(DataError, match="target_ahead is 'soon'; expected a number, at least 0"):
        ends(tmp_path / "folder", num_blocks=4)


def test_a_target_reaches_no_recording_whose_time_begins_again(tmp_path: Path) -> None:
    columns = sequence_columns()
    write_folder(tmp_path, columns)
    assert ends(tmp_path, embargo=3) == ends(tmp_path), "each flight's time begins at 0"
    write_folder(tmp_path / "on", columns | {"time": np.arange(48.0)})
    assert ends(tmp_path / "on", embargo=3)["train"] == [*range(2, 12), *range(14, 21)]
    del columns["time"]
    write_folder(tmp_path / "untimed", columns)
    (tmp_path / "untimed" / "time.npy").unlink(missing_ok=True)
    frames = ends(tmp_path / "untimed", embargo=3)
    assert frames["train"] == [*range(2, 12), *range(14, 21)], "without time, frames are counted"


def test_the_embargo_is_what_a_loop_over_frames_finds(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    time = np.concatenate([np.sort(rng.uniform(0, 30, 30)), np.sort(rng.uniform(0, 30, 30))])
    time[[4, 17, 41]] = np.nan
    table = SimpleNamespace(time=time)
    split = np.repeat([0, 1, 0, 2, 1, 0], [7, 8, 15, 13, 7, 10])
    last = np.arange(60)
    for ahead in (0.1, 2.0, 9.0, 100.0):
        expected = []
        for end in last:
            reaches, latest = not np.isfinite(time[end]), time[end]
            for frame in range(end + 1, 60):
                if reaches or time[frame] <= latest or time[frame] > time[end] + ahead:
                    break
                reaches = split[frame] != split[end]
                latest = np.fmax(latest, time[frame])
            expected.append(reaches)
        found = reaches_another_split(table, last, split, ahead=ahead)  # type: ignore[arg-type]
        assert found.tolist() == expected


@pytest.mark.parametrize(("size", "channels"), [((32, 32), 3), ((20, 48), 5), ((9, 13), 2)])
def test_channels_may_come_first_or_last(
    tmp_path: Path, size: tuple[int, int], channels: int
) -> None:
    rng, columns = np.random.default_rng(0), sequence_columns()
    first = rng.normal(size=(48, channels, *size)).astype(np.float32)
    last = np.moveaxis(first, 1, -1)
    write_folder(tmp_path / "first", columns | {"images": first})
    write_folder(tmp_path / "last", columns | {"images": last})
    write_hdf5(tmp_path / "last.h5", columns | {"images": last})
    (tmp_path / "files" / "images").mkdir(parents=True)
    for i, frame in enumerate(last):
        np.save(tmp_path / "files" / "images" / f"{i:02d}.npy", frame)
    np.save(tmp_path / "files" / "target.npy", columns["target"])
    chosen = np.array([7, 0, 7])
    for name in ("first", "last", "last.h5", "files"):
        images = read_frames(tmp_path / name).images
        assert images.shape == first.shape, name
        np.testing.assert_array_equal(images.read(chosen), first[chosen])


def test_a_shape_that_leaves_the_channels_open_asks(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(48, 7, 9, 13)).astype(np.float32)
    write_folder(tmp_path, changed(images=images))
    with pytest.raises(
        DataError, match=r"7 channels of 9 x 13 pixels, or 13 channels of 7 x 9; set data.channels"
    ):
        load_sequences(settings(tmp_path))
    for channels, shape in (("first", (7, 9, 13)), ("last", (13, 7, 9))):
        table = load_sequences(settings(tmp_path, channels=channels)).table
        assert table.images.shape == (48, *shape)


def test_scalers_know_nothing_of_held_out_groups(tmp_path: Path) -> None:
    columns = sequence_columns()
    for name in ("images", "target", "scalars"):
        columns[name][24:] += 1000.0
    windows = load_sequences(settings(write_folder(tmp_path, columns))).windows["train"]
    scalers = fit_scalers(windows, change=False)
    train = columns["images"][:24].astype(float)
    assert scalers.image_mean[0] == pytest.approx(train.mean())
    assert scalers.image_std[0] == pytest.approx(train.std(), rel=1e-6)
    assert scalers.scalar_mean == pytest.approx(columns["scalars"][:24].mean(0), rel=1e-6)
    assert scalers.target_mean == pytest.approx(windows.targets.mean())
    change = fit_scalers(windows, change=True)
    difference = (columns["target"] - columns["present"])[windows.ends]
    assert change.target_std == pytest.approx(difference.std())


def test_directions_enter_as_sine_and_cosine() -> None:
    config = ImageSequenceData(path="x", azimuth_scalars=("a",), zenith_scalars=("z",))
    encoding = ScalarEncoding.from_config(("h", "z", "a"), config, "x")
    encoded = encoding.encode(np.array([[7.0, 60.0, 90.0]]))
    np.testing.assert_allclose(encoded, [[7.0, 0.5, 1.0, 0.0]], atol=1e-7)
    assert encoding.size == 4


def test_nan_pixels_are_refused_with_their_frame(tmp_path: Path) -> None:
    columns = sequence_columns()
    columns["images"][17, 3, 4] = np.nan
    write_folder(tmp_path, columns)
    windows = load_sequences(settings(tmp_path)).windows["train"]
    with pytest.raises(DataError, match=r"frame 17 has a pixel .*\[0, 3, 4\].*data.nan_pixels"):
        fit_scalers(windows, change=False)
    windows = load_sequences(settings(tmp_path, nan_pixels="mean")).windows["train"]
    clean = np.delete(columns["images"][:24].astype(float).ravel(), 17 * 9 * 13 + 3 * 13 + 4)
    assert fit_scalers(windows, change=False).image_mean[0] == pytest.approx(clean.mean())


@pytest.mark.parametrize(
    ("columns", "more", "error", "message"),
    [
        ({"target": np.zeros(5)}, {}, DataError, r"target has shape \(5,\), images has 48 frames"),
        ({"target": np.zeros((48, 2))}, {}, DataError, r"target has shape \(48, 2\)"),
        ({"images": np.zeros((48, 3))}, {}, DataError, r"images have shape \(48, 3\)"),
        ({"scalars": np.full((48, 3), np.inf)}, {}, DataError, r"scalars\[0, 0\] is inf"),
        ({"time": np.zeros(48)}, {}, DataError, r"time\[1\] is 0 after 0"),
        (
            {"group": np.repeat([0.0, 1.2, 1.7], 16)},
            {},
            DataError,
            r"group\[16\] is 1.2; groups are whole",
        ),
        ({}, {"test_group": "flight 9"}, ConfigError, "test_group is 'flight 9'.*flight 0, fl"),
        ({}, {"scalars": ("sun",)}, ConfigError, "scalars names 'sun'; expected one of zenith"),
        (
            {"group": np.repeat(["a", "b", "c"], [2, 26, 20])},
            {"max_gap": 50.0},
            DataError,
            r"group 'a' \(frames 0 to 1\) has no 3 consecutive frames",
        ),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, columns: Columns, more: dict[str, Any], error: type[Exception], message: str
) -> None:
    if "group" in columns:
        columns = columns | {"time": np.arange(48.0)}
    write_folder(tmp_path, changed(**columns))
    with pytest.raises(error, match=message):
        load_sequences(settings(tmp_path, **more))


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        load_sequences(settings(tmp_path / "none"))
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        load_sequences(settings(tmp_path / "text.h5"))
    with pytest.raises(DataError, match=r"no images\.npy and no folder images/"):
        load_sequences(settings(tmp_path))
    monkeypatch.setenv("CLEW_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"expected one of clouds, clouds\.h5"):
        load_sequences(ImageSequenceData(name="clouds"))
    outside = tmp_path / "named"
    outside.mkdir()
    monkeypatch.setenv("CLEW_DATA", str(outside))
    for name in ("../text", str(tmp_path / "text"), "a/../../text"):  # of text.h5
        with pytest.raises(ConfigError, match=r"which leads out of \$CLEW_DATA; give a name"):
            load_sequences(ImageSequenceData(name=name))


def test_frames_are_in_the_order_of_the_numbers_in_their_names(tmp_path: Path) -> None:
    write_folder(tmp_path, {"target": np.arange(12.0)}, {})
    (tmp_path / "images").mkdir()
    for number in range(12):
        np.save(tmp_path / f"images/frame_{number}.npy", np.full((2, 2), number, np.float32))
    table = read_frames(tmp_path)
    assert table.images.read(np.arange(12))[:, 0, 0, 0].tolist() == table.target.tolist()


def test_attributes_may_be_arrays_of_one_element(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "frames.h5", sequence_columns(), {})
    with h5py.File(path, "a") as file:
        file.attrs["unit"] = np.array(["K"], dtype=h5py.string_dtype())
        file.attrs["target_ahead"] = np.array([2.0])
    table = read_frames(path)
    assert (table.unit, table.target_ahead) == ("K", 2.0)


@pytest.mark.parametrize("key", ["unit", "target_name"])
@pytest.mark.parametrize("value", [None, 5, ["K", "m"]])
def test_names_that_are_no_text_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(DataError, match=key):
        read_frames(write_folder(tmp_path, sequence_columns(), {key: value}))


CODES = [("scale_factor", 0.01), ("add_offset", 10.0), ("_FillValue", -32767.0)]


@pytest.mark.parametrize(("key", "value"), CODES)
def test_numbers_that_stand_for_others_are_refused(tmp_path: Path, key: str, value: float) -> None:
    """As netCDF stores a temperature in two bytes; taken as they are, errors have no unit."""
    path = write_hdf5(tmp_path / "frames.h5", sequence_columns())
    with h5py.File(path, "a") as file:
        file["target"].attrs[key] = np.array([value])
    with pytest.raises(DataError, match=rf"target has {key}"):
        read_frames(path)
    with h5py.File(path, "a") as file:
        del file["target"].attrs[key]
        file["target"].attrs.update({"scale_factor": 1.0, "add_offset": 0.0, "_FillValue": np.nan})
        file["target"].attrs["missing_value"] = np.array([])
    assert len(read_frames(path).target) == 48
