"""`predict` with frames, for a model of image sequences that the real command trained."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clew import names
from clew.__main__ import run as run_command
from clew.errors import ConfigError, DataError
from clew.image_sequences.model import SequenceRegressor
from clew.runs.reading.runs import download_artifact
from clew.workflows.evaluate import evaluate
from clew.workflows.model_source import load_source, open_model
from clew.workflows.predict_windows import predict_frames
from tests.image_sequences.sequence_files import (
    METADATA,
    Columns,
    sequence_columns,
    write_folder,
    write_hdf5,
)
from tests.workflows.conftest import run_of
from tests.workflows.trained import StoredRun, TrainedStore, sequence_config


def new_frames(**options: Any) -> Columns:
    """Return frames of two new groups, without targets."""
    columns = sequence_columns(groups=2, frames_in_group=7, seed=1, **options)
    return {name: column for name, column in columns.items() if name not in {"target", "present"}}


def trained_model(run_id: str) -> SequenceRegressor:
    with open_model(run_id) as source:
        model = load_source(source).model.eval()
    assert isinstance(model, SequenceRegressor)
    return model


def one_by_one(model: SequenceRegressor, columns: Columns, ends: list[int]) -> np.ndarray:
    """Return predictions of windows of three frames, one by one, in the target's unit."""
    found = []
    for end in ends:
        frames = slice(end - 2, end + 1)
        images = torch.from_numpy(columns["images"][None, frames, None])
        scalars = torch.from_numpy(columns["scalars"][None, frames].astype(np.float32))
        with torch.no_grad():
            scaled = float(model(images, scalars)[0])
        found.append(scaled * float(model.target_std) + float(model.target_mean))
    return np.array(found)


def test_rows_are_those_of_single_windows(sequences: StoredRun, tmp_path: Path) -> None:
    """A slow reference predicts window by window, and finds intervals by counting errors."""
    columns, output = new_frames(), tmp_path / "out.parquet"
    result = predict_frames(sequences.run_id, write_folder(tmp_path / "new", columns), output)
    table = pq.read_table(output)
    ends = [2, 3, 4, 5, 6, 9, 10, 11, 12, 13]
    assert table["last_frame"].to_pylist() == ends
    assert table["group"].to_pylist() == 5 * ["flight 0"] + 5 * ["flight 1"]
    assert table["time"].to_pylist() == columns["time"][ends].tolist()
    model = trained_model(sequences.run_id)
    expected = one_by_one(model, columns, ends)
    assert table["prediction"].to_numpy() == pytest.approx(expected, rel=1e-5)
    old = sequence_columns()
    errors = {}
    for split, group in (("valid", 2), ("test", 3)):
        own = list(range(12 * group + 2, 12 * group + 12))
        errors[split] = np.sort(abs(one_by_one(model, old, own) - old["target"][own]))
    width = errors["valid"][math.ceil(11 * 0.9) - 1]
    covered = sum(error <= width for error in errors["test"]) / 10
    for name, sign in (("lower", -1), ("upper", 1)):
        assert table[name].to_numpy() == pytest.approx(expected + sign * width, rel=1e-4)
    found = result.intervals
    assert found is not None
    assert (found.confidence, found.validation_windows, found.test_windows) == (0.9, 10, 10)
    assert found.half_width == pytest.approx(width, rel=1e-4)
    assert found.test_coverage == pytest.approx(covered)
    measured = evaluate(sequences.run_id).metrics
    assert measured["test/interval_coverage"] == pytest.approx(covered)
    metadata = table.schema.metadata
    assert metadata[b"clew.unit"] == b"km"
    assert metadata[b"clew.target"] == b"target"
    assert "of 10 test windows they contain" in result.table()
    assert [path.name for path in tmp_path.iterdir() if path.name != "new"] == ["out.parquet"]


def test_a_smaller_confidence_gives_narrower_intervals(
    sequences: StoredRun, tmp_path: Path
) -> None:
    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "out.parquet"
    results = [
        predict_frames(sequences.run_id, frames, output, confidence=c) for c in (0.3, 0.6, 0.9)
    ]
    widths = [result.intervals.half_width for result in results if result.intervals]
    assert widths == sorted(set(widths))
    assert len(widths) == 3
    with pytest.raises(
        ConfigError, match=r"10 validation windows give intervals of at most 0\.909"
    ):
        predict_frames(sequences.run_id, frames, output, confidence=0.95)


def test_hdf5_and_folder_and_targets_give_the_same(sequences: StoredRun, tmp_path: Path) -> None:
    columns = new_frames()
    with_target = columns | {"target": np.full(14, np.nan)}
    best = download_artifact(sequences.run_id, names.ARTIFACT_BEST, tmp_path / "kept")
    download_artifact(sequences.run_id, "sequences.json", tmp_path / "kept")
    tables = []
    for model, frames in (
        (sequences.run_id, write_folder(tmp_path / "new", columns)),
        (sequences.run_id, write_hdf5(tmp_path / "new.h5", columns)),
        (str(best), write_folder(tmp_path / "known", with_target)),
    ):
        predict_frames(model, frames, tmp_path / "out.parquet")
        tables.append(pq.read_table(tmp_path / "out.parquet"))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_without_its_data_a_model_predicts_without_intervals(
    sequences: StoredRun, tmp_path: Path
) -> None:
    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "out.parquet"
    predict_frames(sequences.run_id, frames, output)
    before = pq.read_table(output)
    shutil.move(sequences.folder / "clouds", tmp_path / "moved")
    try:
        result = predict_frames(sequences.run_id, frames, output)
    finally:
        shutil.move(tmp_path / "moved", sequences.folder / "clouds")
    assert result.intervals is None
    assert "note: no intervals, because the training data" in result.table()
    after = pq.read_table(output)
    assert after["prediction"].equals(before["prediction"])
    assert after["lower"].null_count == after["upper"].null_count == 10


def test_without_a_validation_group_there_are_no_intervals(
    sequences: StoredRun, tmp_path: Path
) -> None:
    config = sequence_config(
        tmp_path,
        sequence_columns(groups=3),
        data__hold_out_validation=False,
        evaluation__every_epochs=2,
    )
    frames = write_folder(tmp_path / "new", new_frames())
    result = predict_frames(run_of(config), frames, tmp_path / "out.parquet")
    assert result.intervals is None
    assert "no group was held out for validation" in result.table()


def test_with_few_validation_windows_there_are_no_intervals_unless_asked_for(
    tracking_store: Path, tmp_path: Path
) -> None:
    """Groups of ten frames have eight windows of three, and intervals of 90 % need nine errors."""
    run_id = run_of(sequence_config(tmp_path, sequence_columns(frames_in_group=10)))
    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "out.parquet"
    result = predict_frames(run_id, frames, output)
    assert result.intervals is None
    assert " 8 validation windows" in result.table()
    assert pq.read_table(output)["lower"].null_count == result.num_windows
    asked = predict_frames(run_id, frames, output, confidence=0.8)
    assert asked.intervals is not None


def test_a_model_of_changes_adds_them_to_the_present(sequences: StoredRun, tmp_path: Path) -> None:
    run_id = run_of(sequence_config(tmp_path, sequence_columns(), model__predicts="change"))
    columns, output = sequence_columns(groups=2, frames_in_group=7, seed=1), tmp_path / "o.parquet"
    predict_frames(run_id, write_folder(tmp_path / "new", columns), output)
    table = pq.read_table(output)
    ends = table["last_frame"].to_pylist()
    expected = one_by_one(trained_model(run_id), columns, ends) + columns["present"][ends]
    assert table["prediction"].to_numpy() == pytest.approx(expected, rel=1e-5)
    for present, message in (
        (None, "no present.*model.predicts"),
        (np.nan, r"present\[2\] is not"),
    ):
        changed = columns | {"present": np.full(14, present, dtype=float)}
        if present is None:
            del changed["present"]
            (tmp_path / "new" / "present.npy").unlink()
        frames = write_folder(tmp_path / "new", changed)
        with pytest.raises(DataError, match=message):
            predict_frames(run_id, frames, output)


def without(columns: Columns, name: str) -> Columns:
    return {key: column for key, column in columns.items() if key != name}


BAD_FRAMES = {
    "size": (
        new_frames(size=(9, 14)),
        METADATA,
        "frames have 1 channel of 9 x 14 pixels; expected 1 channel of 9 x 13 pixels",
    ),
    "channels": (
        new_frames() | {"images": np.zeros((14, 2, 9, 13), dtype=np.float32)},
        METADATA,
        "frames have 2 channels of 9 x 13 pixels; expected 1 channel of 9 x 13 pixels",
    ),
    "no scalars": (
        without(new_frames(), "scalars"),
        {"unit": "km"},
        "no scalar 'zenith', which the model was trained with; expected zenith, azimuth, height, "
        "given none",
    ),
    "other scalars": (
        new_frames(),
        METADATA | {"scalar_names": ["zenith", "azimuth", "depth"]},
        "no scalar 'height', which the model was trained with",
    ),
    "unit": (new_frames(), METADATA | {"unit": "m"}, "the unit is 'm'; the model was trained on"),
    "step": (
        new_frames() | {"time": 24 * new_frames()["time"]},
        METADATA,
        "by 24 in `time`; expected about 1,",
    ),
    "short": (
        {name: column[:2] for name, column in new_frames().items()},
        METADATA,
        "2 frames, but no 3 consecutive frames without a gap",
    ),
    "pixel": (
        new_frames() | {"images": np.full((14, 9, 13), np.nan, dtype=np.float32)},
        METADATA,
        "frame 0 has a pixel that is not finite",
    ),
    "no images": (without(new_frames(), "images"), METADATA, "no images.npy and no folder images/"),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_unlike_those_of_the_training_are_one_line(
    sequences: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    columns, metadata, message = BAD_FRAMES[case]
    frames, output = write_folder(tmp_path / "new", columns, metadata), tmp_path / "out.parquet"
    output.write_text("an older file")
    arguments = [f"--model={sequences.run_id}", f"--frames={frames}", f"--output={output}"]
    assert run_command(["predict", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert output.read_text() == "an older file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out.parquet"]


def test_a_failure_while_it_predicts_leaves_the_older_file(
    sequences: StoredRun, tmp_path: Path
) -> None:
    columns, output = new_frames(), tmp_path / "out.parquet"
    columns["images"][13, 0, 0] = np.nan
    output.write_text("an older file")
    with pytest.raises(DataError, match="frame 13 has a pixel"):
        predict_frames(sequences.run_id, write_folder(tmp_path / "new", columns), output)
    assert output.read_text() == "an older file"


def test_a_disk_that_is_full_leaves_the_older_file(
    sequences: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: object, path: Path) -> None:
        path.write_text("half")
        raise OSError("No space left on device")

    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "out.parquet"
    output.write_text("an older file")
    monkeypatch.setattr("clew.image_sequences.prediction.pq.write_table", full)
    with pytest.raises(OSError, match="No space left"):
        predict_frames(sequences.run_id, frames, output)
    assert output.read_text() == "an older file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out.parquet"]


def test_command_line(
    sequences: StoredRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "a" / "out.parquet"
    arguments = [f"--model={sequences.run_id}", f"--frames={frames}", f"--output={output}"]
    assert run_command(["predict", *arguments, "--confidence="]) == 0
    assert "intervals of 90%: +- " in capsys.readouterr().out
    assert run_command(["predict", *arguments, "--confidence=.5", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["intervals"]["confidence"] == 0.5
    assert content["num_windows"] == pq.read_table(output).num_rows == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--frames=new"], "--frames is given without --output"),
        (["--output=o.parquet"], "ask this model with clew predict --frames and --output"),
        (["--frames=nothing", "--output=o.parquet"], "--frames nothing: no such file or folder"),
        (["--frames=new", "--output=new"], "--frames and --output"),
        (["--frames=new", "--output=."], "--output ."),
        (["--frames=new", "--output=o", "--confidence=1"], "--confidence is '1'"),
        (["--prompt=hello"], "ask this model with clew predict --frames and --output"),
        (["--head=a", "--relation=b"], "ask this model with clew predict --frames and --output"),
    ],
)
def test_wrong_use_is_one_line(
    sequences: StoredRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "new", new_frames())
    assert run_command(["predict", f"--model={sequences.run_id}", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clew: error: ")
    assert message in line


def test_predictions_are_not_written_under_the_name_of_another_format(tmp_path: Path) -> None:
    frames, output = write_folder(tmp_path / "new", new_frames()), tmp_path / "out.csv"
    with pytest.raises(ConfigError, match="parquet"):
        predict_frames("newest", frames, output)
    assert not output.exists()


def test_a_graph_model_does_not_predict_frames(trained: TrainedStore, tmp_path: Path) -> None:
    frames = write_folder(tmp_path / "new", new_frames())
    with pytest.raises(ConfigError, match=r"link_prediction model; only models of image sequences"):
        predict_frames(trained.strong, frames, tmp_path / "out.parquet")


def test_a_prediction_that_is_not_finite_is_refused(sequences: StoredRun, tmp_path: Path) -> None:
    columns, output = new_frames(), tmp_path / "out.parquet"
    columns["scalars"] = columns["scalars"].astype(np.float64)
    columns["scalars"][13] = 1e300
    with pytest.raises(DataError, match="frame 13"):
        predict_frames(sequences.run_id, write_folder(tmp_path / "new", columns), output)
    assert not output.exists()
