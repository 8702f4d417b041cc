"""`clew data`: the selected data set and its description."""

from pathlib import Path

import pytest

from clew.__main__ import run


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
