"""`clew data`: the selected data set and its description."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from clew.__main__ import run
from tests.image_sequences.sequence_files import (
    METADATA,
    sequence_columns,
    write_folder,
    write_hdf5,
)


@pytest.fixture
def triples(tmp_path: Path) -> Path:
    file = tmp_path / "train.txt"
    file.write_text("a\tlikes\tb\nb\tlikes\tc\nc\tknows\ta\n")
    return file


def test_files_are_described_and_packed(
    triples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid = tmp_path / "valid.txt"
    valid.write_text("a\tknows\tb\n")
    files = [f"--train={triples}", f"--valid={valid}"]
    assert run(["data", *files]) == 0
    said = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["num_entities"] == "3"
    assert (said["num_train"], said["num_valid"], said["num_test"]) == ("3", "1", "0")
    assert run(["data", *files, f"--pack={tmp_path / 'packed'}"]) == 0
    assert (tmp_path / "packed").is_file()


@pytest.mark.parametrize("name", ["test.txt", "valid.tsv"])
def test_a_file_of_another_split_alone_is_described(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / name).write_text("".join(f"a{i % 7}\tr{i % 3}\tb{i % 11}\n" for i in range(40)))
    assert run(["data", str(tmp_path / name)]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (said["num_train"], said["num_valid"], said["num_test"]) == ("36", "2", "2")
    assert name in said["split"]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one of --config, --name and --train"),
        (["--name=umls", "--train=FILE"], "give one of --config, --name and --train"),
        (["--valid=FILE"], "give --train too"),
        (["--train=none.txt"], f"none.txt: no such file in {Path.cwd()}; check"),
        (["--config=nano"], "clew data describes triples"),
    ],
)
def test_what_is_not_one_data_set_is_refused(
    options: list[str], message: str, triples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", *(option.replace("FILE", str(triples)) for option in options)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def said_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, str], str]:
    assert run(["data", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line[:22].strip(): line[23:] for line in lines if not line.startswith("look at")}
    return told, "\n".join(line for line in lines if line.startswith("look at"))


@pytest.mark.parametrize("form", ["file", "setting", "folder", "preset"])
def test_frames_are_described_by_their_split(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = sequence_columns()
    columns["target"][3] = np.nan
    columns["images"][7, 0, 0] = np.nan
    about = METADATA | {"target_ahead": 2, "target_name": "height"}
    path = write_hdf5(tmp_path / "frames.h5", columns, about)
    if form == "folder":
        path = write_folder(tmp_path / "frames", columns, about)
    words = [f"data.path={path}"] if form == "setting" else [str(path)]
    if form == "preset":
        content = {"data": {"kind": "image_sequences", "path": str(path)}}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
        words = [str(tmp_path / "mine.yaml")]
    told, findings = said_of([*words, "data.nan_pixels=mean"], capsys)
    assert told["target"].startswith("height in km")
    assert told["target ahead"].startswith("2 ")
    assert told["missing"].startswith("1 frame ")
    assert " 1 of 48 frames" in told["missing"]
    assert told["train"].endswith("groups flight 0, flight 1")
    assert told["valid"].endswith("group flight 2")
    assert told["test"].endswith("group flight 3")
    assert findings == ""


def test_a_netcdf_file_is_described_as_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """netCDF-4 files are HDF5 files."""
    path = write_hdf5(tmp_path / "frames.nc", sequence_columns(), METADATA)
    assert said_of([str(path)], capsys)[0]["frames"].startswith("48 ")


def test_a_group_that_validates_and_tests_is_pointed_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_hdf5(tmp_path / "frames.h5", sequence_columns(), METADATA | {"target_ahead": 2})
    alone = ["data.hold_out_validation=false", "evaluation.every_epochs=1000"]
    findings = said_of([str(path), *alone], capsys)[1]
    assert "flight 3" in findings
    assert "windows_cross_groups" in said_of([str(path), "windows_cross_groups=true"], capsys)[1]
    assert "embargo" in said_of([str(path), "embargo=0"], capsys)[1]
